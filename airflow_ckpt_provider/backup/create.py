"""Taking a backup of a checkpoint, live or not, without a write into it.

Choose the name, write the claim, copy the closures (:mod:`~airflow_ckpt_provider.backup.closure_copy`), write the manifest last.
Killed at any moment, this leaves objects that no manifest lists; the next run uses them. How a backup and a prune keep out of
each other's way: :mod:`~airflow_ckpt_provider.backup.claims`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_ckpt_provider import __version__
from airflow_ckpt_provider.backup.claims import Claim, claimed
from airflow_ckpt_provider.backup.closure_copy import Copied, Pinned, copy_closures, nothing_committed, pin
from airflow_ckpt_provider.backup.copy_progress import OnProgress
from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.engine import Engine, Threads
from airflow_ckpt_provider.backup.facts import ObserveSources, closure_facts, observed_sources
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.identity import chain_of_ids
from airflow_ckpt_provider.backup.immutability import Immutability
from airflow_ckpt_provider.backup.lease import lease
from airflow_ckpt_provider.backup.manifest import PINNED_AT, Manifest, new_backup_id, next_backup_id
from airflow_ckpt_provider.backup.marker import refuse_inside
from airflow_ckpt_provider.backup.names import LONGEST_NAME, checked_name, name_of
from airflow_ckpt_provider.backup.objects import Objects, list_objects
from airflow_ckpt_provider.backup.prune_marks import read_marks
from airflow_ckpt_provider.backup.recorded_sources import sources_at
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.stream_names import likely_name, stream_name
from airflow_ckpt_provider.backup.streams import is_place
from airflow_ckpt_provider.backup.unchanged import position_facts, unchanged_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.closure import Closure
from airflow_ckpt_provider.checkpoint.operators import STATE
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE, parse_query_id
from airflow_ckpt_provider.errors import (
    BackupRunningError,
    DamagedBackupError,
    MissingFileError,
    NoSuchBackupError,
    OtherStreamError,
    RefusedError,
    RepositoryError,
)
from airflow_ckpt_provider.parallel import WORKERS, side_by_side
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import Moved, read_moved

log = logging.getLogger(__name__)


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
    :param new_life: the checkpoint continues the stream of this name under another query id, at another place, or with fewer
        stateful operators.
    :raises OtherStreamError: the backups of this name are of another query, or of another place, and nothing explains that; see
        :mod:`~airflow_ckpt_provider.backup.identity`.
    :raises NotACheckpointError: there is no checkpoint.
    :raises RefusedError: nothing was committed yet; the name cannot be one; the repository lies inside the checkpoint or
        the checkpoint inside the repository; backups here cannot be made immutable.
    :raises BackupRunningError: another backup of this stream is running.
    :raises LeaseLostError: this process was suspended, or could not reach the repository, for so long that another
        backup may have begun; run again, it uses what was copied.
    :raises MissingFileError: a file that Spark needs is missing, and the checkpoint does not move: it is damaged. Or an operator
        has no state that had some in the backup before.
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
        until = immutability.lock_again(same, made_by=made_by)
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
    seen, (objects, newest, taken) = side_by_side(lambda: pin(checkpoint), lambda: _objects(repository, name))

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
    pinned, closures, files, copied = copy_closures(
        checkpoint, seen, objects, request.batches, request.engine, request.on_progress
    )
    manifest = _manifest(checkpoint, name, pinned, closures, files, request.batches)
    if newest is not None and not request.new_life:
        _check_operators(newest, manifest)
    manifest = replace(
        manifest,
        query_ids=query_ids if manifest.query_id == query_id else chain(manifest.query_id),
        sequence=newest.sequence + 1 if newest else 1,
    )
    sources = observed_sources(request.observe, closures[0], _recorded(repository, newest, manifest))
    if sources or request.observe is not None:
        manifest = replace(manifest, facts={**manifest.facts, "sources": sources})
    return manifest, copied, taken


def _check_operators(newest: Manifest, manifest: Manifest) -> None:
    """See that no stateful operator has vanished since the backup before: without ids in the commit nothing else shows it.

    Spark starts such a query with empty state, or not at all.
    """
    if newest.query_id != manifest.query_id:
        return
    for operator in sorted(_operators(newest) - _operators(manifest)):
        path = f"{STATE}/{operator}"
        raise MissingFileError(
            f"{path} is missing, which backup {newest.backup_id} of {newest.name} has: operator {operator} has no state at all",
            path=path,
            hint="restore that backup; if the query has fewer stateful operators now, back up with new_life (--new-life)",
        )


def _operators(manifest: Manifest) -> set[int]:
    return {operator["id"] for operator in manifest.facts.get("operators", ())}


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
        raise nothing_committed(checkpoint)
    return progress.query_id


def _may_continue(newest: Manifest | None, checkpoint: Checkpoint, query_id: str) -> bool:
    """Whether a checkpoint whose name nobody gave has at least the query or the place of the newest backup."""
    return newest is not None and (newest.query_id == query_id or is_place(checkpoint.location, newest.checkpoint))


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


def _manifest(
    checkpoint: Checkpoint,
    name: str,
    pinned: Pinned,
    closures: list[Closure],
    files: Sequence[FileEntry],
    batches: int,
) -> Manifest:
    newest, tree = closures[0], pinned.tree
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
        facts={
            **closure_facts(tree, closures),
            **position_facts(tree, newest, batches),
            PINNED_AT: pinned.at.isoformat(),
        },
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
