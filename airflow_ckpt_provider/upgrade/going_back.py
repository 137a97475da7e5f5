"""The way back of an upgrade: checkpoint, state and sink become what they were before the new code.

Nothing to do where the new code was never allowed to start, and nobody has continued the checkpoint since it was drained:
then the old one continues where it stopped. Else everything comes from the backup of the drained checkpoint, not from what the
new code left of it, and what the new code wrote leaves the sink.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.plan import undone_by
from airflow_ckpt_provider.change.plan_seal import seal_for_plan
from airflow_ckpt_provider.change.rest import RestRule
from airflow_ckpt_provider.change.risks import RISKS
from airflow_ckpt_provider.change.sealing import unseal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import ChangeRunningError, RefusedError, command
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.sink import RollBack
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink, named_sinks
from airflow_ckpt_provider.upgrade.drained import Drained, drained_of, has_continued
from airflow_ckpt_provider.upgrade.fence import own_seal
from airflow_ckpt_provider.upgrade.record import Event, Upgrade, note, note_refusal

log = logging.getLogger(__name__)

_OF_SOURCES = tuple(word for word in RISKS if word.startswith("source_"))


@dataclass(frozen=True, slots=True)
class WayBack:
    """How an upgrade was rolled back.

    :param restored: the checkpoint was put back; else the new code had written nothing.
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
    :raises RefusedError: one cannot be put back, or is kept; all checkpoints stay sealed, and the same call again continues.
    :raises SealedError: somebody else has sealed one; nothing was changed.
    """
    targets = [drained_of(back.repository, back.upgrade) for back in backs]
    plans = [_judged(back, target, accept) for back, target in zip(backs, targets, strict=True)]
    begun = begin_way_back([(back.repository, back.upgrade) for back in backs])
    backs = [replace(back, upgrade=upgrade) for back, upgrade in zip(backs, begun, strict=True)]
    done = [
        _put_back(back, plan, accept=accept, rest=rest, made_by=made_by) if isinstance(plan, RewindPlan) else plan
        for back, plan in zip(backs, plans, strict=True)
    ]
    noted = []
    for back, target, plan in zip(backs, targets, done, strict=True):
        known = target if plan or back.upgrade.has(Event.RELEASED) else None
        about = {"batch_id": known.batch_id, "backup_id": known.backup_id} if known else {"batch_id": None}
        plan_id = plan["plan_id"] if plan else None
        noted.append(note(back.repository, back.upgrade, Event.BACK, **about, plan=plan_id))
    ways = []
    for back, upgrade, plan in zip(backs, noted, done, strict=True):
        if left := own_seal(inspect_target(back.checkpoint.location), back.upgrade):
            unseal(back.checkpoint, plan_id=left.plan_id)
        ways.append(WayBack(bool(upgrade.fact(Event.BACK, "plan")), upgrade.fact(Event.BACK, "batch_id"), plan))
    return ways


def begin_way_back(upgrades: Sequence[tuple[Repository, Upgrade]]) -> list[Upgrade]:
    """Note that the way back has begun, of the first stream by name before all others: it decides, as where code is kept.

    :param upgrades: of the streams of one application, or one, each with the repository of its record.
    :return: the upgrades with the step, in the order given.
    :raises RefusedError: the new code is kept.
    """
    in_order = sorted(upgrades, key=lambda each: each[1].name)
    noted = {upgrade.name: note(repository, upgrade, Event.GOING_BACK) for repository, upgrade in in_order}
    return [noted[upgrade.name] for _, upgrade in upgrades]


def _judged(back: Back, target: Drained | None, accept: Collection[str]) -> RewindPlan | Mapping[str, Any] | None:
    """What is left to be done to a stream: a rewind; or the one that was carried out, as plain JSON; ``None``: nothing.

    :param target: what the old code left; ``None``: not known.
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
    continued = upgrade.has(Event.RELEASED) or has_continued(back.checkpoint, upgrade, target)
    if continued is False:
        return None  # the new code was never allowed to start, and has not
    if target is None:
        raise _not_known(back, mark.plan_id, continued=continued)
    plan = plan_rewind(
        back.checkpoint,
        Specifier("to_batch", str(target.batch_id)),
        sink=back.sink,
        sink_exit=back.sink_policy,
        repository=back.repository.location,
        name=upgrade.name,
        exact_replay=False,
        backup=target.backup_id,
        seal_id=mark.plan_id,
    )
    log.info("\n%s", plan.to_markdown())
    if plan.already_done:
        return None  # the new code has changed nothing: nothing is accepted to let the old code start again
    if not plan.continued:
        plan.check_accepted(_accepted(back, accept))
    RollBack(plan, named_sinks(back.sink), back.repository).check()
    return plan


def _not_known(back: Back, plan_id: str, *, continued: bool | None) -> RefusedError:
    """Nobody has let the new code start, and nothing shows that it has not: whatever is there stays, and sealed."""
    location, upgrade = back.checkpoint.location, back.upgrade
    newest = back.checkpoint.progress().latest_begun
    if continued:
        found = (
            f"{location} is at batch {newest}: somebody has continued it since upgrade {upgrade.upgrade_id} sealed it"
        )
    else:
        found = f"{location} is at batch {newest}, and whether the new code has written some of that is UNKNOWN"
    return RefusedError(
        f"{found}; {back.repository.location} has no backup of the drained checkpoint of {upgrade.name} to restore",
        hint="see by the driver's log which code has run last. If it was the new code, rewind the stream by hand to the last "
        f"batch of the old code (seal_id / --seal-id {plan_id}). Then see that the old code is in place, lift the seal: "
        f"`{command('unseal', location, '--plan', plan_id)}`, start it, and end the upgrade: "
        f"`{command('upgrade', back.repository.location, '--name', upgrade.name, '--end', '--reason')} …`",
    )


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
