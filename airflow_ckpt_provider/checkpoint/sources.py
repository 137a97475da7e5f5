"""``sources/<n>/``: logs that sources keep of their own, and what of them a batch needs."""

from __future__ import annotations

from collections.abc import Collection

from airflow_ckpt_provider.checkpoint.file_source_log import parse_file_log, read_file_log
from airflow_ckpt_provider.checkpoint.gaps import gaps
from airflow_ckpt_provider.checkpoint.logs import FETCH_IT, batch_id_of, refuse_empty
from airflow_ckpt_provider.checkpoint.offsets import OffsetEntry
from airflow_ckpt_provider.checkpoint.source_offsets import FileOffset
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import MissingFileError, UnreadableLogError
from airflow_ckpt_provider.storage.store import StoredFile

SOURCES = "sources"
#: Pinned setting: whether the query names its sources (Spark 4.2).
SOURCES_EVOLVE = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def source_closure(tree: Tree, entry: OffsetEntry) -> list[StoredFile]:
    """Files of the sources' logs that a start after ``entry`` needs.

    A file source needs its log up to the entry's offset and nothing beyond: entries beyond it would be taken as read
    together. Of any other source everything is kept: Kafka and rate write one file once, others are closed to us.

    :raises MissingFileError: an entry of a file source's log is gone.
    :raises UnreadableLogError: one is empty.
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
    if ends and unnamed and ends.keys().isdisjoint(tree.directories(SOURCES)):
        # Spark 4.2 with source evolution names the directories but writes positional offsets, so which is which is not
        # recorded. Of other sources the content says that they are none of these; the largest offset bounds each of the rest.
        bound = max(ends.values())
        mixed = len(ends) < len(entry.sources)
        if logs := [name for name in unnamed if not mixed or _is_file_log(tree, f"{SOURCES}/{name}")]:
            return {name: max((i for i in _log_ids(tree, name) if i <= bound), default=-1) for name in logs}
    return ends


def _is_file_log(tree: Tree, directory: str) -> bool:
    """Whether a directory has a file source's log: an entry of it names a file. Other sources write something else."""
    for file in reversed(list(tree.files(directory).values())):
        name = file.path.rpartition("/")[2]
        log_id = batch_id_of(name.removesuffix(".compact"))
        try:
            if log_id is not None and parse_file_log(tree.read(file), path=file.path, log_id=log_id):
                return True
        except (UnreadableLogError, FileNotFoundError):
            continue
    return False


def log_directory(source: str, sources: int, directories: Collection[str]) -> str | None:
    """The directory of a file source's log in ``sources/``; ``None``: which one it is was not recorded.

    Spark 4.2 with source evolution names the directories but writes positional offsets.

    :param source: position in the plan, or name, as in the offset log.
    :param sources: how many sources the query has.
    :param directories: names of the directories in ``sources/``.
    """
    named = [name for name in directories if batch_id_of(name) is None]
    if source in directories or not named or batch_id_of(source) is None:
        return source
    return named[0] if sources == len(named) == 1 else None


def unknown_log(source: str) -> tuple[str, str]:
    """What cannot be read where :func:`log_directory` knows no directory, and the reason."""
    return SOURCES, f"which directory is that of source {source} was not recorded"


def _log_ids(tree: Tree, source: str) -> list[int]:
    names = (name.removesuffix(".compact") for name in tree.files(f"{SOURCES}/{source}"))
    return [i for i in map(batch_id_of, names) if i is not None]


def _file_log(tree: Tree, directory: str, last: int) -> list[StoredFile]:
    """The newest compacted file up to ``last`` (it holds all entries before) and the entries after it.

    Also the compacted file before it, where it is still there: from two of them Spark takes the interval at which it compacts
    (``CompactibleFileStreamLog.compactInterval``). From one it derives an interval, which may be another one, and then misses
    compacted files that never were.
    """
    files = tree.files(directory)
    ids = (batch_id_of(name.removesuffix(".compact")) for name in files if name.endswith(".compact"))
    compacted = sorted(n for n in ids if n is not None and n <= last)
    base = compacted[-1] if compacted else -1
    entries = sorted(n for n in map(batch_id_of, files) if n is not None and base < n <= last)
    if missing := gaps(entries, base + 1, last):
        gap = missing[0]
        raise MissingFileError(
            f"{directory}/{gap[0]} is missing: the file source's log must be whole up to {last}",
            path=f"{directory}/{gap[0]}",
            hint=f"Spark would fail with `batch … doesn't exist`; {FETCH_IT}",
        )
    read = [*(files[f"{n}.compact"] for n in compacted[-1:]), *(files[str(n)] for n in entries)]
    for file in read:
        refuse_empty(file)
    return [*(files[f"{n}.compact"] for n in compacted[-2:-1]), *read]


def is_read(path: str, closure: Collection[str]) -> bool:
    """Whether Spark reads a file of a file source's log; of the older one of two compacted files it takes the number alone.

    :param path: the file.
    :param closure: paths of the closure that it is in.
    """
    directory, _, name = path.rpartition("/")
    if not name.endswith(".compact"):
        return True
    beside = (other.removeprefix(f"{directory}/") for other in closure if other.startswith(f"{directory}/"))
    ids = (batch_id_of(other.removesuffix(".compact")) for other in beside if other.endswith(".compact"))
    return batch_id_of(name.removesuffix(".compact")) == max((n for n in ids if n is not None), default=None)


def files_read(tree: Tree, source: str, last: int, *, sources: int) -> tuple[list[str], tuple[str, str] | None]:
    """The files that a file source has read up to an entry of its log.

    :param tree: the checkpoint's files.
    :param source: position in the plan, or name, as in the offset log.
    :param last: ``logOffset`` of the offset.
    :param sources: how many sources the query has.
    :return: their URIs as Spark has them, percent-encoded; and what of the log cannot be read, with the reason: then some may
        be missing.
    """
    name = log_directory(source, sources, tree.directories(SOURCES))
    if name is None:
        return [], unknown_log(source)
    directory = f"{SOURCES}/{name}"

    def read(name: str) -> bytes:
        file = tree.get(f"{directory}/{name}")
        if file is None:
            raise FileNotFoundError(name)
        return tree.read(file)

    log = read_file_log(tree.files(directory), read, last, directory=directory)
    return [file.path for file in log.read], log.unread[0] if log.unread else None
