"""Carrying a repair out, under the seal.

The plan is kept in the repository before the seal is set, and the seal is the newest file in ``offsets/`` from the first change
to the last: no Spark starts from a half-repaired checkpoint. Killed anywhere, the same command again finds the seal, reads
the plan, and finishes.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.sealing import put_seal, remove_seal
from airflow_ckpt_provider.backup.set_aside import SetAside
from airflow_ckpt_provider.backup.target import check_at_rest, look_at
from airflow_ckpt_provider.backup.transfer import WORKERS, in_parallel
from airflow_ckpt_provider.backup.verify import content_damage
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.doctor import check
from airflow_ckpt_provider.checkpoint.doctor.examination import examine
from airflow_ckpt_provider.checkpoint.findings import Severity
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.seal import Seal, parse_seal
from airflow_ckpt_provider.errors import RefusedError, SealedError, StorageError
from airflow_ckpt_provider.recovery.repair import plan_path, repair_place
from airflow_ckpt_provider.recovery.repair_plan import RepairPlan
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

    :param plan: from :func:`~airflow_ckpt_provider.recovery.repair.plan_repair`.
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
    with suppress(FileExistsError):  # gone on with
        kept_in.location.create(plan_path(plan.plan_id), json.dumps(plan.document()).encode())
    aside = SetAside(kept_in, plan.name, plan.plan_id, "checkpoint")
    mark = _seal(plan, location, aside, quiet_for=quiet_for, made_by=made_by)
    touched = {*plan.deletes, *plan.rewrites, *(entry.path for entry, _ in plan.fetches)}
    aside.keep(location, [file for path, file in location.walk().items() if path in touched], workers=workers)
    _write(plan, kept_in, location, workers)
    _delete(plan, location, workers)
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
    """Seal the checkpoint above everything that is there or will be written, and see that it still is the one planned for."""
    now = look_at(location)
    if now.seal and now.seal.plan_id != plan.plan_id:
        raise SealedError(
            f"{location} was sealed by plan {now.seal.plan_id} ({now.seal.reason}) in the meantime",
            hint="let that plan finish first",
        )
    if now.seal is None:
        if now.fingerprint != plan.fingerprint:
            raise _moved_on(plan, location)
        check_at_rest(now, quiet_for=quiet_for)
        try:
            mark = put_seal(
                location, now.newest_offsets + 1, plan_id=plan.plan_id, reason=plan.seal_reason, made_by=made_by
            )
        except FileExistsError:
            raise _moved_on(plan, location) from None
    else:
        mark = now.seal
        _remove_lower_seals(location, mark)
    if aside.sizes is None and look_at(location).fingerprint != plan.fingerprint:
        remove_seal(location, mark)
        raise _moved_on(plan, location)
    written = (batch_id_of(e.path.partition("/")[2]) for e, _ in plan.fetches if e.path.startswith(f"{OFFSETS}/"))
    highest = max((number for number in written if number is not None), default=-1)
    if mark.batch_id <= highest:
        higher = put_seal(location, highest + 1, plan_id=plan.plan_id, reason=plan.seal_reason, made_by=made_by)
        remove_seal(location, mark)
        return higher
    return mark


def _remove_lower_seals(location: Location, mark: Seal) -> None:
    """Take away a lower seal of the same plan, as a repair leaves one that is stopped while it puts its seal higher."""
    numbers = (batch_id_of(path.partition("/")[2]) for path in location.walk(OFFSETS))
    for number in sorted((n for n in numbers if n is not None and n < mark.batch_id), reverse=True):
        lower = parse_seal(location.read(f"{OFFSETS}/{number}"), batch_id=number)
        if lower is None or lower.plan_id != mark.plan_id:
            return
        remove_seal(location, lower)


def _moved_on(plan: RepairPlan, location: Location) -> RefusedError:
    return RefusedError(
        f"{location} is not any more what plan {plan.plan_id} was made for; nothing was changed",
        hint="stop the query, then make a new plan",
    )


def _write(plan: RepairPlan, repository: Repository, location: Location, workers: int) -> None:
    def fetch(path: str) -> None:
        entry = by_path[path]
        content = repository.location.read(entry.object)
        if damage := content_damage(entry, content):
            raise StorageError(
                f"{damage.message}; it was right when the plan was made",
                hint="the checkpoint stays sealed; mend the store, then run the same command again",
            )
        _replace(location, path, content)

    by_path = {entry.path: entry for entry, _ in plan.fetches}
    in_parallel(fetch, sorted(by_path), workers=workers)
    for path, content in sorted(plan.rewrites.items()):
        _replace(location, path, content)


def _replace(location: Location, path: str, content: bytes) -> None:
    _delete_hidden_checksum(location, path)
    location.replace(path, content)


def _delete(plan: RepairPlan, location: Location, workers: int) -> None:
    """Delete what goes, in the order that is loud by itself: first the entries of ``offsets/`` but the newest, that one last."""
    offsets = sorted(
        (p for p in plan.deletes if p.startswith(f"{OFFSETS}/")), key=lambda p: p.rpartition("/")[2].zfill(20)
    )
    for path in reversed(offsets[:-1]):
        _remove(location, path)
    in_parallel(lambda path: _remove(location, path), sorted(set(plan.deletes) - set(offsets)), workers=workers)
    for path in offsets[-1:]:
        _remove(location, path)


def _remove(location: Location, path: str) -> None:
    location.delete(path)
    _delete_hidden_checksum(location, path)


def _delete_hidden_checksum(location: Location, path: str) -> None:
    """Hadoop's own checksum of a local file; left behind it would speak of a file to come."""
    if location.store.protocol == "file":
        directory, _, name = path.rpartition("/")
        location.delete(f"{directory}/.{name}.crc" if directory else f".{name}.crc")


def _check(plan: RepairPlan, checkpoint: Checkpoint) -> None:
    """See that nothing is left that would stop or mislead Spark."""
    seen = examine(checkpoint.tree())
    left = [f for f in check(seen) if f.severity in (Severity.SILENT, Severity.ERROR)]
    if left:
        raise StorageError(
            f"{checkpoint.location} is not whole after the repair: {left[0].message}",
            hint=f"it stays sealed by plan {plan.plan_id}; see who else writes there, then run the same command again",
        )
