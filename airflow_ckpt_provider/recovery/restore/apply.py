"""Carrying out a restore, under the seal.

The order is what makes it safe (``docs/design.md``): at every moment the newest file in ``offsets/`` is the seal, so no Spark
starts; and within that, ``offsets/<N-1>``, without which no Spark starts either, is written last. Killed anywhere,
the target is as before, or refuses to start; the same command again finishes the work.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.claims import in_use
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.file_table import FileTable
from airflow_ckpt_provider.backup.transfer import WORKERS, Meter, OnProgress, in_order
from airflow_ckpt_provider.backup.verify import (
    check_contents,
    check_structure,
    content_damage,
    read_whole,
    refuse_damage,
)
from airflow_ckpt_provider.change.fail_closed_order import clear
from airflow_ckpt_provider.change.plan_seal import STOP_WITHIN, raise_above, seal_for_plan
from airflow_ckpt_provider.change.sealing import remove_seal
from airflow_ckpt_provider.change.target import expect_files, inspect_target, wait_until_at_rest
from airflow_ckpt_provider.checkpoint.closure import resolve_closure
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.recovery.restore.plan import RestorePlan, plan_restore
from airflow_ckpt_provider.recovery.restore.safety import keep_what_is_there, kept_for
from airflow_ckpt_provider.storage.file_set import FileSet
from airflow_ckpt_provider.storage.store import StoredFile
from airflow_ckpt_provider.verdict import Verdict

__all__ = ["RestoreOutcome", "RestorePlan", "apply_restore", "plan_restore"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestoreOutcome:
    """A restore that was carried out.

    :param kept: where what was replaced is kept, or ``None`` if there was nothing.
    :param unchanged: how many of the files were there already, and stayed.
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
    unchanged: int
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
        return _outcome(plan, began, kept=None, unchanged=len(plan.entries))
    if plan.sink and plan.sink[0] in (Verdict.WILL_SKIP, Verdict.WILL_DUPLICATE) and not accept_sink:
        raise RefusedError(
            f"the sink says {plan.sink[0].value} for a start after batch {plan.batch_id}: {'; '.join(plan.sink[1])}",
            hint="go back with the sink (`airflow-ckpt rewind CHECKPOINT --to-batch "
            f"{plan.batch_id} --repository REPOSITORY --sink SINK --sink-exit rollback`), or accept it (--accept-sink)",
        )
    with in_use(plan.repository, plan.manifest, what="restore", made_by=made_by):
        return _carry_out(plan, began, made_by, reason, workers, on_progress)


def _carry_out(
    plan: RestorePlan, began: float, made_by: str, reason: str, workers: int, on_progress: OnProgress | None
) -> RestoreOutcome:
    _check_objects(plan, workers)
    logs = {e.path: e for e in plan.entries if e.path.startswith((f"{OFFSETS}/", f"{COMMITS}/", METADATA_FILE))}
    seal = _seal(plan, logs, made_by)
    kept = _keep(plan, made_by)
    unchanged = _unchanged(plan, workers)
    clear(plan.target.location, seal, keep=unchanged, workers=workers)
    _write(plan, logs, unchanged, workers, on_progress)
    _check(plan)
    facts = {"made_by": made_by, "reason": reason, "kept": kept, "unchanged": len(unchanged), "plan": plan.to_json()}
    plan.repository.record(plan.plan_id, {"kind": "restore", **facts})
    # Performed last: until now no Spark could start from the target.
    remove_seal(plan.target.location, seal)
    log.info("%s restored to batch %d of %s; seal lifted", plan.target.location, plan.batch_id, plan.manifest.backup_id)
    return _outcome(plan, began, kept=kept, unchanged=len(unchanged))


def _outcome(plan: RestorePlan, began: float, *, kept: str | None, unchanged: int) -> RestoreOutcome:
    return RestoreOutcome(
        plan_id=plan.plan_id,
        backup_id=plan.manifest.backup_id,
        target=plan.target.location.uri,
        batch_id=plan.batch_id,
        files=len(plan.entries),
        bytes=plan.bytes,
        seconds=time.monotonic() - began,
        kept=kept,
        unchanged=unchanged,
        already_done=plan.already_done,
    )


def _check_objects(plan: RestorePlan, workers: int) -> None:
    """See that the backup is whole before anything is changed.

    Objects that the store copies itself are compared by the checksum that it vouches for; what comes out of the copy is compared
    again. All others are read.
    """
    damaged = check_structure(plan.repository, plan.manifest, plan.entries)
    missing = {damage.path for damage in damaged}
    read = FileTable(
        plan.manifest.name, (e for e in plan.entries if not _is_copied_within(plan, e) and e.path not in missing)
    )
    damaged += check_contents(plan.repository, read, workers=workers)
    refuse_damage(plan.manifest, [damage.message for damage in damaged])


def _is_copied_within(plan: RestorePlan, entry: FileEntry) -> bool:
    """Whether the store copies an object to the target by itself."""
    repository, target = plan.repository.location, plan.target.location
    if entry.checksum is None or entry.path in plan.rewritten:
        return False
    return target.store.copies_within and target.store.same_as(repository.store)


