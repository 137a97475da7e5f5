"""Whether a test pipeline fails as production does: only then does it prove anything about a way back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.lakeflow.flows import bare
from airflow_ckpt_provider.lakeflow.workspace import Workspace

#: Events of level ERROR that are read, newest first.
_LOOKED_AT = 100
_CLASS = re.compile(r"^\s*\[([A-Z0-9_.]+)\]")


@dataclass(frozen=True, slots=True)
class Failure:
    """What a pipeline failed with last.

    :param flow: the flow, without catalog and schema.
    :param error: the error class of its message, or the class of the exception.
    """

    flow: str
    error: str


def last_failure(workspace: Workspace, pipeline_id: str) -> Failure | None:
    """Return the newest error that the event log has of a flow; ``None`` where it has none."""
    for event in islice(workspace.iter_events(pipeline_id, filter="level='ERROR'"), _LOOKED_AT):
        flow = (event.get("origin") or {}).get("flow_name")
        for exception in (event.get("error") or {}).get("exceptions") or ():
            if flow:
                return Failure(bare(str(flow)), _name(exception))
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
    if test != production:
        raise RefusedError(
            f"flow {production.flow} fails with {production.error}, and of test pipeline {test_pipeline_id} flow {test.flow} "
            f"with {test.error}",
            hint=hint,
        )
    return f"flow {test.flow} fails with {test.error} in both pipelines"


def _name(exception: Mapping[str, Any]) -> str:
    found = _CLASS.match(str(exception.get("message") or ""))
    return found[1] if found else str(exception.get("class_name") or "no class")
