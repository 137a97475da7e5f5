"""Carrying an expire out: manifests go, objects stay until a prune.

Stopped anywhere, the backups that are left are all whole, and the same command again continues. A hold set while this runs
counts: both write the next number of the same row of notes, and only one can. So does another expire: see :class:`_Expire`. The
notes are read again before each deletion, for somebody may have taken this expire for dead.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_ckpt_provider.backup.claims import tidy_claims
from airflow_ckpt_provider.backup.expire_plan import Decision, ExpirePlan, check_kept
from airflow_ckpt_provider.backup.manifest import manifest_path
from airflow_ckpt_provider.backup.notes import Hold, HoldEvent, forget_notes, hold_of, holds, write_event
from airflow_ckpt_provider.backup.records import new_plan_id
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import RefusedError

log = logging.getLogger(__name__)

#: Kind of the audit record that names, in ``removing``, what an expire is about to remove of the streams of one name. It explains
#: what is missing where the expire was killed before it wrote its own record.
EXPIRE_BEGUN = "expire begun"

#: Kind of the audit record of a whole expire. It ends those of the kind above: what it names in ``removed`` is explained, and
#: they explain nothing any more.
EXPIRE = "expire"

#: Key of that record where the expire was stopped by an error: the store may have removed more than it has answered.
STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ExpireOutcome:
    """An expire that was carried out.

    :param removed: backups that are gone, ``(name, backup id)``.
    :param held_meanwhile: backups that were to go and were held while this ran.
    """

    plan_id: str
    removed: tuple[tuple[str, str], ...]
    held_meanwhile: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON."""
        return {
            "plan_id": self.plan_id,
            "removed": listed(self.removed),
            "held_meanwhile": listed(self.held_meanwhile),
        }


def apply_expire(repository: Repository, plan: ExpirePlan, *, made_by: str = "", reason: str = "") -> ExpireOutcome:
    """Remove the manifests that a plan lets go, oldest first.

    :param plan: from :func:`~airflow_ckpt_provider.backup.expire_plan.plan_expire`.
    :param made_by: the run or user that does it.
    :param reason: why, for the audit record.
    :raises RefusedError: no whole backup of a stream would be left: what would stay was found damaged or removed since the plan
        was made, or another expire removes it. Nothing of that stream is removed, or nothing more.
    :raises StorageError: reading or writing failed; the same command again continues.
    """
    names = list(dict.fromkeys(d.backup.name for d in plan.going))
    for name in names:
        check_kept(repository, plan, name=name)
    repository.refuse_unsigned()
    expire = _Expire(repository, plan, new_plan_id(), made_by, reason)
    ended = False
    try:
        for name in names:
            expire.carry_out(name)
        ended = True
    except RefusedError:
        ended = True
        raise
    finally:
        outcome = expire.outcome
        if expire.begun:  # also where nothing was removed: what was to go and has not gone is not explained then
            facts = outcome.to_json() if ended else {**outcome.to_json(), STOPPED: True}
            expire.record(outcome.plan_id, EXPIRE, facts, outcome.removed)
    return outcome


