"""Copying the closures of a checkpoint while its stream runs.

Pin the newest committed batch, list the checkpoint, resolve the closures, copy what the repository lacks, and see that history
was not rewritten meanwhile. Spark's maintenance deletes and replaces files all the time: when one is gone, list and resolve again
and continue with what is copied already. The same complaint again and again about a checkpoint that does not move is damage.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import merge

from airflow_ckpt_provider.backup.copy_progress import Meter, OnProgress
from airflow_ckpt_provider.backup.engine import Engine
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.file_table import FileTable
from airflow_ckpt_provider.backup.objects import Objects, Stored
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.closure import Closure, resolve_closure
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.poll import list_log
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import (
    HistoryRewrittenError,
    MissingFileError,
    NotACheckpointError,
    RefusedError,
    UnreadableLogError,
)
from airflow_ckpt_provider.parallel import in_parallel, side_by_side
from airflow_ckpt_provider.storage.file_set import FileSet, order
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)

#: How often a moving checkpoint is read again before we give up.
_LOOKS = 30
#: The same complaint this often in a row about the same newest batch is damage; seconds between such looks.
_SAME_COMPLAINTS = 2
_PAUSE = 0.25


@dataclass(frozen=True, slots=True)
class Copied:
    """What the repository did not have before a backup.

    :param files: how many contents.
    :param bytes: their size.
    :param way: why the store has copied small ones; ``None`` if it has not.
    """

    files: int
    bytes: int
    way: str | None


@dataclass(frozen=True, slots=True)
class Pinned:
    """A position of a checkpoint, and the files that it had right after.

    :param at: all that was committed until then is at or before the position, in UTC.
    :param batch_id: the newest committed batch.
    :param tree: the files.
    """

    at: datetime
    batch_id: int
    tree: Tree


def pin(checkpoint: Checkpoint, tree: Tree | None = None) -> Pinned:
    """Note the time, pin the newest committed batch, and list what there is: in this order."""
    return Pinned(datetime.now(UTC), _newest_committed(checkpoint), checkpoint.tree(like=tree))


def copy_closures(
    checkpoint: Checkpoint,
    seen: Pinned,
    objects: Objects,
    batches: int,
    engine: Engine,
    on_progress: OnProgress | None,
) -> tuple[Pinned, list[Closure], Sequence[FileEntry], Copied]:
    """Resolve and copy until one listing of the checkpoint could be copied whole.

    :param checkpoint: the checkpoint; its stream may run.
    :param seen: what :func:`pin` returned of it.
    :param objects: the objects of the stream in the repository.
    :param batches: how many of the newest committed batches are to be restorable.
    :param engine: who carries out the copies.
    :param on_progress: called after each file.
    :return: the position; the closures, newest first; an entry for each of their files; what the repository did not have.
    :raises MissingFileError: a file that Spark needs is missing, and the checkpoint does not move.
    :raises HistoryRewrittenError: the checkpoint was rewound or replaced meanwhile, again and again.
    """
    before: int | None = None
    complaint: Exception | None = None
    same = 0
    for look in range(_LOOKS):
        seen = seen if look == 0 else pin(checkpoint, seen.tree)
        pinned = seen.batch_id
        try:
            closures = _closures(seen.tree, pinned, batches)
            files, copied = _store(seen.tree, closures, objects, engine, on_progress)
            _check_history(checkpoint.location, seen.tree, pinned)
            return seen, closures, files, copied
        except (MissingFileError, UnreadableLogError, FileNotFoundError, HistoryRewrittenError, RefusedError) as e:
            # The same complaint about a checkpoint that does not change is damage, not movement.
            same = same + 1 if pinned == before and str(e) == str(complaint) else 0
            if same == _SAME_COMPLAINTS:
                raise _as_damage(e) from e
            complaint, before = e, pinned
            log.info("look %d at %s (batch %s): %s; looking again", look + 1, checkpoint.location, pinned, e)
            time.sleep(_PAUSE * same)
            objects.look()  # what was copied meanwhile is not copied again
    raise HistoryRewrittenError(
        f"{checkpoint.location} moved faster than it could be copied, {_LOOKS} times; the last time: {complaint}",
        hint="raise spark.sql.streaming.minBatchesToRetain or the trigger interval, or use more workers",
    ) from complaint


def _as_damage(error: Exception) -> Exception:
    if not isinstance(error, FileNotFoundError):
        return error
    return MissingFileError(f"{error}, though it is listed", path=str(error), hint="check the store; try again later")


def _newest_committed(checkpoint: Checkpoint) -> int:
    committed = list_log(checkpoint.location, COMMITS)
    if not committed:
        raise nothing_committed(checkpoint)
    return max(committed)


def nothing_committed(checkpoint: Checkpoint) -> NotACheckpointError:
    """The error of a checkpoint that has nothing to back up."""
    return NotACheckpointError(
        f"{checkpoint.location} has no committed batch yet: there is nothing to restore",
        hint="wait until the stream has committed its first batch",
    )


def _closures(tree: Tree, pinned: int, batches: int) -> list[Closure]:
    """Closures of the newest batches, newest first; older ones only as far as Spark still keeps them."""
    closures = [resolve_closure(tree, pinned)]
    earlier = [batch for batch in tree.batches(COMMITS) if batch < pinned]
    for batch_id in reversed(earlier[len(earlier) - batches + 1 :] if batches <= len(earlier) else earlier):
        try:
            closures.append(resolve_closure(tree, batch_id))
        except (MissingFileError, RefusedError, UnreadableLogError) as e:
            log.info("batches up to %d are not restorable any more: %s", batch_id, e)
            break
    return closures


def _store(
    tree: Tree,
    closures: list[Closure],
    objects: Objects,
    engine: Engine,
    on_progress: OnProgress | None,
) -> tuple[Sequence[FileEntry], Copied]:
    """Store every file of the closures: all entries, and what the repository did not have.

    What an earlier look copied is found among the objects.
    """
    files = closures[0].by_path
    if len(closures) > 1:
        files = FileSet()
        for closure in closures:
            files.take_over(closure.by_path)
    meter = Meter(on_progress, files=len(files), size=sum(file.size for file in files.values()))
    held = FileTable(objects.name)
    missing = files.part(_not_held(objects, files, held))
    before = FileTable(objects.name, objects.packed_before(missing))
    if before:
        done = {entry.path for entry in before}
        missing = missing.part(path for path in missing if path not in done)
    if held or before:
        meter.add(held.bytes + before.bytes, len(held) + len(before))
    stored = FileTable(objects.name)
    unproven = False

    def take(result: Stored) -> None:
        nonlocal unproven
        unproven = unproven or result.unproven
        stored.append(result.entry)

    try:
        if missing:
            objects.expect(missing.values())
            engine.store(tree, objects, missing.values(), take, lambda file: meter.add(file.size))
    except FileNotFoundError:
        objects.remember(_merged(before, stored))
        raise
    if objects.packs:
        stored = FileTable(objects.name, objects.settled(_merged(before, stored)))
    if unproven:
        stored = FileTable(objects.name, objects.prove(tree, stored, files))
    new = [entry.size for entry in stored if objects.is_new(entry.object)]
    copied = Copied(len(new), sum(new), objects.way)
    entries: Sequence[FileEntry] = held or stored
    if held and stored:
        entries = FileTable(objects.name, _merged(held, stored))
    if len(closures) > 1:
        entries = FileTable(objects.name, _needed_by(closures, entries))
    return entries, copied


def _merged(some: Iterable[FileEntry], others: Iterable[FileEntry]) -> Iterable[FileEntry]:
    """All of them, in the order of files."""
    return merge(some, others, key=lambda entry: order(entry.path))


def _not_held(objects: Objects, files: FileSet, held: FileTable) -> Iterator[str]:
    """Paths of the files that have to be stored; the entries of all others go to ``held``."""
    for file, entry in objects.held(files):
        if entry is None:
            yield file.path
        else:
            held.append(entry)


def _needed_by(closures: list[Closure], entries: Iterable[FileEntry]) -> Iterator[FileEntry]:
    """The entries, each with the batches that need it; without where all of them do."""
    for entry in entries:
        batches = tuple(closure.batch_id for closure in reversed(closures) if entry.path in closure.by_path)
        yield entry if len(batches) == len(closures) else entry._replace(batches=batches)


def _check_history(location: Location, tree: Tree, pinned: int) -> None:
    """See that the past is still the past: the same query, and the pinned batch as it was or purged by newer ones.

    An exact replay writes the same commit, byte for byte, and another state: so the time of its file has to be the same, too.
    """

    def read(path: str) -> bytes | None:
        try:
            return location.read(path)
        except FileNotFoundError:
            return None

    paths = (METADATA_FILE, f"{OFFSETS}/{pinned}", commit := f"{COMMITS}/{pinned}")
    contents, commits = side_by_side(
        lambda: in_parallel(read, paths, workers=len(paths)), lambda: list_log(location, COMMITS)
    )
    for path, now in zip(paths, contents, strict=True):
        file = tree.get(path)
        before = tree.content_in_hand(file) if file else None
        if now is None:
            if path == METADATA_FILE or max(list_log(location, path.partition("/")[0]), default=-1) <= pinned:
                raise HistoryRewrittenError(
                    f"{location}/{path} disappeared while it was backed up", hint="somebody changes this checkpoint"
                )
            continue
        # Not by what identifies it: some mounts change the number of an inode.
        times = {f.modified for f in (file, commits.get(pinned)) if f and f.modified} if path == commit else set()
        if len(times) > 1 or (before is not None and now != before):
            raise HistoryRewrittenError(
                f"{location}/{path} was rewritten while it was backed up", hint="somebody changes this checkpoint"
            )