def _unchanged(plan: RestorePlan, workers: int) -> FileSet:
    """Files that are at the target already, to the letter, and need be neither deleted nor written.

    Logs are always written: they are few, and their order is what keeps Spark from starting half-way.
    """
    visible = inspect_target(plan.target.location).visible
    logs = (f"{OFFSETS}/", f"{COMMITS}/", METADATA_FILE)
    unchanged = FileSet()

    def same(entry: FileEntry) -> StoredFile | None:
        file = visible.get(entry.path)
        if file is None or file.size != entry.size or entry.path.startswith(logs) or entry.path in plan.rewritten:
            return None
        if file.checksum is not None and file.checksum in (entry.checksum, f"sha256:{entry.sha256}"):
            return file
        if entry.sha256 is None:
            return None
        try:
            return None if content_damage(entry, plan.target.location.read(entry.path)) else file
        except (FileNotFoundError, StorageError):
            return None

    def keep(file: StoredFile | None) -> None:
        if file is not None:
            unchanged.add(file)

    if visible:
        in_order(same, plan.entries, keep, workers=workers)
    return unchanged


def _seal(plan: RestorePlan, written: Collection[str], made_by: str) -> Seal:
    """Seal the target with a number that stays the highest in ``offsets/`` until the end."""
    place = plan.target.location
    # What runs may go on until the seal stops it; but a place planned as empty holds nothing anybody agreed to lose.
    may_move = plan.seal_running and plan.replacing
    mark = seal_for_plan(
        place,
        plan_id=plan.plan_id,
        reason=plan.reason,
        made_by=made_by,
        fingerprint=None if may_move else plan.target.fingerprint,
        begun=plan.target.seal is not None,
        quiet_for=None if plan.seal_running else plan.quiet_for,
        above=written,
        hint="make a new plan, and stop the query before",
    )
    if plan.seal_running and not plan.target.is_empty:
        wait_until_at_rest(place, quiet_for=plan.quiet_for, at_most=STOP_WITHIN)
    return raise_above(place, mark, written, made_by=made_by)


def _keep(plan: RestorePlan, made_by: str) -> str | None:
    if not plan.replacing:
        return None
    if plan.target.is_empty:  # emptied by an attempt before this one
        return kept_for(plan.repository, name=plan.manifest.name, plan_id=plan.plan_id)
    there = inspect_target(plan.target.location)
    kept = keep_what_is_there(plan.repository, there, name=plan.manifest.name, plan_id=plan.plan_id, made_by=made_by)
    log.info("what was at %s is kept: %s", plan.target.location, kept)
    return kept


def _write(
    plan: RestorePlan,
    logs: Mapping[str, FileEntry],
    unchanged: Collection[str],
    workers: int,
    on_progress: OnProgress | None,
) -> None:
    """Write the files in the order that is loud by itself: the entry that a start needs comes last."""
    meter = Meter(on_progress, files=len(plan.entries), size=plan.bytes)
    n = plan.batch_id
    first = [logs[path] for path in (f"{OFFSETS}/{n}", METADATA_FILE, f"{COMMITS}/{n}")]
    gates = [e for path, e in sorted(logs.items()) if path.startswith(f"{OFFSETS}/") and e not in first]
    of_logs = {entry.path for entry in (*first, *gates)}

    def write(entry: FileEntry) -> None:
        if entry.path not in unchanged:
            _write_one(plan, entry)
        meter.add(plan.size_of(entry))

    for entry in first:
        write(entry)
    rest = (entry for entry in plan.entries if entry.path not in of_logs)
    in_order(write, rest, lambda _: None, workers=workers)
    log.info("writing %s last: a restore that stops before it cannot be started", ", ".join(e.path for e in gates))
    for entry in gates:
        write(entry)


def _write_one(plan: RestorePlan, entry: FileEntry) -> None:
    repository, target = plan.repository.location, plan.target.location
    rewritten = plan.rewritten.get(entry.path)
    if rewritten is not None:
        target.replace(entry.path, rewritten)
        return
    if _is_copied_within(plan, entry):
        target.store.copy((repository / entry.object).root, (target / entry.path).root, entry.size)
        return
    target.replace(entry.path, read_whole(plan.repository, entry, right_when="the restore began"))


def _check(plan: RestorePlan) -> None:
    """Look at what was written: exactly the files of the plan, and for Spark a whole closure of the batch."""
    there = inspect_target(plan.target.location)
    visible = there.visible
    as_planned = len(visible) == len(plan.entries)
    for entry in plan.entries:
        file = visible.get(entry.path)
        if file is None or file.size != plan.size_of(entry):
            as_planned = False
            continue
        # Copied by the store: its checksum has to be the object's, or else the content is read.
        copied = entry.checksum is not None and entry.path not in plan.rewritten
        if copied and file.checksum != entry.checksum:
            copy, original = plan.target.location.read(entry.path), plan.repository.location.read(entry.object)
            if copy != original:
                raise StorageError(
                    f"{plan.target.location}/{entry.path} is not what {entry.object} holds: the store copied it wrongly",
                    hint="the target stays sealed; run the same command again",
                )
    if not as_planned:
        sizes = ((entry.path, plan.size_of(entry)) for entry in plan.entries)
        expect_files(there, sizes, plan_id=plan.plan_id, what="what was written")
    closure = resolve_closure(Tree.of(there.location, files=there.visible.values()), plan.batch_id)
    if len(closure.by_path) != len(visible) or any(path not in closure.by_path for path in visible):
        raise StorageError(
            f"{plan.target.location} does not read back as batch {plan.batch_id} of the backup",
            hint=f"the target stays sealed by plan {plan.plan_id}; this is a defect: please report it",
        )