def listed(backups: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Names and ids as plain JSON."""
    return [{"name": name, "backup_id": backup_id} for name, backup_id in backups]


@dataclass(slots=True)
class _Expire:
    """An expire under way."""

    repository: Repository
    plan: ExpirePlan
    plan_id: str
    made_by: str
    reason: str
    removed: list[tuple[str, str]] = field(default_factory=list)
    spared: list[tuple[str, str]] = field(default_factory=list)
    #: How many records of what it is about to remove it has written.
    begun: int = 0

    @property
    def outcome(self) -> ExpireOutcome:
        return ExpireOutcome(self.plan_id, tuple(self.removed), tuple(self.spared))

    def carry_out(self, name: str) -> None:
        """Remove the backups of one name that the plan removes.

        Each expire first says of all of it that it goes, and then sees that a whole backup stays of which nobody says that. Of
        two that would remove what the other one keeps, at least the one that looks last sees the other's word. It reads again
        before each deletion.
        """
        repository = self.repository
        going = [d for d in reversed(self.plan.going) if d.backup.name == name]
        now = holds(repository, name)
        try:
            for decision in going:
                self._announce(decision, now.get(decision.backup.backup_id))
            now = holds(repository, name)
            check_kept(repository, self.plan, name=name, hold_of=now.get)
            going_now = [i for i in (d.backup.backup_id for d in going) if self._goes(name, i, now.get(i))]
            if going_now:
                self._remove(name, going_now, {d.backup.claim for d in going})
        except RefusedError:
            for decision in going:
                if (name, decision.backup.backup_id) not in self.removed:
                    self._take_back(name, decision.backup.backup_id)
            raise

    def _remove(self, name: str, going: Sequence[str], claims: Collection[str]) -> None:
        """Remove manifests, looking again before each of them.

        :param claims: ids of the claims of the backups that go.
        """
        repository = self.repository
        keys = [(name, backup_id) for backup_id in going]
        # By its name it comes before the record of the whole expire, which follows it in the chain.
        self.record(f"{self.plan_id}-{self.begun:04d}", EXPIRE_BEGUN, {"removing": listed(keys)}, keys)
        self.begun += 1
        # A claim whose manifest is gone would look like a backup that is about to write it.
        tidy_claims(repository, name, finished=claims)
        gone: list[str] = []
        try:
            for backup_id in going:
                check_kept(
                    repository,
                    self.plan,
                    name=name,
                    hold_of=lambda kept: hold_of(repository, name, kept),
                    left="what is left of it stays" if gone else "nothing of it was removed",
                )
                if self._goes(name, backup_id, hold_of(repository, name, backup_id)):
                    repository.location.delete(manifest_path(name, backup_id))
                    self.removed.append((name, backup_id))
                    gone.append(backup_id)
        except RefusedError:
            forget_notes(repository, name, gone)
            raise
        forget_notes(repository, name, gone)

    def _goes(self, name: str, backup_id: str, now: Hold | None) -> bool:
        """Whether a backup still goes, by the newest word on it."""
        if self._says(now):
            return True
        log.info("backup %s of %s was held meanwhile: it stays", backup_id, name)
        self.spared.append((name, backup_id))
        return False

    def _says(self, now: Hold | None) -> bool:
        """Whether the newest word on a backup is also this expire's, that it goes."""
        return now is not None and now.event is HoldEvent.GOING and self.plan_id in now.expires

    def _take_back(self, name: str, backup_id: str) -> None:
        """Remove the note that a backup is being removed. Where other expires say it too, it continues to say so of them."""
        while (now := hold_of(self.repository, name, backup_id)) and self._says(now):
            others = tuple(each for each in now.expires if each != self.plan_id)
            event = HoldEvent.GOING if others else HoldEvent.RELEASED
            reason = f"expire {', '.join(others) or self.plan_id}"
            if write_event(self.repository, name, backup_id, now, event, reason, self.made_by, others):
                return

    def record(self, plan_id: str, kind: str, facts: dict[str, Any], backups: Sequence[tuple[str, str]]) -> None:
        """Write an audit record, with the numbers of the backups that it is about: a check goes by them."""
        numbers = {(d.backup.name, d.backup.backup_id): d.backup.sequence for d in self.plan.going}
        sequences = {n: sorted(numbers[key] for key in backups if key[0] == n) for n in {n for n, _ in backups}}
        who = {"kind": kind, "made_by": self.made_by, "reason": self.reason, "policy": self.plan.policy.to_json()}
        self.repository.record(plan_id, {**who, **facts, "sequences": sequences})

    def _announce(self, decision: Decision, last: Hold | None) -> None:
        """Say that a backup goes, so that nobody holds it from now on; does nothing if somebody has.

        Also where another expire says so, or one that was stopped: it may withdraw its note. Its id stays in the note.
        """
        b = decision.backup
        while last is None or last.event is not HoldEvent.HELD:
            others = last.expires if last and last.event is HoldEvent.GOING else ()
            reason, expires = f"expire {self.plan_id}", (*others, self.plan_id)
            if write_event(self.repository, b.name, b.backup_id, last, HoldEvent.GOING, reason, self.made_by, expires):
                return
            last = hold_of(self.repository, b.name, b.backup_id)  # somebody was faster
