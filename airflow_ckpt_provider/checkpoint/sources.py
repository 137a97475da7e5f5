"""``sources/<n>/``: logs that sources keep of their own, and what of them a batch needs."""

from __future__ import annotations

from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OffsetEntry
from airflow_ckpt_provider.checkpoint.source_offsets import FileOffset
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import MissingFileError
from airflow_ckpt_provider.storage.store import StoredFile

SOURCES = "sources"


def source_closure(tree: Tree, entry: OffsetEntry) -> list[StoredFile]:
    """Files of the sources' logs that a start after ``entry`` needs.

    A file source needs its log up to the entry's offset and nothing beyond: entries beyond it would be taken as read
    together. Of any other source everything is kept: Kafka and rate write one file once, others are closed to us.

    :raises MissingFileError: an entry of a file source's log is gone.
    """
    needed: list[StoredFile] = []
    ends = log_ends(tree, entry)
    for name in sorted({*tree.directories(SOURCES), *ends}):
        directory = f"{SOURCES}/{name}"
        if name in ends:
            needed += _file_log(tree, directory, ends[name])
        else:
            needed += tree.below(directory)
    return needed


def log_ends(tree: Tree, entry: OffsetEntry) -> dict[str, int]:
    """Where the logs of the file sources end at an entry: directory name -> last log id; -1 where nothing was read yet.

    :param tree: the checkpoint's files.
    :param entry: the offset log entry.
    """
    ends = {s.source: s.offset.log_offset for s in entry.sources if isinstance(s.offset, FileOffset)}
    unnamed = [name for name in tree.directories(SOURCES) if batch_id_of(name) is None and name not in ends]
    if ends and len(ends) == len(entry.sources):
        # Spark 4.2 with source evolution names the directories but writes positional offsets, so which is which is not
        # recorded. All are file sources here: the largest offset bounds each of them.
        bound = max(ends.values())
        if unnamed:
            return {name: max((i for i in _log_ids(tree, name) if i <= bound), default=-1) for name in unnamed}
    return ends


def _log_ids(tree: Tree, source: str) -> list[int]:
    names = (name.removesuffix(".compact") for name in tree.files(f"{SOURCES}/{source}"))
    return [i for i in map(batch_id_of, names) if i is not None]


def _file_log(tree: Tree, directory: str, last: int) -> list[StoredFile]:
    """The newest compacted file up to ``last`` (it holds all entries before) and the entries after it."""
    files = tree.files(directory)
    compacted = (batch_id_of(name.removesuffix(".compact")) for name in files if name.endswith(".compact"))
    base = max((i for i in compacted if i is not None and i <= last), default=-1)
    needed = [files[f"{base}.compact"]] if base >= 0 else []
    for log_id in range(base + 1, last + 1):
        if str(log_id) not in files:
            raise MissingFileError(
                f"{directory}/{log_id} is missing: the file source's log must be whole up to {last}",
                path=f"{directory}/{log_id}",
                hint="Spark would fail with `batch … doesn't exist`; restore the file from a backup",
            )
        needed.append(files[str(log_id)])
    return needed
