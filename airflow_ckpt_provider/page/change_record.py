"""Changes of checkpoints as the repository's plans and audit records tell them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.page.fields import inner, text, texts, time
from airflow_ckpt_provider.recovery.status import rewind_records


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One change.

    :param plan_id: of its plan.
    :param kind: the verb: ``rewind``, ``reset``, ``repair``, ``restore``, …
    :param checkpoint: what was changed.
    :param at: when it was carried to its end; ``None``: it was begun, and no record says that it ended.
    :param undone_at: when it was undone.
    :param plan: the plan that was kept; empty if there is none.
    """

    plan_id: str
    kind: str
    checkpoint: str
    at: datetime | None
    made_by: str = ""
    reason: str = ""
    undone_at: datetime | None = None
    plan: Mapping[str, Any] | None = None

    @property
    def steps(self) -> tuple[str, ...]:
        """What the plan does, in order."""
        return texts(inner(self.plan).get("steps"))

    @property
    def take_back(self) -> str:
        """The command that undoes it; empty where the plan has none."""
        return text(inner(self.plan).get("take_back"))


def read_changes(repository: Repository, checkpoint: str | None = None) -> tuple[ChangeRecord, ...]:
    """The changes by plans that are kept, newest first.

    :param checkpoint: only those of this one; ``None``: all.
    :raises CkptError: the repository cannot be read.
    """
    found: dict[str, ChangeRecord] = {}
    undone: dict[str, datetime | None] = {}
    for record in rewind_records(repository):
        if checkpoint is not None and record.get("checkpoint") != checkpoint:
            continue
        if record.get("kind") == "undo":
            undone.setdefault(text(record.get("of")), time(record.get("at")))
        else:
            found.setdefault(text(record["plan_id"]), _of(record, inner(record.get("plan"))))
    return tuple(replace(each, undone_at=undone.get(plan_id)) for plan_id, each in found.items())


def read_change(repository: Repository, plan_id: str) -> ChangeRecord | None:
    """One change by its plan; ``None``: neither a plan nor a record of that id is there.

    :raises CkptError: the repository cannot be read.
    """
    ended = next((each for each in read_changes(repository) if each.plan_id == plan_id), None)
    plan = repository.kept_plan(plan_id)
    if plan is None:
        return ended
    return replace(ended, plan=plan) if ended else _of({"plan_id": plan_id}, plan)


def _of(record: Mapping[str, Any], plan: Mapping[str, Any]) -> ChangeRecord:
    return ChangeRecord(
        plan_id=text(record.get("plan_id")),
        kind=text(record.get("kind")) or text(plan.get("kind")) or "change",
        checkpoint=text(record.get("checkpoint")) or text(plan.get("checkpoint")),
        at=time(record.get("at")),
        made_by=text(record.get("made_by")),
        reason=text(record.get("reason")),
        plan=plan or None,
    )


def changes_of(repository: Repository, checkpoint: str) -> tuple[ChangeRecord, ...]:
    """As :func:`read_changes`; none where the records cannot be read, for a page shows what it can."""
    try:
        return read_changes(repository, checkpoint)
    except CkptError:
        return ()
