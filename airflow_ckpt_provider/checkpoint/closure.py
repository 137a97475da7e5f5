"""The closure: the smallest set of files that Spark needs to continue after a committed batch."""

from __future__ import annotations

from collections.abc import ValuesView
from dataclasses import dataclass

from airflow_ckpt_provider.checkpoint.commits import COMMITS, CommitEntry, parse_commit
from airflow_ckpt_provider.checkpoint.logs import refuse_empty
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry, parse_offsets
from airflow_ckpt_provider.checkpoint.operators import (
    DEFAULT_STORE,
    STATE,
    OperatorMetadata,
    metadata_file,
    operator_metadata,
    partitions,
    store_directory,
    stores,
)
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE, parse_query_id
from airflow_ckpt_provider.checkpoint.sources import SOURCES, source_closure
from airflow_ckpt_provider.checkpoint.state_closure import contents_needed, store_closure
from airflow_ckpt_provider.checkpoint.state_files import StateVersion, state_files
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import MissingFileError, RefusedError
from airflow_ckpt_provider.storage.file_set import FileSet
from airflow_ckpt_provider.storage.store import StoredFile


@dataclass(frozen=True, slots=True)
class StoreClosure:
    """The part of a closure that is one store of one partition.

    :param version: the state version that the next batch will read.
    """

    operator: int
    partition: int
    store: str
    version: StateVersion
    by_path: FileSet

    @property
    def files(self) -> ValuesView[StoredFile]:
        """Its files."""
        return self.by_path.values()


@dataclass(frozen=True, slots=True)
class Closure:
    """Everything needed to continue after ``batch_id``, and nothing else.

    :param batch_id: a committed batch; the next one to run is ``batch_id + 1``.
    :param entry: its offset log entry.
    :param commit: its commit log entry.
    :param by_path: all files, by path.
    :param stores: the state among them.
    """

    batch_id: int
    entry: OffsetEntry
    commit: CommitEntry
    by_path: FileSet
    stores: tuple[StoreClosure, ...]

    @property
    def files(self) -> ValuesView[StoredFile]:
        """All files, in the order of their directories."""
        return self.by_path.values()

    @property
    def bytes(self) -> int:
        """Total size in bytes."""
        return sum(file.size for file in self.files)


def resolve_closure(tree: Tree, batch_id: int, *, replays_next: bool = False) -> Closure:
    """Find the closure of a committed batch.

    The pinned settings, partition counts and source offsets are those of the batch's own log entries.

    :param tree: the checkpoint's files.
    :param batch_id: the batch.
    :param replays_next: keep ``offsets/<batch_id + 1>`` too, so that Spark runs the next batch again with exactly the end
        offsets it had; ``offsets/<batch_id - 1>`` is not needed then, for Spark reads the newest entry and the one before.
    :raises RefusedError: the batch is not committed.
    :raises MissingFileError: a needed file is missing. While the stream runs this can pass: list again.
    :raises UnreadableLogError: a file could not be parsed.
    """
    tree.read_together(_small_files(tree, batch_id))
    entry = parse_offsets(_read(tree, f"{OFFSETS}/{batch_id}", batch_id), batch_id=batch_id)
    commit = parse_commit(_read(tree, f"{COMMITS}/{batch_id}", batch_id), batch_id=batch_id)
    metadata = _file(
        tree, METADATA_FILE, "Spark 4.2 and later refuse to start, older ones take the query for a new one"
    )
    parse_query_id(tree.read(metadata))
    logs = [
        metadata,
        _file(tree, f"{OFFSETS}/{batch_id}", ""),
        _file(tree, f"{COMMITS}/{batch_id}", ""),
        *(_next_offsets(tree, batch_id) if replays_next else _previous_offsets(tree, batch_id, entry)),
    ]
    last = (
        parse_offsets(_read(tree, f"{OFFSETS}/{batch_id + 1}", batch_id + 1), batch_id=batch_id + 1)
        if replays_next
        else entry
    )
    state: list[StoredFile] = []
    closures: list[StoreClosure] = []
    for operator in _operators(tree, commit):
        described = operator_metadata(tree, operator, batch_id=batch_id)
        state += _operator_files(tree, operator, described, batch_id)
        try:
            closures += _store_closures(tree, operator, entry, commit)
        except MissingFileError as e:
            newest = 0 if operator in commit.state_ids else _newest_version(tree, operator)
            if operator and 0 < newest <= batch_id:
                e.add_hint(
                    f"if the code has had no operator {operator} since version {newest} (Spark up to 3.5 leaves the state of one "
                    f"that was removed where it is), move {STATE}/{operator} out of the checkpoint while the query is stopped"
                )
            raise
    files = tree.part((*logs, *source_closure(tree, last), *state, *_other_files(tree)))
    for closure in closures:
        files.take_over(closure.by_path)
    return Closure(batch_id, entry, commit, files, tuple(closures))


