"""Taking a backup of a checkpoint, live or not, without a write into it.

Pin the newest committed batch N, resolve its closure, copy what the repository lacks, check whether history was rewritten
meanwhile, write the manifest. Spark's maintenance deletes and replaces files all the time: when one is gone, resolve
again and continue with what is copied already. Killed at any moment, this leaves objects that no manifest lists; the next
run uses them. How a backup and a prune keep out of each other's way: :mod:`~airflow_ckpt_provider.backup.claims`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from heapq import merge
from typing import Any

from airflow_ckpt_provider import __version__
from airflow_ckpt_provider.backup.claims import Claim, claimed, in_use
from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.engine import Engine, Threads
from airflow_ckpt_provider.backup.facts import ObserveSources, closure_facts, observed_sources
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.file_table import FileTable
from airflow_ckpt_provider.backup.identity import chain_of_ids
from airflow_ckpt_provider.backup.immutability import Immutability
from airflow_ckpt_provider.backup.lease import lease
from airflow_ckpt_provider.backup.manifest import Manifest, new_backup_id, next_backup_id
from airflow_ckpt_provider.backup.marker import refuse_inside
from airflow_ckpt_provider.backup.names import LONGEST_NAME, checked_name, name_of
from airflow_ckpt_provider.backup.objects import Objects, Stored, list_objects
from airflow_ckpt_provider.backup.prune_marks import read_marks
from airflow_ckpt_provider.backup.recorded_sources import sources_at
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.stream_names import likely_name, stream_name
from airflow_ckpt_provider.backup.streams import is_place
from airflow_ckpt_provider.backup.transfer import WORKERS, Meter, OnProgress, in_parallel, side_by_side
from airflow_ckpt_provider.backup.unchanged import position_facts, unchanged_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.closure import Closure, resolve_closure
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.poll import list_log
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE, parse_query_id
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import (
    BackupRunningError,
    DamagedBackupError,
    HistoryRewrittenError,
    MissingFileError,
    NoSuchBackupError,
    NotACheckpointError,
    OtherStreamError,
    RefusedError,
    RepositoryError,
    UnreadableLogError,
)
from airflow_ckpt_provider.storage.file_set import FileSet, order
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import Moved, read_moved

log = logging.getLogger(__name__)

#: How often a moving checkpoint is read again before we give up.
_LOOKS = 30
#: The same complaint this often in a row about the same newest batch is damage; seconds between such looks.
_SAME_COMPLAINTS = 2
_PAUSE = 0.25


@dataclass(frozen=True, slots=True)
class BackupResult:
    """A finished backup.

    :param manifest: what it holds.
    :param copied_files: files whose content the repository did not have.
    :param copied_bytes: their size.
    :param seconds: how long it took.
    :param unchanged: nothing was committed since this backup was taken, and so no new one was.
    :param immutable_until: until when nobody can delete it; ``None``: it was not locked.
    :param way: why the store has copied small files that would have been packed; ``None`` if it has not.
    """

    manifest: Manifest
    copied_files: int
    copied_bytes: int
    seconds: float
    unchanged: bool = False
    immutable_until: datetime | None = None
    way: str | None = None

    @property
    def backup_id(self) -> str:
        """Id of the backup."""
        return self.manifest.backup_id

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self.manifest.name

    @property
    def batch_id(self) -> int:
        """The batch that was pinned."""
        return self.manifest.batch_id

    @property
    def files(self) -> int:
        """Number of files in the backup."""
        return len(self.manifest.files)

    @property
    def bytes(self) -> int:
        """Their total size."""
        return self.manifest.bytes

    def to_json(self) -> dict[str, Any]:
        """The documented keys of ``airflow-ckpt backup --json``, and the manifest's summary."""
        return {
            **self.manifest.summary(),
            "copied_files": self.copied_files,
            "copied_bytes": self.copied_bytes,
            "seconds": round(self.seconds, 3),
            "unchanged": self.unchanged,
            "immutable_until": self.immutable_until.isoformat() if self.immutable_until else None,
            "copied_by_store": self.way,
        }


