"""Whether a test pipeline fails as production does: only then does it prove anything about a way back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from airflow_ckpt_provider.advisor.advice import recovery_advice
from airflow_ckpt_provider.advisor.registry import WRAPPERS
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.lakeflow.flows import bare
from airflow_ckpt_provider.lakeflow.workspace import Workspace

#: Events of level ERROR that are read, newest first.
_LOOKED_AT = 100
#: A name as Spark puts it in front of a message, also of one inside another.
_CLASS = re.compile(r"^\[([A-Z][A-Z0-9]*)\]|\[([A-Z][A-Z0-9]*(?:[_.][A-Z0-9]+)+)\]")


@dataclass(frozen=True, slots=True)
class Failure:
    """What a pipeline failed with last.

    :param flow: the flow, without catalog and schema.
    :param error: the error condition of its innermost cause, or the code that the advisor gives it; empty: not known.
    """

    flow: str
    error: str


def last_failure(workspace: Workspace, pipeline_id: str) -> Failure | None:
    """Return the newest error that the event log has of a flow; ``None`` where it has none."""
    for event in islice(workspace.iter_events(pipeline_id, filter="level='ERROR'"), _LOOKED_AT):
        flow = (event.get("origin") or {}).get("flow_name")
        exceptions = (event.get("error") or {}).get("exceptions") or ()
        if flow and exceptions:
            return Failure(bare(str(flow)), innermost_cause(exceptions))
    return None


def same_failure(workspace: Workspace, pipeline_id: str, test_pipeline_id: str) -> str:
    """Say in a sentence that both pipelines fail in the same way.

    :raises RefusedError: they do not.
    """
    production, test = last_failure(workspace, pipeline_id), last_failure(workspace, test_pipeline_id)
    hint = (
        "give the test pipeline the checkpoint and the code that fail (let the code from before run once, then the new one), "
        "or leave it out"
    )
    if production is None:
        raise RefusedError(f"the event log of pipeline {pipeline_id} has no error of a flow", hint="check the id")
    if test is None:
        raise RefusedError(
            f"flow {production.flow} fails with {production.error}, and no flow of test pipeline {test_pipeline_id} fails",
            hint=hint,
        )
    if not production.error or not test.error:
        unknown, where = (production, pipeline_id) if not production.error else (test, test_pipeline_id)
        raise RefusedError(
            f"it is not known what flow {unknown.flow} of pipeline {where} fails with: its error has no condition that is known",
            hint="compare the events of level ERROR of both pipelines; leave the test pipeline out to continue without it",
        )
    if test != production:
        raise RefusedError(
            f"flow {production.flow} fails with {production.error}, and of test pipeline {test_pipeline_id} flow {test.flow} "
            f"with {test.error}",
            hint=hint,
        )
    return f"flow {test.flow} fails with {test.error} in both pipelines"


def innermost_cause(exceptions: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of the innermost cause of an error event; empty where nothing in it is known.

    ``[STREAM_FAILED] … terminated with exception: [CLASS] …`` names the cause last, and so does a list of exceptions.
    """
    said = [str(each.get("message") or "").strip() for each in exceptions]
    named = [name for text in said for found in _CLASS.findall(text) if (name := "".join(found)) not in WRAPPERS]
    if named:
        return named[-1]
    advice = recovery_advice(
        "\n".join(f"{each.get('class_name') or ''}: {text}" for each, text in zip(exceptions, said, strict=True))
    )
    if advice.condition is None or advice.condition.vague:
        return ""
    names = advice.condition.names
    # The wording of a condition that has one name only is that name, so a log with it and one without it are compared.
    return advice.name or (names[0] if len(names) == 1 else advice.condition.code)