def _small_files(tree: Tree, batch_id: int) -> list[StoredFile]:
    """What decides which files a closure has: all of it is asked for at once, for each request waits for its answer."""
    paths = [METADATA_FILE, f"{OFFSETS}/{batch_id}", f"{COMMITS}/{batch_id}", f"{OFFSETS}/{batch_id - 1}"]
    files = [tree.get(path) for path in paths]
    for operator in tree.numbered_directories(STATE):
        files.append(metadata_file(tree, operator, batch_id=batch_id))
        files.append(tree.get(f"{STATE}/{operator}/0/_metadata/schema"))
    return [file for file in files if file is not None]


def _read(tree: Tree, path: str, batch_id: int) -> bytes:
    file = tree.get(path)
    if file is None:
        committed = tree.batches(COMMITS)
        span = f"{committed[0]} to {committed[-1]}" if committed else "none"
        raise RefusedError(
            f"batch {batch_id} cannot be resumed from: {path} does not exist", hint=f"committed batches: {span}"
        )
    return tree.read(file)


def _file(tree: Tree, path: str, effect: str) -> StoredFile:
    file = tree.get(path)
    if file is None:
        raise MissingFileError(
            f"{path} is missing{': ' + effect if effect else ''}",
            path=path,
            hint="put it back from a backup of the same query",
        )
    return file


def _previous_offsets(tree: Tree, batch_id: int, entry: OffsetEntry) -> list[StoredFile]:
    """``offsets/<N-1>``: a start after N reads it. With async progress tracking it is the newest one before N."""
    before = [b for b in tree.batches(OFFSETS) if b < batch_id]
    if batch_id == 0 or not entry.metadata:  # continuous mode reads only the newest
        return [_file(tree, f"{OFFSETS}/{b}", "") for b in before[-1:]]
    # Async progress tracking leaves out the commit too, and is for queries without state; all else is a loss.
    legal = batch_id - 1 not in tree.batches(COMMITS) and not tree.numbered_directories(STATE)
    lost = before[-1:] != [batch_id - 1] and not legal
    if not before or lost:
        raise MissingFileError(
            f"{OFFSETS}/{batch_id - 1} is missing: Spark reads it when it starts after batch {batch_id}",
            path=f"{OFFSETS}/{batch_id - 1}",
            hint="choose a later batch, or restore a backup",
        )
    previous = _file(tree, f"{OFFSETS}/{before[-1]}", "")
    parse_offsets(tree.read(previous), batch_id=before[-1])
    return [previous]


def _next_offsets(tree: Tree, batch_id: int) -> list[StoredFile]:
    """``offsets/<N+1>``, and the entry before N where it is still there: harmless, and a later rewind may want it."""
    before = [b for b in tree.batches(OFFSETS) if b < batch_id]
    return [_file(tree, f"{OFFSETS}/{b}", "") for b in (*before[-1:], batch_id + 1)]


