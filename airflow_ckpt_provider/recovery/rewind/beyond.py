"""The files of a checkpoint that lie beyond a batch: what a rewind takes away, and nothing older.

Left in place they do harm, mostly silently (measured on Spark 4.3): a commit beyond the newest offset fails the query,
an entry of a file source's log is read together with the next one, a state snapshot of the abandoned time line is loaded
at the next cold start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_ckpt_provider.checkpoint.closure import Closure
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry
from airflow_ckpt_provider.checkpoint.operators import STATE, has_state_up_to
from airflow_ckpt_provider.checkpoint.sources import SOURCES, log_ends
from airflow_ckpt_provider.checkpoint.tree import Tree

_STATE_FILE = re.compile(r"(?P<version>\d+)(?:_[0-9a-fA-F-]{36})?\.(?:delta|snapshot|zip|changelog)(?:\.crc)?")
_SCHEMA = re.compile(r"(?P<batch>\d+)_.*")


def files_beyond(tree: Tree, closure: Closure, end: OffsetEntry) -> tuple[str, ...]:
    """Paths of what lies beyond a closure, sorted.

    Table files of RocksDB (``SSTs/``) stay: their names are unique, nothing refers to them any more, and Spark's own
    maintenance removes them.

    :param tree: the checkpoint's files.
    :param closure: of the batch that is rewound to.
    :param end: the newest offset log entry that is kept: the batch's own, or the next one's where that is replayed.
    """
    batch_id = closure.batch_id
    kept = {file.path for file in closure.files}
    found = {
        *(f"{OFFSETS}/{b}" for b in tree.batches(OFFSETS) if b > end.batch_id),
        *(f"{COMMITS}/{b}" for b in tree.batches(COMMITS) if b > batch_id),
        *_source_entries(tree, end),
        *_state(tree, closure),
    }
    return tuple(sorted(found - kept))


def _source_entries(tree: Tree, end: OffsetEntry) -> Iterator[str]:
    for source, last in log_ends(tree, end).items():
        directory = f"{SOURCES}/{source}"
        for name in tree.files(directory):
            log_id = batch_id_of(name.removesuffix(".compact"))
            if log_id is not None and log_id > last:
                yield f"{directory}/{name}"


def _state(tree: Tree, closure: Closure) -> Iterator[str]:
    batch_id = closure.batch_id
    partitions: dict[int, set[int]] = {}
    for part in closure.stores:
        partitions.setdefault(part.operator, set()).add(part.partition)
    for operator in tree.numbered_directories(STATE):
        root = f"{STATE}/{operator}"
        yield from (
            f"{root}/_metadata/v2/{name}"
            for name in tree.files(f"{root}/_metadata/v2")
            if (b := batch_id_of(name)) is not None and b > batch_id
        )
        for store in tree.directories(f"{root}/_stateSchema"):
            for name in tree.files(f"{root}/_stateSchema/{store}"):
                match = _SCHEMA.fullmatch(name)
                if match and int(match["batch"]) > batch_id:
                    yield f"{root}/_stateSchema/{store}/{name}"
        for partition in tree.numbered_directories(root):
            if (
                operator in partitions
                and partition not in partitions[operator]
                and not has_state_up_to(tree, operator, partition, batch_id + 1)
            ):
                # All of it is newer than the batch: of an offline repartition that came later.
                yield from (file.path for file in tree.below(f"{root}/{partition}"))
            else:
                yield from _versions(tree, f"{root}/{partition}", batch_id + 1)


def _versions(tree: Tree, directory: str, newest: int) -> Iterator[str]:
    """State files of versions after ``newest``, in a partition's directory and those of its stores."""
    for place in (directory, *(f"{directory}/{name}" for name in tree.directories(directory))):
        for name in tree.files(place):
            match = _STATE_FILE.fullmatch(name)
            if match and int(match["version"]) > newest:
                yield f"{place}/{name}"
