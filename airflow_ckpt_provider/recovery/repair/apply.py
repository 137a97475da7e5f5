"""Carrying a repair out, under the seal.

The plan is kept in the repository before the seal is set, and the seal is the newest file in ``offsets/`` from the first change
to the last: no Spark starts from a half-repaired checkpoint. Killed anywhere, the same command again finds the seal, reads
the plan, and finishes.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.claims import entries_in_use
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.transfer import WORKERS, in_parallel
from airflow_ckpt_provider.backup.verify import read_whole
from airflow_ckpt_provider.change.fail_closed_order import delete_files, write_file
from airflow_ckpt_provider.change.plan_seal import raise_above, seal_for_plan
from airflow_ckpt_provider.change.sealing import remove_seal
from airflow_ckpt_provider.change.set_aside import SetAside
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.doctor import check
from airflow_ckpt_provider.checkpoint.doctor.examination import examine
from airflow_ckpt_provider.checkpoint.findings import Severity
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.recovery.repair.plan import RepairPlan
from airflow_ckpt_provider.recovery.repair.planning import repair_place
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RepairOutcome:
    """A repair that was carried out.

    :param plan_id: the plan.
    :param checkpoint: URI of the checkpoint.
    :param batch_id: the batch that the query goes on after.
    :param replayed: how many batches are run again that had been logged or committed.
    :param deleted: files that went.
    :param fetched: files that came from backups.
    :param rewritten: files that were written anew.
    :param kept: where what went is kept; ``None`` where nothing did.
    :param seconds: how long it took.
    :param already_done: nothing had to be done.
    """

    plan_id: str
    checkpoint: str
    batch_id: int
    replayed: int
    deleted: int
    fetched: int
    rewritten: int
    kept: str | None
    seconds: float
    already_done: bool

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"seconds": round(self.seconds, 3)}


def apply_repair(
    plan: RepairPlan,
    checkpoint: Checkpoint,
    *,
    repository: Repository | None = None,
    quiet_for: float = 5.0,
    made_by: str = "",
    reason: str = "",
    workers: int = WORKERS,
) -> RepairOutcome:
    """Carry a repair out.

    :param plan: from :func:`~airflow_ckpt_provider.recovery.repair.planning.plan_repair`.
    :param checkpoint: the checkpoint that it was made for.
    :param repository: the one that it was made with; keeps what goes, the plan and the audit record. Without one a repository
        is made beside the checkpoint, ``<checkpoint>.repairs``.
    :param quiet_for: seconds without a change after which the checkpoint counts as at rest.
    :param made_by: the run or user that repairs.
    :param reason: why, for the audit record.
    :param workers: requests under way at once.
    :raises RefusedError: it cannot be repaired, is not any more what the plan was made for, or somebody writes to it; nothing
        was changed.
    :raises StorageError: reading or writing failed; the checkpoint stays sealed, and the same command again finishes.
    """
    began = time.monotonic()
    if plan.batch_id is None:
        raise RefusedError(
            f"{checkpoint.location} cannot be repaired: {plan.reasons[0]}", hint=" ".join(plan.reasons[1:]) or None
        )
    if plan.already_done:
        return _outcome(plan, plan.batch_id, began, kept=None)
    location = checkpoint.location
    kept_in = repository or Repository.open_or_create(repair_place(location))
    kept_in.keep_plan(plan.plan_id, plan.document())
    aside = SetAside(kept_in, plan.name, plan.plan_id, "checkpoint")
    mark = _seal(plan, location, aside, quiet_for=quiet_for, made_by=made_by)
    touched = {*plan.deletes, *plan.rewrites, *(entry.path for entry, _ in plan.fetches)}
    aside.keep(location, [file for path, file in location.walk().items() if path in touched], workers=workers)
    with entries_in_use(kept_in, [entry for entry, _ in plan.fetches], what="repair", made_by=made_by):
        _write(plan, kept_in, location, workers)
    delete_files(location, plan.deletes, workers=workers)
    _check(plan, checkpoint)
    facts = {"made_by": made_by, "reason": reason, "checkpoint": plan.checkpoint, "kept": aside.place}
    kept_in.record(plan.plan_id, {"kind": "repair", **facts, "plan": plan.to_json()})
    # Performed last: until now no Spark could start.
    remove_seal(location, mark)
    log.info("%s is repaired: the query goes on after batch %d; seal lifted", location, plan.batch_id)
    return _outcome(plan, plan.batch_id, began, kept=f"{kept_in.location}/{aside.place}")


def _outcome(plan: RepairPlan, batch_id: int, began: float, *, kept: str | None) -> RepairOutcome:
    return RepairOutcome(
        plan_id=plan.plan_id,
        checkpoint=plan.checkpoint,
        batch_id=batch_id,
        replayed=plan.replayed,
        deleted=len(plan.deletes),
        fetched=len(plan.fetches),
        rewritten=len(plan.rewrites),
        kept=kept,
        seconds=time.monotonic() - began,
        already_done=plan.already_done,
    )


def _seal(plan: RepairPlan, location: Location, aside: SetAside, *, quiet_for: float, made_by: str) -> Seal:
    """Seal the checkpoint above everything that is there or will be written."""
    mark = seal_for_plan(
        location,
        plan_id=plan.plan_id,
        reason=plan.seal_reason,
        made_by=made_by,
        fingerprint=plan.fingerprint,
        begun=aside.sizes is not None,
        quiet_for=quiet_for,
    )
    return raise_above(location, mark, (entry.path for entry, _ in plan.fetches), made_by=made_by)


def _write(plan: RepairPlan, repository: Repository, location: Location, workers: int) -> None:
    def fetch(entry: FileEntry) -> None:
        write_file(location, entry.path, read_whole(repository, entry, right_when="the plan was made"))

    in_parallel(fetch, sorted((entry for entry, _ in plan.fetches), key=lambda e: e.path), workers=workers)
    for path, content in sorted(plan.rewrites.items()):
        write_file(location, path, content)


def _check(plan: RepairPlan, checkpoint: Checkpoint) -> None:
    """See that nothing is left that would stop or mislead Spark."""
    seen = examine(checkpoint.tree())
    left = [f for f in check(seen) if f.severity in (Severity.SILENT, Severity.ERROR)]
    if left:
        raise StorageError(
            f"{checkpoint.location} is not whole after the repair: {left[0].message}",
            hint=f"it stays sealed by plan {plan.plan_id}; see who else writes there, then run the same command again",
        )