def _operators(tree: Tree, commit: CommitEntry) -> list[int]:
    """The stateful operators, which Spark numbers from 0; those that the commit names must have state too."""
    there = tree.numbered_directories(STATE)
    expected = {*commit.state_ids, *range(max(there, default=-1) + 1)}
    for operator in sorted(expected - {*there}):
        path = f"{STATE}/{operator}"
        raise MissingFileError(
            f"{path} is missing: operator {operator} has no state at all",
            path=path,
            hint="restore a backup",
        )
    return there


def _newest_version(tree: Tree, operator: int) -> int:
    """The newest state version of an operator, in any of its partitions; 0 if it has no state."""
    directories = [f"{STATE}/{operator}/{name}" for name in tree.numbered_directories(f"{STATE}/{operator}")]
    return max((state_files(d, tree.files(d)).newest for d in directories), default=0)


def _operator_files(tree: Tree, operator: int, metadata: OperatorMetadata | None, batch_id: int) -> list[StoredFile]:
    """Operator metadata and state schemas.

    Spark rewrites version 1 of both when they are missing, but then checks no schema; version 2 it cannot do without.
    """
    file = metadata_file(tree, operator, batch_id=batch_id)
    if file is None and tree.directories(f"{STATE}/{operator}/_stateSchema"):
        path = f"{STATE}/{operator}/_metadata/v2"
        raise MissingFileError(
            f"{path} has no file for batch {batch_id}: Spark finds the schemas of this operator by it",
            path=path,
            hint="restore a backup",
        )
    needed = [file] if file else []
    for uri in metadata.schema_files if metadata else ():
        # The URI is absolute and may name a place the checkpoint has been moved from.
        path = f"{STATE}/{operator}/_stateSchema/{uri.rpartition('/_stateSchema/')[2]}"
        schema = tree.get(path)
        if schema is None:
            raise MissingFileError(
                f"{path} is missing: {file.path if file else 'the operator metadata'} names it",
                path=path,
                hint="restore a backup",
            )
        needed.append(schema)
    partition = f"{STATE}/{operator}/0"
    for directory in (partition, *(f"{partition}/{name}" for name in tree.directories(partition))):
        schema = tree.get(f"{directory}/_metadata/schema")
        if schema:
            refuse_empty(schema)
            needed.append(schema)
    return needed


def _store_closures(tree: Tree, operator: int, entry: OffsetEntry, commit: CommitEntry) -> list[StoreClosure]:
    ids = commit.state_ids.get(operator)
    logged = len(ids) if ids else entry.state_partitions
    in_partitions = partitions(tree, operator, logged=logged, batch_id=entry.batch_id)
    names = stores(tree, operator, in_partitions) or (DEFAULT_STORE,)
    provider, codec = entry.state_provider or "", entry.state_codec
    wanted = [
        (partition, name, StateVersion(entry.batch_id + 1, commit.state_id(operator, partition, index)))
        for partition in in_partitions
        for index, name in enumerate(names)
    ]
    _read_together(tree, operator, wanted, provider, codec)
    closures = []
    for partition, name, version in wanted:
        directory = store_directory(operator, partition, name)
        files = store_closure(tree, directory, version, provider=provider, codec=codec)
        closures.append(StoreClosure(operator, partition, name, version, tree.part(files)))
    return closures


def _read_together(
    tree: Tree, operator: int, stores: list[tuple[int, str, StateVersion]], provider: str, codec: str
) -> None:
    """Read the snapshots that name other files, of all stores at once; with lineages, what names the snapshots first."""
    for _ in range(2 if any(version.unique_id for _, _, version in stores) else 1):
        tree.read_together(
            file
            for partition, name, version in stores
            for file in contents_needed(
                tree, store_directory(operator, partition, name), version, provider=provider, codec=codec
            )
        )


def _other_files(tree: Tree) -> list[StoredFile]:
    """What else lies in a checkpoint, such as Delta's ``_schema_log_…``: carried whole, for it is not ours to judge."""
    known = {OFFSETS, COMMITS, SOURCES, STATE}
    return [file for name in tree.directories() if name not in known for file in tree.below(name)]
