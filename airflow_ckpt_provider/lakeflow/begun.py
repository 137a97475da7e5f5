"""Whether an update that has ended may have reset checkpoints or emptied tables: its last state alone does not show it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import islice

from airflow_ckpt_provider.errors import NoSuchPipelineError
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.lakeflow.flows import LOOKED_AT
from airflow_ckpt_provider.lakeflow.updates import CANCELED, COMPLETED, FAILED, TERMINAL
from airflow_ckpt_provider.lakeflow.workspace import Workspace
from airflow_ckpt_provider.verdict import Verdict

#: States of an update that come before RESETTING, or may.
_BEFORE = frozenset({"QUEUED", "CREATED", "WAITING_FOR_RESOURCES", "INITIALIZING", "STOPPING", CANCELED, FAILED})
_STATE = re.compile(r" is ([A-Z_]+)")


def may_have_reset(workspace: Workspace, pipeline_id: str, update_ids: Collection[str]) -> bool:
    """Whether updates may have reset checkpoints or emptied tables: all but those that the event log shows to have ended before.

    :param update_ids: of updates of the pipeline.
    """
    begun, ended = set[str](), set[str]()
    for event in islice(workspace.iter_events(pipeline_id, max_results=250), LOOKED_AT):
        of = str((event.get("origin") or {}).get("update_id") or "")
        if of not in update_ids:
            continue
        kind = event.get("event_type")
        if kind == "create_update":
            begun.add(of)
            if begun.issuperset(update_ids):
                break
        elif kind == "update_progress":
            state = _STATE.search(str(event.get("message") or ""))
            if not state or state[1] not in _BEFORE:
                return True
            if state[1] in (CANCELED, FAILED):
                ended.add(of)
        elif kind in ("flow_progress", "stream_progress"):
            return True
    return not (begun & ended).issuperset(update_ids)


def judge_begun(update_ids: Sequence[str]) -> list[Judgement]:
    """Judge a reset that may have been done already.

    :param update_ids: of updates that may have reset the same flows to the same positions; the last may be empty: not known.
    """
    if not update_ids:
        return []
    return [
        Judgement(
            Verdict.UNKNOWN,
            f"before this task was cleared, update {update_ids[-1]} or one after it may have reset the flows: what they have "
            "read since from these positions is read again; start a new run, which finds the positions again",
        )
    ]


def has_failed(workspace: Workspace, pipeline_id: str, update_id: str) -> bool:
    """Whether an update has failed, or was stopped; not if it is too old to be known."""
    try:
        update = workspace.ask(pipeline_id, f"updates/{update_id}").get("update") or {}
    except NoSuchPipelineError:
        return False
    return update.get("state") in TERMINAL - {COMPLETED}
