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

#: The newest changes of a stream that are shown.
SHOWN = 200


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


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one checkpoint.

    :param records: the newest ones, newest first.
    :param older: how many there are besides.
    :param unknown: why it is not known which there are; empty: it is known.
    """

    records: tuple[ChangeRecord, ...]
    older: int = 0
    unknown: str = ""


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


def changes_of(repository: Repository, checkpoint: str) -> Changes:
    """The changes of a checkpoint, for a page that shows what it can: where they cannot be known it says why.

    :param checkpoint: its address; empty: that is not known either.
    """
    if not checkpoint:
        return Changes((), unknown="no report and no backup says which checkpoint this stream has")
    try:
        found = read_changes(repository, checkpoint)
    except CkptError as e:
        return Changes((), unknown=e.message)
    return Changes(found[:SHOWN], len(found[SHOWN:]))
