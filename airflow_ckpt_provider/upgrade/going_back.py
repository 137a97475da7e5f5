"""The way back of an upgrade: checkpoint, state and sink become what they were before the new code.

Nothing to do where the new code was never allowed to start: then the old one continues where it stopped. Else
everything comes from the backup of the drained checkpoint, not from what the new code left of it, and what the new code
wrote leaves the sink.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.plan import undone_by
from airflow_ckpt_provider.change.plan_seal import seal_for_plan
from airflow_ckpt_provider.change.rest import RestRule
from airflow_ckpt_provider.change.risks import RISKS
from airflow_ckpt_provider.change.sealing import unseal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import ChangeRunningError, RefusedError
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.sink import RollBack
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink, named_sinks
from airflow_ckpt_provider.upgrade.fence import own_seal
from airflow_ckpt_provider.upgrade.record import Event, Upgrade, note, note_refusal

log = logging.getLogger(__name__)

_OF_SOURCES = tuple(word for word in RISKS if word.startswith("source_"))


@dataclass(frozen=True, slots=True)
class WayBack:
    """How an upgrade was rolled back.

    :param restored: the checkpoint was put back; else the new code had never been allowed to start.
    :param batch_id: the batch after which the old code continues.
    :param plan: the rewind, as plain JSON; ``None`` where nothing had to be changed.
    """

    restored: bool
    batch_id: int | None
    plan: Mapping[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """The way back as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Back:
    """One stream that is to be put back.

    :param checkpoint: the checkpoint, sealed by :func:`~airflow_ckpt_provider.upgrade.fence.fence`.
    :param repository: keeps the upgrade's record and its backup.
    :param upgrade: its upgrade.
    :param sink: what the stream writes to, one sink or several.
    :param sink_policy: what is done about rows that the new code wrote: one for all sinks, or one for each.
    """

    checkpoint: Checkpoint
    repository: Repository
    upgrade: Upgrade
    sink: Sink | Sequence[Sink]
    sink_policy: SinkPolicy | Sequence[SinkPolicy | None] | None


def go_back_all(
    backs: Sequence[Back], *, accept: Collection[str] = (), rest: RestRule | None = None, made_by: str = ""
) -> list[WayBack]:
    """Put checkpoints and sinks back, and lift the seals. Done once: a second call finds that it was.

    All streams are judged before the first one is changed, and no seal is lifted before all of them are back.

    :param backs: the streams of one application, or one.
    :param accept: what a person has accepted, beside what the records have; see :mod:`~airflow_ckpt_provider.upgrade.way_back`.
    :param rest: how the new code is known to be stopped.
    :raises RefusedError: one cannot be put back; all checkpoints stay sealed, and the same call again continues.
    :raises SealedError: somebody else has sealed one; nothing was changed.
    """
    plans = [_judged(back, accept) for back in backs]
    done = [
        _put_back(back, plan, accept=accept, rest=rest, made_by=made_by) if isinstance(plan, RewindPlan) else plan
        for back, plan in zip(backs, plans, strict=True)
    ]
    for back, plan in zip(backs, done, strict=True):
        batch_id = back.upgrade.fact(Event.RELEASED, "batch_id")
        note(back.repository, back.upgrade, Event.BACK, batch_id=batch_id, plan=plan["plan_id"] if plan else None)
    ways = []
    for back, plan in zip(backs, done, strict=True):
        if left := own_seal(inspect_target(back.checkpoint.location), back.upgrade):
            unseal(back.checkpoint, plan_id=left.plan_id)
        before = back.upgrade.has(Event.BACK)
        restored = bool(back.upgrade.fact(Event.BACK, "plan")) if before else plan is not None
        batch_id = back.upgrade.fact(Event.BACK if before else Event.RELEASED, "batch_id")
        ways.append(WayBack(restored, batch_id, plan))
    return ways


def _judged(back: Back, accept: Collection[str]) -> RewindPlan | Mapping[str, Any] | None:
    """What is left to be done to a stream: a rewind; or the one that was carried out, as plain JSON; ``None``: nothing.

    :raises RefusedError: it cannot be put back.
    """
    upgrade, location = back.upgrade, back.checkpoint.location
    if upgrade.has(Event.BACK):
        return None
    mark = own_seal(inspect_target(location), upgrade)
    if done := _recorded(back.repository, upgrade):
        return done
    if mark is None:
        raise RefusedError(
            f"{location} is not sealed any more: the stream may have been started meanwhile",
            hint="clear the run from its task `seal_again` on",
        )
    if upgrade.fact(Event.RELEASED, "backup_id") is None:
        return None  # the new code was never allowed to start
    plan = plan_rewind(
        back.checkpoint,
        Specifier("to_batch", str(upgrade.fact(Event.RELEASED, "batch_id"))),
        sink=back.sink,
        sink_exit=back.sink_policy,
        repository=back.repository.location,
        name=upgrade.name,
        exact_replay=False,
        backup=str(upgrade.fact(Event.RELEASED, "backup_id")),
        seal_id=mark.plan_id,
    )
    log.info("\n%s", plan.to_markdown())
    if plan.already_done:
        return None
    if not plan.continued:
        plan.check_accepted(_accepted(back, accept))
    RollBack(plan, named_sinks(back.sink), back.repository).check()
    return plan


def _accepted(back: Back, accept: Collection[str]) -> set[str]:
    """Its way back is the only one there is: data that a source has lost meanwhile is lost for new code as well."""
    return {*accept, *back.upgrade.accepted, *_OF_SOURCES}


def _put_back(
    back: Back, plan: RewindPlan, *, accept: Collection[str], rest: RestRule | None, made_by: str
) -> Mapping[str, Any]:
    """Carry out the rewind of one stream, and leave its seal."""
    try:
        apply_rewind(
            plan,
            back.checkpoint,
            back.repository,
            sink=back.sink,
            accept=_accepted(back, accept),
            rest=rest,
            made_by=made_by,
            reason=f"upgrade {back.upgrade.upgrade_id} is undone",
            lifts_seal=False,
        )
    except ChangeRunningError:
        raise
    except RefusedError:
        _seal_anew(back, plan, made_by)
        raise
    return plan.to_json()


def _seal_anew(back: Back, plan: RewindPlan, made_by: str) -> None:
    """Let the next try be another plan, where this one has changed nothing; its seal gives way to one with another id."""
    repository, location = back.repository, back.checkpoint.location
    kept = repository.kept_plan(plan.plan_id)
    there = inspect_target(location)
    if kept is not None and kept["checkpoint_fingerprint"] != there.fingerprint:
        return
    if RollBack(plan, named_sinks(back.sink), repository).has_changed(repository) is not False:
        return
    upgrade = note_refusal(repository, back.upgrade)
    if there.seal is None:
        return
    seal_for_plan(
        location,
        plan_id=upgrade.plan_id(back=True),
        reason=there.seal.reason,
        made_by=made_by,
        fingerprint=None,
        begun=True,
        own=upgrade.plan_ids,
    )


def _recorded(repository: Repository, upgrade: Upgrade) -> Mapping[str, Any] | None:
    """The way back that was carried out, and whose worker was lost before it could note it."""
    for record in repository.records():
        if undone_by(str(record["plan_id"])) in upgrade.plan_ids and record.get("kind") in ("rewind", "undo"):
            # Newest first: one that somebody has undone is none.
            plan: Mapping[str, Any] = record["plan"]
            return plan if record["kind"] == "rewind" else None
    return None
