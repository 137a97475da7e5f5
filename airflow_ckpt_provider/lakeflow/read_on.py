"""Whether a pipeline has read on since a position was found: what it has written since is written again after a reset."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.lakeflow.examine import Examined
from airflow_ckpt_provider.lakeflow.updates import TERMINAL, active_update
from airflow_ckpt_provider.lakeflow.workspace import Workspace
from airflow_ckpt_provider.verdict import Verdict

#: Updates that are read for the one as of which a position was found.
_UPDATES = 200
_THEN = "what it has written after the position is written again after the reset; find the positions again"


def newest_ended(workspace: Workspace, pipeline_id: str) -> str:
    """Return the id of the newest update that has ended; empty if there is none."""
    return next(
        (str(each["update_id"]) for each in _updates(workspace, pipeline_id) if each.get("state") in TERMINAL), ""
    )


def judge_read_on(workspace: Workspace, examined: Examined, as_of: Iterable[str]) -> list[Judgement]:
    """Judge updates that are active, or that ran since positions were found; one that only validated wrote nothing.

    :param as_of: ids of the updates as of which they were found.
    """
    active, left, since = active_update(examined.pipeline), set(as_of), []
    for update in _updates(workspace, examined.pipeline_id) if active or left else ():
        update_id = str(update["update_id"])
        left.discard(update_id)
        if update_id == active and not update.get("validate_only"):
            reason = f"update {active} is active: {_THEN} when it has ended (PipelineStopOperator stops it)"
            return [Judgement(Verdict.UNKNOWN, reason)]
        if left and not update.get("validate_only"):
            since.append(update_id)
    if not since:
        return []
    return [Judgement(Verdict.UNKNOWN, f"update {since[0]} ran since the position was found: {_THEN}")]


def _updates(workspace: Workspace, pipeline_id: str) -> Iterable[dict[str, Any]]:
    return islice(workspace.iter_updates(pipeline_id), _UPDATES)
