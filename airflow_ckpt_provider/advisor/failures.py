"""Why an update failed: the text of the event log, and the advisor's way out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from typing import Any

from airflow_ckpt_provider.advisor.advice import recovery_advice
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.lakeflow.rewind_refusals import explain_refusal
from airflow_ckpt_provider.lakeflow.workspace import Workspace

#: Events of level ERROR that are read; the interface cannot filter by update.
_LOOKED_AT = 250


def errors_of(workspace: Workspace, pipeline_id: str, update_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the error events of some updates, newest first."""
    events = islice(workspace.iter_events(pipeline_id, filter="level='ERROR'"), _LOOKED_AT)
    return [event for event in events if (event.get("origin") or {}).get("update_id") in update_ids]


def why_it_failed(workspace: Workspace, pipeline_id: str, update_ids: Sequence[str]) -> str:
    """Return what the event log says about the failure of an update, with what to do; or that it could not be read.

    :param update_ids: the update and those in its place.
    """
    try:
        events = errors_of(workspace, pipeline_id, update_ids)
    except CkptError as e:
        return f"the event log could not be read: {e.message}"
    if not events:
        return "the event log has no error of it"
    # That of the flow says more than that of the update, which only repeats it.
    told = max(events, key=lambda e: (bool((e.get("error") or {}).get("exceptions")), bool(flow_of(e))))
    lines = [f"{flow_of(told)}{told.get('message') or 'no message'}"]
    for exception in (told.get("error") or {}).get("exceptions") or ():
        lines.append(f"{exception.get('class_name') or 'exception'}: {exception.get('message') or ''}")
    refusal = explain_refusal("\n".join(lines))
    advice = recovery_advice(json.dumps(told))
    return "\n".join([*([refusal] if refusal else []), *lines, advice.to_text()])


def flow_of(event: dict[str, Any]) -> str:
    """``flow <name>: ``, or nothing where the event names none."""
    flow = (event.get("origin") or {}).get("flow_name")
    return f"flow {flow}: " if flow else ""
