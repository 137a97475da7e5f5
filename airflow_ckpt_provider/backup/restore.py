"""Carrying out a restore, under the seal.

The order is what makes it safe (``docs/design.md``): at every moment the newest file in ``offsets/`` is the seal, so no Spark
starts; and within that, ``offsets/<N-1>``, without which no Spark starts either, is written last. Killed anywhere,
the target is as before, or refuses to start; the same command again finishes the work.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.manifest import FileEntry
from airflow_ckpt_provider.backup.restore_plan import RestorePlan, plan_restore, refuse_damage
from airflow_ckpt_provider.backup.safety import keep_what_is_there, kept_for
from airflow_ckpt_provider.backup.sealing import put_seal, remove_seal
from airflow_ckpt_provider.backup.target import check_at_rest, look_at, wait_until_at_rest
from airflow_ckpt_provider.backup.transfer import WORKERS, Meter, OnProgress, in_parallel
from airflow_ckpt_provider.backup.verify import check_contents, content_damage
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import RefusedError, SealedError, StorageError
from airflow_ckpt_provider.plan import Verdict

__all__ = ["RestoreOutcome", "RestorePlan", "apply_restore", "plan_restore"]

log = logging.getLogger(__name__)

#: How long a sealed query may take to finish its batch, seconds.
STOP_WITHIN = 600.0


@dataclass(frozen=True, slots=True)
class RestoreOutcome:
    """A restore that was carried out.

    :param kept: where what was replaced is kept, or ``None`` if there was nothing.
    :param already_done: nothing had to be done.
    """

    plan_id: str
    backup_id: str
    target: str
    batch_id: int
    files: int
    bytes: int
    seconds: float
    kept: str | None
    already_done: bool

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"seconds": round(self.seconds, 3)}


def apply_restore(
    plan: RestorePlan,
    *,
    made_by: str = "",
    reason: str = "",
    workers: int = WORKERS,
    on_progress: OnProgress | None = None,
    accept_sink: bool = False,
) -> RestoreOutcome:
    """Carry a restore out.

    :param plan: from :func:`plan_restore`.
    :param made_by: the run or user that restores.
    :param reason: why, for the audit record.
    :param workers: requests under way at once.
    :param on_progress: called after each file that was written.
    :param accept_sink: go on though the sink says that it will skip or double rows.
    :raises DamagedBackupError: an object is not what was backed up; nothing was changed.
    :raises RefusedError: the target is in use, or is not any more what the plan was made for; nothing was changed.
    :raises StorageError: reading or writing failed; the target is sealed, and the same command again finishes.
    """
    began = time.monotonic()
    if plan.already_done:
        return _outcome(plan, began, kept=None)
    if plan.sink and plan.sink[0] in (Verdict.WILL_SKIP, Verdict.WILL_DUPLICATE) and not accept_sink:
        raise RefusedError(
            f"the sink says {plan.sink[0].value} for a start after batch {plan.batch_id}: {'; '.join(plan.sink[1])}",
            hint="go back with the sink (`airflow-ckpt rewind CHECKPOINT --to-batch "
            f"{plan.batch_id} --repository REPOSITORY --sink SINK --sink-exit rollback`), or accept it (--accept-sink)",
        )
    problems = check_contents(plan.repository, list(plan.entries), workers=workers)
    refuse_damage(plan.manifest, [damage.message for damage in problems])
    seal = _seal(plan, made_by)
    kept = _keep(plan, made_by)
    _clear(plan, seal, workers)
    _write(plan, workers, on_progress)
    _check(plan, seal)
    facts = {"made_by": made_by, "reason": reason, "kept": kept, "plan": plan.to_json()}
    plan.repository.record(plan.plan_id, {"kind": "restore", **facts})
    # Performed last: until now no Spark could start from the target.
    remove_seal(plan.target.location, seal)
    log.info("%s restored to batch %d of %s; seal lifted", plan.target.location, plan.batch_id, plan.manifest.backup_id)
    return _outcome(plan, began, kept=kept)


def _outcome(plan: RestorePlan, began: float, *, kept: str | None) -> RestoreOutcome:
    return RestoreOutcome(
        plan_id=plan.plan_id,
        backup_id=plan.manifest.backup_id,
        target=plan.target.location.uri,
        batch_id=plan.batch_id,
        files=len(plan.entries),
        bytes=plan.bytes,
        seconds=time.monotonic() - began,
        kept=kept,
        already_done=plan.already_done,
    )


def _seal(plan: RestorePlan, made_by: str) -> Seal:
    """Seal the target with a number that stays the highest in ``offsets/`` until the end, and look again."""
    place = plan.target.location
    now = look_at(place)
    if now.seal:
        if now.seal.plan_id != plan.plan_id:
            raise SealedError(
                f"{place} was sealed by plan {now.seal.plan_id} ({now.seal.reason}) in the meantime",
                hint="let that plan finish first",
            )
        seal = now.seal
    else:
        # What runs may go on until the seal stops it; but a place planned as empty holds nothing anybody agreed to lose.
        may_move = plan.seal_running and plan.replacing
        if now.fingerprint != plan.target.fingerprint and not may_move:
            raise RefusedError(
                f"{place} is not any more what plan {plan.plan_id} was made for; nothing was changed",
                hint="make a new plan, and stop the query before",
            )
        if not plan.seal_running:
            check_at_rest(now, quiet_for=plan.quiet_for)
        first = plan.batch_id + 1 if now.is_empty else now.newest_offsets + 1
        seal = _put_above(plan, first, made_by)
    if not now.is_empty and plan.seal_running:
        wait_until_at_rest(place, quiet_for=plan.quiet_for, at_most=STOP_WITHIN)
    if seal.batch_id <= plan.batch_id:
        higher = put_seal(place, plan.batch_id + 1, plan_id=plan.plan_id, reason=plan.reason, made_by=made_by)
        remove_seal(place, seal)
        seal = higher
    return seal


def _put_above(plan: RestorePlan, number: int, made_by: str) -> Seal:
    for candidate in range(number, number + 50):
        try:
            return put_seal(plan.target.location, candidate, plan_id=plan.plan_id, reason=plan.reason, made_by=made_by)
        except FileExistsError:
            log.info("offsets/%d appeared: the stream was faster; taking the next number", candidate)
    raise RefusedError(f"{plan.target.location} could not be sealed: the stream is too fast", hint="stop it first")


def _keep(plan: RestorePlan, made_by: str) -> str | None:
    if not plan.replacing:
        return None
    if plan.target.is_empty:  # emptied by an attempt before this one
        return kept_for(plan.repository, name=plan.manifest.name, plan_id=plan.plan_id)
    there = look_at(plan.target.location)
    kept = keep_what_is_there(plan.repository, there, name=plan.manifest.name, plan_id=plan.plan_id, made_by=made_by)
    log.info("what was at %s is kept: %s", plan.target.location, kept)
    return kept


def _clear(plan: RestorePlan, seal: Seal, workers: int) -> None:
    """Delete what is there but the seal; first the entry without which no Spark starts."""
    place = plan.target.location
    paths = sorted(path for path in place.walk() if path != seal.path)
    offsets = sorted((p for p in paths if p.startswith(f"{OFFSETS}/")), key=lambda p: p.rpartition("/")[2].zfill(20))
    for path in (*offsets[-2:-1], *offsets[:-2], *offsets[-1:]):
        place.delete(path)
    in_parallel(place.delete, sorted(set(paths) - set(offsets)), workers=workers)
    place.remove_empty_directories()


def _write(plan: RestorePlan, workers: int, on_progress: OnProgress | None) -> None:
    """Write the files in the order that is loud by itself: the entry that a start needs comes last."""
    meter = Meter(on_progress, files=len(plan.entries), size=plan.bytes)
    by_path = {entry.path: entry for entry in plan.entries}
    n = plan.batch_id
    first = [by_path.pop(path) for path in (f"{OFFSETS}/{n}", METADATA_FILE, f"{COMMITS}/{n}")]
    gates = [by_path.pop(path) for path in sorted(by_path) if path.startswith(f"{OFFSETS}/")]

    def write(entry: FileEntry) -> None:
        _write_one(plan, entry)
        meter.add(plan.size_of(entry))

    for entry in first:
        write(entry)
    in_parallel(write, by_path.values(), workers=workers)
    log.info("writing %s last: a restore that stops before it cannot be started", ", ".join(e.path for e in gates))
    for entry in gates:
        write(entry)


def _write_one(plan: RestorePlan, entry: FileEntry) -> None:
    repository, target = plan.repository.location, plan.target.location
    rewritten = plan.rewritten.get(entry.path)
    if rewritten is not None:
        target.replace(entry.path, rewritten)
        return
    if entry.checksum is not None and target.store.copies_within and target.store.same_as(repository.store):
        target.store.copy((repository / entry.object).root, (target / entry.path).root, entry.size)
        return
    content = repository.read(entry.object)
    if damage := content_damage(entry, content):
        raise StorageError(
            f"{damage.message}; it was right when the restore began",
            hint="the target stays sealed; mend the store, then run the same command again",
        )
    target.replace(entry.path, content)


def _check(plan: RestorePlan, seal: Seal) -> None:
    """Look at what was written: exactly the files of the plan, and for Spark a whole closure of the batch."""
    there = look_at(plan.target.location)
    wanted = {entry.path: plan.size_of(entry) for entry in plan.entries}
    found = {path: file.size for path, file in there.visible.items()}
    differing = sorted(path for path in {*wanted, *found} if wanted.get(path) != found.get(path))
    if differing:
        raise StorageError(
            f"{plan.target.location}/{differing[0]} is not what was written ({len(differing)} files differ)",
            hint=f"the target stays sealed by plan {plan.plan_id}; see who else writes there, then run the same command again",
        )
    for entry in plan.entries:
        # Copied by the store: its checksum has to be the object's, or else the content is read.
        copied = entry.checksum is not None and entry.path not in plan.rewritten
        if copied and there.visible[entry.path].checksum != entry.checksum:
            copy, original = plan.target.location.read(entry.path), plan.repository.location.read(entry.object)
            if copy != original:
                raise StorageError(
                    f"{plan.target.location}/{entry.path} is not what {entry.object} holds: the store copied it wrongly",
                    hint="the target stays sealed; run the same command again",
                )
    closure = Checkpoint.at(plan.target.location).closure(plan.batch_id)
    if {file.path for file in closure.files} != set(wanted):
        raise StorageError(
            f"{plan.target.location} does not read back as batch {plan.batch_id} of the backup",
            hint=f"the target stays sealed by plan {plan.plan_id}; this is a defect: please report it",
        )