def create_backup(
    checkpoint: Checkpoint,
    repository: Repository,
    *,
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
    reason: str = "",
    made_by: str = "",
    restorable_batches: int = 1,
    workers: int = WORKERS,
    on_progress: OnProgress | None = None,
    observe: ObserveSources | None = None,
    engine: Engine | None = None,
    skip_if_unchanged: bool = False,
    immutable_for: timedelta | None = None,
    new_life: bool = False,
) -> BackupResult:
    """Back up a checkpoint into a repository.

    :param checkpoint: the checkpoint; its stream may run.
    :param repository: where to.
    :param name: name of the stream; by default the one that the checkpoint has in the repository, else the shortest ending of its
        path that is no other stream's.
    :param tags: words to find the backup by.
    :param reason: why it is made.
    :param made_by: the run or user that makes it.
    :param restorable_batches: how many of the newest committed batches can be restored from it.
    :param workers: requests under way at once.
    :param on_progress: called after each file.
    :param observe: asked for what distinguishes the live sources of the pinned batch from others of the same name; it is kept in
        the manifest. It may not answer: the backup is taken all the same. What the backup before has recorded is kept then, and
        where nobody is asked.
    :param engine: who carries out the copies; by default ``workers`` threads of this process.
    :param skip_if_unchanged: take none where nothing was committed since the newest one, and return that one: see
        :func:`~airflow_ckpt_provider.backup.unchanged.unchanged_backup`. Its tags and its reason stay its own.
    :param immutable_for: lock the backup, so that nobody can delete it for so long; also the one that is returned because nothing
        was committed since. It takes S3 Object Lock, and a request for each file; ``None``: nothing is locked.
    :param new_life: the checkpoint continues the stream of this name under another query id, or at another place.
    :raises OtherStreamError: the backups of this name are of another query, or of another place, and nothing explains that; see
        :mod:`~airflow_ckpt_provider.backup.identity`.
    :raises NotACheckpointError: there is no checkpoint.
    :raises RefusedError: nothing was committed yet; the name cannot be one; the repository lies inside the checkpoint or
        the checkpoint inside the repository; backups here cannot be made immutable.
    :raises BackupRunningError: another backup of this stream is running.
    :raises LeaseLostError: this process was suspended, or could not reach the repository, for so long that another
        backup may have begun; run again, it uses what was copied.
    :raises MissingFileError: a file that Spark needs is missing, and the checkpoint does not move: it is damaged.
    :raises UnreadableLogError: a log file cannot be parsed.
    :raises HistoryRewrittenError: the checkpoint was rewound or replaced meanwhile, again and again.
    :raises StorageError: reading or writing failed.
    """
    began = time.monotonic()
    if restorable_batches < 1:
        raise RefusedError(f"restorable_batches is {restorable_batches}", hint="use 1 or more")
    _check_places(checkpoint.location, repository.location)
    repository.refuse_unsigned()
    immutability = Immutability(repository, immutable_for, workers)
    immutability.check()
    given = checked_name(name) if name else None
    request = _Request(
        tags=dict(tags or {}),
        reason=reason,
        made_by=made_by,
        batches=restorable_batches,
        engine=engine or Threads(workers),
        on_progress=on_progress,
        observe=observe,
        new_life=new_life,
        is_given=given is not None,
        immutability=immutability,
    )

    def skipped(name: str) -> BackupResult | None:
        same = skip_if_unchanged and unchanged_backup(
            checkpoint, repository, name, restorable_batches=restorable_batches, with_sources=observe is not None
        )
        if not same:
            return None
        with in_use(repository, same, what="backup", made_by=made_by) if immutable_for is not None else nullcontext():
            immutability.lock_objects(same)  # no prune deletes what is being locked
            until = immutability.lock_manifest(same)
        return BackupResult(same, 0, 0, time.monotonic() - began, unchanged=True, immutable_until=until)

    first = given or name_of(checkpoint.location.name)
    if done := skipped(first):
        return done
    query_id, chosen = side_by_side(
        lambda: _check_progress(checkpoint), lambda: given or likely_name(repository, checkpoint.location)
    )
    if chosen != first and (done := skipped(chosen)):
        return done
    try:
        manifest, copied, until = _backed_up(checkpoint, repository, chosen, query_id, request)
    except (OtherStreamError, BackupRunningError) as e:
        name = chosen if given else stream_name(repository, checkpoint.location, query_id=query_id)
        if name == chosen:
            raise
        log.info("%s", e.message)
        manifest, copied, until = _backed_up(checkpoint, repository, name, query_id, request)
    return BackupResult(
        manifest, copied.files, copied.bytes, time.monotonic() - began, immutable_until=until, way=copied.way
    )


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
class _Request:
    """What was asked of a backup, see :func:`create_backup`.

    :param is_given: whether somebody gave the name.
    """

    tags: Mapping[str, str]
    reason: str
    made_by: str
    batches: int
    engine: Engine
    on_progress: OnProgress | None
    observe: ObserveSources | None
    new_life: bool
    is_given: bool
    immutability: Immutability


