"""Where the bytes of a checkpoint are, and the keys of its state as far as its files show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from airflow_ckpt_provider.checkpoint.closure import Closure, StoreClosure
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.operators import DEFAULT_STORE, STATE, store_directory
from airflow_ckpt_provider.checkpoint.rocksdb import key_count
from airflow_ckpt_provider.checkpoint.sources import SOURCES
from airflow_ckpt_provider.checkpoint.state_files import RESERVED, holds_state, state_files
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.storage.store import StoredFile


@dataclass(frozen=True, slots=True)
class DirectoryUsage:
    """What a directory holds, all below it included.

    :param path: relative to the checkpoint; ``.`` stands for the files directly in it.
    :param files: number of files.
    :param bytes: their size.
    :param oldest_batch: oldest batch that a file in it belongs to; ``None`` where files have no batch, as in ``sources/``,
        whose logs count in numbers of their own.
    :param newest_batch: newest batch, likewise.
    """

    path: str
    files: int
    bytes: int
    oldest_batch: int | None = None
    newest_batch: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The usage as plain JSON."""
        return {
            "path": self.path,
            "files": self.files,
            "bytes": self.bytes,
            "oldest_batch": self.oldest_batch,
            "newest_batch": self.newest_batch,
        }


@dataclass(frozen=True, slots=True)
class PartitionUsage:
    """One store of one partition of a stateful operator.

    :param files: files of all versions on disk.
    :param bytes: their size.
    :param needed_bytes: size of those that the newest committed version needs; ``None`` where it cannot be resolved.
    :param keys: keys in the newest RocksDB snapshot that it needs; ``None`` where no file has it (HDFS-backed state,
        changelogs without a snapshot).
    :param keys_at_version: state version of that snapshot; keys that came or went since are in the changelogs after it.
    """

    operator: int
    partition: int
    store: str
    files: int
    bytes: int
    needed_bytes: int | None = None
    keys: int | None = None
    keys_at_version: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The usage as plain JSON."""
        return {
            "operator": self.operator,
            "store": self.store,
            "partition": self.partition,
            "files": self.files,
            "bytes": self.bytes,
            "needed_bytes": self.needed_bytes,
            "keys": self.keys,
            "keys_at_version": self.keys_at_version,
        }


@dataclass(frozen=True, slots=True)
class Spread:
    """How a quantity is spread over partitions.

    :param skew: the largest over the mean: 1 where all are alike, the number of partitions where one has everything.
    """

    total: int
    smallest: int
    median: float
    largest: int
    largest_partition: int
    skew: float

    @classmethod
    def of(cls, by_partition: dict[int, int]) -> Spread:
        """Measure; there has to be a partition."""
        largest = max(by_partition, key=lambda p: by_partition[p])
        values = by_partition.values()
        mean = sum(values) / len(values)
        return cls(
            total=sum(values),
            smallest=min(values),
            median=median(values),
            largest=by_partition[largest],
            largest_partition=largest,
            skew=by_partition[largest] / mean if mean else 1.0,
        )


def directory_usage(tree: Tree) -> tuple[DirectoryUsage, ...]:
    """Measure the logs, each source, each stateful operator, and whatever else there is."""
    found = []
    if tree.files():
        found.append(_measured(".", tree.files().values()))
    for name in tree.directories():
        if name in (OFFSETS, COMMITS):
            found.append(_measured(name, tree.below(name), tree.batches(name)))
        elif name in (SOURCES, STATE):
            for inner in sorted(tree.directories(name), key=lambda n: (len(n), n)):
                path = f"{name}/{inner}"
                found.append(_measured(path, tree.below(path), _batches_of_state(tree, path) if name == STATE else ()))
        else:
            found.append(_measured(name, tree.below(name)))
    return tuple(found)


def _measured(path: str, files: Iterable[StoredFile], batches: Iterable[int] = ()) -> DirectoryUsage:
    sizes = [file.size for file in files]
    known = sorted(batches)
    return DirectoryUsage(path, len(sizes), sum(sizes), *((known[0], known[-1]) if known else (None, None)))


def _batches_of_state(tree: Tree, directory: str) -> list[int]:
    """State version V is the state after batch V-1."""
    kinds = state_files(directory, tree.files(directory))
    versions = [v.number - 1 for kind in (kinds.deltas, kinds.snapshots, kinds.zips, kinds.changelogs) for v in kind]
    for name in tree.directories(directory):
        if name not in RESERVED:
            versions += _batches_of_state(tree, f"{directory}/{name}")
    return versions


def partition_usage(tree: Tree, closure: Closure | None) -> tuple[PartitionUsage, ...]:
    """Measure each store of each partition.

    Keys come from the zips that the closure names, whose content is in hand since it was resolved.

    :param closure: of the newest committed batch; ``None`` where it cannot be resolved.
    """
    needed = {(c.operator, c.partition, c.store): c for c in closure.stores} if closure else {}
    places = set(needed) | {
        (operator, partition, store)
        for operator in tree.numbered_directories(STATE)
        for partition in tree.numbered_directories(f"{STATE}/{operator}")
        for store in _stores_in(tree, f"{STATE}/{operator}/{partition}")
    }
    return tuple(_of_partition(tree, *place, needed.get(place)) for place in sorted(places))


def _stores_in(tree: Tree, partition: str) -> list[str]:
    named = [name for name in tree.directories(partition) if name not in RESERVED]
    return [*([DEFAULT_STORE] if holds_state(tree.files(partition)) else []), *named]


def _of_partition(
    tree: Tree, operator: int, partition: int, store: str, closure: StoreClosure | None
) -> PartitionUsage:
    directory = store_directory(operator, partition, store)
    files = [*tree.files(directory).values()]
    for shared in ("SSTs", "logs"):
        files += tree.files(f"{directory}/{shared}").values()
    keys, version = _keys(tree, closure) if closure else (None, None)
    return PartitionUsage(
        operator=operator,
        partition=partition,
        store=store,
        files=len(files),
        bytes=sum(file.size for file in files),
        needed_bytes=sum(file.size for file in closure.files) if closure else None,
        keys=keys,
        keys_at_version=version,
    )


def _keys(tree: Tree, closure: StoreClosure) -> tuple[int | None, int | None]:
    for file in closure.files:
        name = file.path.rpartition("/")[2]
        if name.endswith(".zip"):
            try:
                keys = key_count(tree.read(file), path=file.path)
            except (CkptError, FileNotFoundError):
                return None, None
            return keys, int(name.removesuffix(".zip").partition("_")[0])
    return None, None
