"""Carrying an expire out: manifests go, objects stay until a prune.

Stopped anywhere, the backups that are left are all whole, and the same command again goes on. A hold set while this runs
counts: both write the next number of the same row of notes, and only one can.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.claims import tidy_claims
from airflow_ckpt_provider.backup.expire_plan import Decision, ExpirePlan, check_damage
from airflow_ckpt_provider.backup.manifest import manifest_path
from airflow_ckpt_provider.backup.notes import Hold, HoldEvent, forget_notes, holds, write_event
from airflow_ckpt_provider.backup.repository import Repository, new_plan_id

log = logging.getLogger(__name__)


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

        def listed(backups: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
            return [{"name": name, "backup_id": backup_id} for name, backup_id in backups]

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
    :raises RefusedError: backups were found damaged since the plan was made, and no whole one would be left of a stream.
    :raises StorageError: reading or writing failed; the same command again goes on.
    """
    check_damage(repository, plan)
    repository.refuse_unsigned()
    plan_id = new_plan_id()
    removed: list[tuple[str, str]] = []
    spared: list[tuple[str, str]] = []
    for name in dict.fromkeys(d.backup.name for d in plan.going):
        going = [d for d in reversed(plan.going) if d.backup.name == name]
        # A claim whose manifest is gone would look like a backup that is about to write it.
        tidy_claims(repository, name, finished={d.backup.claim for d in going})
        now = holds(repository, name)
        for decision in going:
            key = (name, decision.backup.backup_id)
            if not _announce(repository, decision, plan_id, made_by, now.get(decision.backup.backup_id)):
                log.info("backup %s of %s was held meanwhile: it stays", key[1], name)
                spared.append(key)
                continue
            repository.location.delete(manifest_path(*key))
            removed.append(key)
        forget_notes(repository, name, [backup_id for n, backup_id in removed if n == name])
    outcome = ExpireOutcome(plan_id, tuple(removed), tuple(spared))
    if removed:
        facts = {"kind": "expire", "made_by": made_by, "reason": reason, "policy": plan.policy.to_json()}
        numbers = {(d.backup.name, d.backup.backup_id): d.backup.sequence for d in plan.going}
        sequences = {n: sorted(numbers[key] for key in removed if key[0] == n) for n in {n for n, _ in removed}}
        repository.record(plan_id, {**facts, **outcome.to_json(), "sequences": sequences})
    return outcome


def _announce(repository: Repository, decision: Decision, plan_id: str, made_by: str, last: Hold | None) -> bool:
    """Say that a backup goes, so that nobody holds it from now on; false if somebody has."""
    b = decision.backup
    while last is None or last.event is HoldEvent.RELEASED:
        if write_event(repository, b.name, b.backup_id, last, HoldEvent.GOING, f"expire {plan_id}", made_by):
            return True
        last = holds(repository, b.name).get(b.backup_id)  # somebody was faster
    return last.event is HoldEvent.GOING  # another expire says so, or one that was stopped