def _backed_up(
    checkpoint: Checkpoint, repository: Repository, name: str, query_id: str | None, request: _Request
) -> tuple[Manifest, Copied, datetime | None]:
    """Take a backup under a name: its manifest, what did not exist before, and until when it is locked."""
    _check_length(repository, name)
    place, by = repository.location, request.made_by
    with (
        lease(place, name, made_by=by) as guarded,
        claimed(place, name, what="backup", made_by=by, guarded=guarded) as claim,
    ):
        repository = repository.at(guarded)
        manifest, copied, taken = _taken(checkpoint, repository, name, query_id, request)
        manifest = replace(manifest, tags=request.tags, reason=request.reason, made_by=by)
        request.immutability.lock_objects(manifest)
        manifest = _write_manifest(repository, manifest, claim, taken=taken)
        return manifest, copied, request.immutability.lock_manifest(manifest)


def _taken(
    checkpoint: Checkpoint, repository: Repository, name: str, query_id: str | None, request: _Request
) -> tuple[Manifest, Copied, frozenset[str]]:
    """Copy what is needed: the manifest to write, what did not exist before, ids that the backup cannot have.

    :param query_id: the query's id as it was read before; ``None``: ``metadata`` is missing.
    """
    seen, (objects, newest, taken) = side_by_side(lambda: _see(checkpoint), lambda: _objects(repository, name))

    def chain(query_id: str) -> tuple[str, ...]:
        return chain_of_ids(
            repository,
            newest,
            checkpoint.location,
            query_id,
            new_life=request.new_life and (request.is_given or _may_continue(newest, checkpoint, query_id)),
            place_is_explained=request.is_given,
        )

    if newest is None:
        refuse_inside(repository.location)
        refuse_inside(checkpoint.location, of_checkpoints=False)
    query_ids = chain(query_id) if query_id else ()  # before anything is copied
    tree, closures, files, copied = _copy(
        checkpoint, seen, objects, request.batches, request.engine, request.on_progress
    )
    manifest = _manifest(checkpoint, name, tree, closures, files, request.batches)
    manifest = replace(
        manifest,
        query_ids=query_ids if manifest.query_id == query_id else chain(manifest.query_id),
        sequence=newest.sequence + 1 if newest else 1,
    )
    sources = observed_sources(request.observe, closures[0], _recorded(repository, newest, manifest))
    if sources or request.observe is not None:
        manifest = replace(manifest, facts={**manifest.facts, "sources": sources})
    return manifest, copied, taken


