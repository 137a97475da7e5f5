"""In which order files of a checkpoint are removed and written, so that Spark refuses to start from whatever is there in between.

The seal is what keeps Spark from starting. This is the second safeguard, should somebody lift it half-way: no Spark starts
without the entry of ``offsets/`` before the newest one. So that one is removed first, and written last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.operators import STATE
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.storage.file_set import FileSet
from airflow_ckpt_provider.storage.store import StoredFile

#: Paths that are written one after the other, before and after the rest.
_LOGS = (f"{OFFSETS}/", f"{COMMITS}/")


def highest_offsets(paths: Iterable[str]) -> int:
    """Highest number of the paths that lie in ``offsets/``; -1 without any."""
    return max((number for path in paths if (number := _number(path)) is not None), default=-1)


def newest_offsets_first(paths: Iterable[str]) -> list[str]:
    """Those of the paths that are entries of ``offsets/``, from the newest on."""
    numbered = ((number, path) for path in paths if (number := _number(path)) is not None)
    return [path for _, path in sorted(numbered, reverse=True)]


def removal_groups(removes: FileSet) -> Iterator[tuple[bool, Iterable[StoredFile]]]:
    """Files to remove, in groups that follow each other: ``offsets/`` but for its newest entry, state, the rest, that entry.

    :param removes: the files, as they were listed.
    :return: whether the files of a group may go side by side, and the files.
    """
    entries = newest_offsets_first(removes)
    gates = set(entries)
    yield False, [removes[path] for path in entries[1:]]
    yield True, (file for file in removes.values() if file.path.startswith(f"{STATE}/"))
    yield True, (f for f in removes.values() if f.path not in gates and not f.path.startswith(f"{STATE}/"))
    yield False, [removes[path] for path in entries[:1]]


def write_order(paths: Callable[[], Iterable[str]]) -> tuple[list[str], list[str]]:
    """Which files are written one by one before all others, and which after them.

    :param paths: makes the paths of all files to write.
    :return: first the newest entry of ``offsets/``, the query's id and its commit; last the other entries, newest first.
    """
    entries = newest_offsets_first(paths())
    newest = entries[0].rpartition("/")[2] if entries else None
    wanted = [METADATA_FILE, f"{COMMITS}/{newest}"]
    there = {path for path in paths() if path in wanted}
    return [*entries[:1], *(path for path in wanted if path in there)], entries[1:]


def is_log(path: str) -> bool:
    """Whether a file is one of the logs, whose order of writes keeps Spark from starting half-way."""
    return path == METADATA_FILE or path.startswith(_LOGS)


def _number(path: str) -> int | None:
    directory, _, name = path.partition("/")
    return batch_id_of(name) if directory == OFFSETS else None
