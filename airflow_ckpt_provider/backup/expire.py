"""Carrying an expire out: manifests go, objects stay until a prune.

Stopped anywhere, the backups that are left are all whole, and the same command again goes on. A hold set while this runs
counts: both write the next number of the same row of notes, and only one can. So does another expire: see :class:`_Expire`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_ckpt_provider.backup.claims import tidy_claims
from airflow_ckpt_provider.backup.expire_plan import Decision, ExpirePlan, check_kept
from airflow_ckpt_provider.backup.manifest import manifest_path
from airflow_ckpt_provider.backup.notes import Hold, HoldEvent, forget_notes, holds, write_event
from airflow_ckpt_provider.backup.repository import Repository, new_plan_id
from airflow_ckpt_provider.errors import RefusedError

log = logging.getLogger(__name__)

#: Kind of the audit record that names, in ``removing``, what an expire is about to remove of the streams of one name. It explains
#: what is missing where the expire was killed before it wrote its own record.
EXPIRE_BEGUN = "expire begun"


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
        was made, or another expire removes it. Nothing of that stream is removed.
    :raises StorageError: reading or writing failed; the same command again goes on.
    """
    names = list(dict.fromkeys(d.backup.name for d in plan.going))
    for name in names:
        check_kept(repository, plan, name=name)
    repository.refuse_unsigned()
    expire = _Expire(repository, plan, new_plan_id(), made_by, reason)
    try:
        for name in names:
            expire.carry_out(name)
    finally:
        outcome = expire.outcome
        if outcome.removed:
            expire.record(outcome.plan_id, "expire", outcome.to_json(), outcome.removed)
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

    @property
    def outcome(self) -> ExpireOutcome:
        return ExpireOutcome(self.plan_id, tuple(self.removed), tuple(self.spared))

    def carry_out(self, name: str) -> None:
        """Remove what goes of the streams of a name.

        Each expire first says of all of it that it goes, and then sees that a whole backup stays of which nobody says that. Of
        two that would remove what the other one keeps, at least the one that looks last sees the other's word.
        """
        repository = self.repository
        going = [d for d in reversed(self.plan.going) if d.backup.name == name]
        now = holds(repository, name)
        said: dict[str, Hold] = {}
        try:
            for decision in going:
                if event := self._announce(decision, now.get(decision.backup.backup_id)):
                    said[decision.backup.backup_id] = event
            now = holds(repository, name)
            others = {i for i, hold in now.items() if hold.event is HoldEvent.GOING and i not in said}
            check_kept(repository, self.plan, name=name, going=others)
        except RefusedError:
            for backup_id, event in said.items():  # unless somebody has said something since
                write_event(
                    repository, name, backup_id, event, HoldEvent.RELEASED, f"expire {self.plan_id}", self.made_by
                )
            raise
        going_now = []
        for backup_id in (d.backup.backup_id for d in going):
            hold = now.get(backup_id)
            if backup_id in said and hold is not None and hold.event is HoldEvent.GOING:
                going_now.append((name, backup_id))
            else:
                log.info("backup %s of %s was held meanwhile: it stays", backup_id, name)
                self.spared.append((name, backup_id))
        if not going_now:
            return
        # By its name it comes before the record of the whole expire, which follows it in the chain.
        number = len({n for n, _ in self.removed})
        self.record(f"{self.plan_id}-{number:04d}", EXPIRE_BEGUN, {"removing": listed(going_now)}, going_now)
        # A claim whose manifest is gone would look like a backup that is about to write it.
        tidy_claims(repository, name, finished={d.backup.claim for d in going})
        for key in going_now:
            repository.location.delete(manifest_path(*key))
            self.removed.append(key)
        forget_notes(repository, name, [backup_id for _, backup_id in going_now])

    def record(self, plan_id: str, kind: str, facts: dict[str, Any], backups: Sequence[tuple[str, str]]) -> None:
        """Write an audit record, with the numbers of the backups that it is about: a check goes by them."""
        numbers = {(d.backup.name, d.backup.backup_id): d.backup.sequence for d in self.plan.going}
        sequences = {n: sorted(numbers[key] for key in backups if key[0] == n) for n in {n for n, _ in backups}}
        who = {"kind": kind, "made_by": self.made_by, "reason": self.reason, "policy": self.plan.policy.to_json()}
        self.repository.record(plan_id, {**who, **facts, "sequences": sequences})

    def _announce(self, decision: Decision, last: Hold | None) -> Hold | None:
        """Say that a backup goes, so that nobody holds it from now on; ``None`` if somebody has.

        Also where another expire says so, or one that was stopped: it may take its word back.
        """
        b = decision.backup
        while last is None or last.event is not HoldEvent.HELD:
            reason = f"expire {self.plan_id}"
            if event := write_event(self.repository, b.name, b.backup_id, last, HoldEvent.GOING, reason, self.made_by):
                return event
            last = holds(self.repository, b.name).get(b.backup_id)  # somebody was faster
        return None