def _recorded(repository: Repository, newest: Manifest | None, manifest: Manifest) -> Mapping[str, Mapping[str, Any]]:
    """What earlier backups of the query have recorded of the sources that it reads at the batch of the next one."""
    if newest is None or newest.query_id != manifest.query_id:
        return {}
    return sources_at(repository, newest, manifest.batch_id)


def make_for_backup(place: Location, checkpoint: Checkpoint, *, name: str | None = None) -> Repository:
    """Open the repository for a backup, or make it; only where the backup would not be refused.

    :param place: where the repository is, or is to be.
    :param checkpoint: the checkpoint that will be backed up.
    :param name: name of the stream, as for :func:`create_backup`.
    :raises CkptError: as :func:`create_backup` for what it refuses at once, and :meth:`Repository.open_or_create`.
    """
    try:
        return Repository.open(place)
    except RepositoryError:
        name_of(checkpoint.location.name, name)
        _check_places(checkpoint.location, place)
        _check_progress(checkpoint)
        return Repository.open_or_create(place)


def _check_length(repository: Repository, name: str) -> None:
    """See that a new name fits on every store, with all that is put before and behind it; older streams keep theirs."""
    if len(name) > LONGEST_NAME and not repository.taken_ids(name):
        raise RefusedError(
            f"the name {name[:20]}… of a stream has {len(name)} characters, and at most {LONGEST_NAME} fit",
            hint="give a shorter name (--name, or name=)",
        )


def _check_progress(checkpoint: Checkpoint) -> str | None:
    """Refuse what has nothing to back up; return the query's id, ``None`` where ``metadata`` is missing."""
    progress = checkpoint.progress()  # an empty place, an unreadable newest entry
    if progress.latest_committed is None:
        raise _nothing_committed(checkpoint)
    return progress.query_id


def _may_continue(newest: Manifest | None, checkpoint: Checkpoint, query_id: str) -> bool:
    """Whether a checkpoint whose name nobody gave has at least the query or the place of the newest backup."""
    return newest is not None and (newest.query_id == query_id or is_place(checkpoint.location, newest.checkpoint))


def _nothing_committed(checkpoint: Checkpoint) -> NotACheckpointError:
    return NotACheckpointError(
        f"{checkpoint.location} has no committed batch yet: there is nothing to restore",
        hint="wait until the stream has committed its first batch",
    )


def _check_places(checkpoint: Location, repository: Location) -> None:
    for outer, inner, what in (
        (checkpoint, repository, "the repository lies inside the checkpoint"),
        (repository, checkpoint, "the checkpoint lies inside the repository"),
    ):
        if outer.contains(inner):
            raise RefusedError(f"{what}: {inner} in {outer}", hint="keep backups in a place of their own")


def _objects(repository: Repository, name: str) -> tuple[Objects, Manifest | None, frozenset[str]]:
    """What the repository has of a stream, its newest backup, and the ids that no new backup can have.

    The claim has been written.
    """
    place = repository.location
    marks = read_marks(place, name)  # before anything is read that they may name
    (listed, moved), ((newest, taken), known) = side_by_side(
        lambda: side_by_side(
            lambda: list_objects(place, name), lambda: read_moved(place, name) if repository.packs else Moved()
        ),
        lambda: side_by_side(lambda: _newest(repository, name), lambda: read_damaged(place, name)),
    )
    vouched = newest.files if newest else ()
    objects = Objects(
        place,
        name,
        vouched=vouched,
        marks=marks,
        listed=listed,
        damaged=known.objects.keys(),
        moved=moved,
        packs=repository.packs,
    )
    return objects, replace(newest, files=()) if newest else None, taken


def _newest(repository: Repository, name: str) -> tuple[Manifest | None, frozenset[str]]:
    """The newest readable backup: nearly all of what does not change is in it. And the ids that are taken."""
    ids, taken = repository.ids(name)
    for backup_id in reversed(ids):
        try:
            return repository.read_manifest(name, backup_id), taken
        except NoSuchBackupError:
            continue  # expired since it was listed
        except DamagedBackupError as e:
            log.warning("%s", e)
    return None, taken


