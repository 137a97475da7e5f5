"""The upgrade of an application with several queries: one record for each stream, and one decision for all.

A stream of an application is locked by a record of its own, as a stream that is upgraded alone. What is decided once for all of
them, that the new code is kept, is decided by the record of the first stream by name: it gets the note before all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.target import read_seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.upgrade.fence import begin
from airflow_ckpt_provider.upgrade.going_back import begin_way_back
from airflow_ckpt_provider.upgrade.outcome import (
    HALF_WAY,
    KEPT,
    TAKEN_BACK,
    UNTOUCHED,
    Outcome,
    downtime_of,
    outcome_of,
)
from airflow_ckpt_provider.upgrade.record import (
    Event,
    Upgrade,
    check_step,
    end_upgrade,
    is_needed,
    newest_upgrade,
    note,
)


@dataclass(frozen=True, slots=True)
class Member:
    """One stream of an application; or one that is upgraded alone.

    :param name: its name in the repository.
    :param checkpoint: its checkpoint.
    :param repository: keeps its record and its backups.
    """

    name: str
    checkpoint: Checkpoint
    repository: Repository


def begin_all(members: Sequence[Member], upgrade_id: str, facts: Mapping[str, Mapping[str, Any]]) -> list[Upgrade]:
    """Take all streams for an upgrade, or none; find those that this run has begun.

    :param members: the streams, or the one.
    :param upgrade_id: the run.
    :param facts: name -> what is known at the beginning; another way back, or other streams, than this run has noted before
        begin it again.
    :raises RefusedError: another run upgrades one of them: none is taken.
    :raises SealedError: somebody has sealed one of them.
    """
    names = sorted(member.name for member in members)
    begun: list[Upgrade] = []
    try:
        for member in members:
            about = {**facts[member.name], **({"together": names} if len(names) > 1 else {})}
            begun.append(_begun(member, upgrade_id, about))
    except RefusedError:
        for member, upgrade in zip(members, begun, strict=False):
            if not is_needed(upgrade):
                _end(member, upgrade, UNTOUCHED, reason="another stream of the application could not be taken")
        raise
    return begun


def _begun(member: Member, upgrade_id: str, about: Mapping[str, Any]) -> Upgrade:
    found = begin(member.checkpoint, member.repository, member.name, upgrade_id, **about)
    obstacles = tuple(str(obstacle["code"]) for obstacle in about["way_back"]["obstacles"])
    shown = (tuple(about["accepted"]), obstacles, tuple(about.get("together") or ()))
    if (found.accepted, found.obstacles, found.together) == shown or is_needed(found):
        return found
    # The task was cleared, and what the plan will show now is what counts.
    _end(member, found, UNTOUCHED, reason="begun again, with another way back")
    return begin(member.checkpoint, member.repository, member.name, upgrade_id, **about)


def _end(member: Member, upgrade: Upgrade, kind: str, *, reason: str) -> None:
    end_upgrade(member.repository, upgrade, kind=kind, made_by=upgrade.upgrade_id, reason=reason)


def keep_all(members: Sequence[Member], upgrades: Sequence[Upgrade]) -> list[Upgrade]:
    """Note that the new code is kept: the first stream by name decides, the others follow.

    :raises RefusedError: the new code of one of them was not released, or cannot run: it is sealed by this upgrade; one of them
        was undone, or its way back has begun.
    """
    if not is_kept(upgrades):
        for member, upgrade in zip(members, upgrades, strict=True):
            _check_kept(member, upgrade)
    found = dict(zip((member.name for member in members), upgrades, strict=True))
    for member in sorted(members, key=lambda member: member.name):
        upgrade = found[member.name]
        found[member.name] = note(
            member.repository, upgrade, Event.KEPT, downtime=downtime_of(upgrade, member.checkpoint)
        )
    return [found[member.name] for member in members]


def _check_kept(member: Member, upgrade: Upgrade) -> None:
    check_step(upgrade, Event.KEPT)
    if not upgrade.has(Event.RELEASED):
        raise RefusedError(
            f"upgrade {upgrade.upgrade_id} of {member.name} is not kept: the new code was never let start",
            hint="clear the run from its task `release` on",
        )
    mark = read_seal(member.checkpoint.location)
    if mark and mark.plan_id in upgrade.plan_ids:
        raise RefusedError(
            f"upgrade {upgrade.upgrade_id} of {member.name} is not kept: {member.checkpoint.location}/{mark.path} is its seal, "
            "under which no Spark starts",
            hint="clear the run from its task `take_back` on; or from `release` on, if the way back has not begun",
        )


def is_kept(upgrades: Sequence[Upgrade]) -> bool:
    """Whether it was decided that the new code is kept."""
    return min(upgrades, key=lambda upgrade: upgrade.name).has(Event.KEPT)


def goes_back(upgrades: Sequence[Upgrade]) -> bool:
    """Whether it was decided that the old code comes back."""
    return any(upgrade.has(Event.GOING_BACK) or upgrade.has(Event.BACK) for upgrade in upgrades)


def has_to_go_back(members: Sequence[Member], upgrade_id: str) -> list[Upgrade]:
    """The upgrades of this run, where any has to be put back; none where the new code is kept, or nothing was changed."""
    newest = (newest_upgrade(member.repository, member.name) for member in members)
    found = [upgrade for upgrade in newest if upgrade and upgrade.upgrade_id == upgrade_id and upgrade.is_open]
    return found if found and not is_kept(found) and any(map(is_needed, found)) else []


def decide_to_go_back(members: Sequence[Member], upgrade_id: str) -> list[Upgrade]:
    """Note that the upgrades of this run are put back, where any has to be; from here on none of them is kept.

    :return: as :func:`has_to_go_back`.
    :raises RefusedError: meanwhile it was decided that the new code is kept.
    """
    records = {member.name: member.repository for member in members}
    return begin_way_back([(records[upgrade.name], upgrade) for upgrade in has_to_go_back(members, upgrade_id)])


def end_all(
    members: Sequence[Member], upgrades: Sequence[Upgrade], *, reason: str, facts: Mapping[str, Any]
) -> Outcome:
    """Say how an upgrade has ended, and leave the streams to the next one; where it is unfinished they stay taken.

    :param reason: why the application was upgraded, for the audit records.
    :param facts: what else these keep.
    """
    if is_kept(upgrades):
        upgrades = keep_all(members, upgrades)  # the run was killed before all had the note
    found = {m.name: outcome_of(upgrade, m.checkpoint) for m, upgrade in zip(members, upgrades, strict=True)}
    joint = _joint(found)
    if joint.kind != HALF_WAY:
        for member, upgrade in zip(members, upgrades, strict=True):
            outcome = found[member.name]
            about = {**facts, "checkpoint": member.checkpoint.location.uri, "outcome": outcome.to_json()}
            end_upgrade(
                member.repository, upgrade, kind=outcome.kind, made_by=upgrade.upgrade_id, reason=reason, **about
            )
    return joint


def _joint(outcomes: Mapping[str, Outcome]) -> Outcome:
    """One outcome of all: the worst of them."""
    if len(outcomes) == 1:
        return next(iter(outcomes.values()))
    kinds = {outcome.kind for outcome in outcomes.values()}
    kind = next(each for each in (HALF_WAY, KEPT, TAKEN_BACK, UNTOUCHED) if each in kinds)
    downtimes = [outcome.downtime for outcome in outcomes.values() if outcome.downtime is not None]
    return Outcome(
        kind,
        "\n\n".join(f"{name}: {outcome.message}" for name, outcome in outcomes.items()),
        tuple(command for outcome in outcomes.values() for command in outcome.commands),
        max(downtimes, default=None),
        next((outcome.clear for outcome in outcomes.values() if outcome.clear and outcome.kind == kind), None),
    )
