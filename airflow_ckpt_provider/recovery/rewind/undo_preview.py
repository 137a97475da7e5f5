"""Whether a rewind could be undone: judged when it is planned, so that whoever approves the plan knows. Reads only."""

from __future__ import annotations

from functools import partial
from typing import Any

from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.sink import RollBack
from airflow_ckpt_provider.sinks.answers import is_needs
from airflow_ckpt_provider.sinks.kinds import asked
from airflow_ckpt_provider.sinks.sink import Sink


def undo_preview(plan: RewindPlan, sinks: tuple[Sink, ...]) -> dict[str, Any]:
    """Judge the undo of a rewind that is being planned.

    The checkpoint's own files are set aside by every rewind; what decides is the sinks.

    :param plan: the rewind.
    :param sinks: the sinks that were given.
    :return: plain JSON: ``possible``, and ``reasons``: what the undo needs, or why it is not possible.
    """
    if not plan.changes_checkpoint and not plan.rolls_sink_back:
        return {"possible": True, "reasons": ["there is nothing to undo"]}
    found: list[str] = []
    against: list[str] = []
    for kind, change in RollBack(plan, sinks).changes():
        needs, forbids = asked(kind, partial(kind.undo_needs, change), expect=is_needs)
        of = "" if len(plan.sinks) == 1 else f"{change.report.uri}: "
        found += [f"{of}{reason}" for reason in needs]
        against += [f"{of}{reason}" for reason in forbids]
    needs = ["only until the stream is started: then rewind again instead", *found]
    return {"possible": not against, "reasons": against or needs}