def _see(checkpoint: Checkpoint, tree: Tree | None = None) -> tuple[int, Tree]:
    """Pin the newest committed batch, and list what there is: in this order."""
    return _newest_committed(checkpoint), checkpoint.tree(like=tree)


def _copy(
    checkpoint: Checkpoint,
    seen: tuple[int, Tree],
    objects: Objects,
    batches: int,
    engine: Engine,
    on_progress: OnProgress | None,
) -> tuple[Tree, list[Closure], Sequence[FileEntry], Copied]:
    """Resolve and copy until one listing of the checkpoint could be copied whole; see :func:`_store` for the last two.

    :param seen: the first listing.
    """
    before: int | None = None
    complaint: Exception | None = None
    same = 0
    for look in range(_LOOKS):
        pinned, tree = seen if look == 0 else _see(checkpoint, seen[1])
        try:
            closures = _closures(tree, pinned, batches)
            files, copied = _store(tree, closures, objects, engine, on_progress)
            _check_history(checkpoint.location, tree, pinned)
            return tree, closures, files, copied
        except (MissingFileError, UnreadableLogError, FileNotFoundError, HistoryRewrittenError, RefusedError) as e:
            # The same complaint about a checkpoint that does not change is damage, not movement.
            same = same + 1 if pinned == before and str(e) == str(complaint) else 0
            if same == _SAME_COMPLAINTS:
                raise _as_damage(e) from e
            complaint, before, seen = e, pinned, (pinned, tree)
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
        raise _nothing_committed(checkpoint)
    return max(committed)


def _closures(tree: Tree, pinned: int, batches: int) -> list[Closure]:
    """Closures of the newest batches, newest first; older ones only as far as Spark still keeps them."""
    closures = [resolve_closure(tree, pinned)]
    earlier = [batch for batch in tree.batches(COMMITS) if batch < pinned]
    for batch_id in reversed(earlier[len(earlier) - batches + 1 :] if batches <= len(earlier) else earlier):
        try:
            closures.append(resolve_closure(tree, batch_id))
        except (MissingFileError, RefusedError) as e:
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


def _manifest(
    checkpoint: Checkpoint,
    name: str,
    tree: Tree,
    closures: list[Closure],
    files: Sequence[FileEntry],
    batches: int,
) -> Manifest:
    newest = closures[0]
    now = datetime.now(UTC)
    metadata = tree.get(METADATA_FILE)
    return Manifest(
        backup_id=new_backup_id(now, newest.batch_id),
        name=name,
        created=now,
        checkpoint=checkpoint.location.uri,
        query_id=parse_query_id(tree.read(metadata)) if metadata else "",
        batch_id=newest.batch_id,
        restorable=tuple(closure.batch_id for closure in reversed(closures)),
        files=files,
        facts={**closure_facts(tree, closures), **position_facts(tree, newest, batches)},
        tool_version=__version__,
    )


def _write_manifest(repository: Repository, manifest: Manifest, claim: Claim, *, taken: frozenset[str]) -> Manifest:
    """Write the manifest under an id that sorts after all others: the latest has the last one, whatever the clocks say.

    :param taken: ids that are not free, as listed since the claim was written.
    :raises BackupRunningError: another backup took the id at this moment, or a prune has given this one up.
    :raises RefusedError: no id sorts after the last one.
    """
    backup_id = next_backup_id(manifest, last=max(taken, default=""), repository=repository.location)
    made = replace(manifest, backup_id=backup_id, claim=claim.claim_id)
    try:
        claim.write(made.path, made.to_document())
    except FileExistsError:
        raise BackupRunningError(
            f"another backup of {made.name} wrote {backup_id} at this moment", hint="run it again"
        ) from None
    return made
