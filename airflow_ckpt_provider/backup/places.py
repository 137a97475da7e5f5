"""Whether the files of a backup can lie beside each other in a checkpoint: a forged manifest may list some that cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.file_table import FileTable


class Misplaced(NamedTuple):
    """A file that no restore could write.

    :param path: its path in the checkpoint.
    :param why: what is wrong with it, in words.
    """

    path: str
    why: str


def misplaced(entries: Sequence[FileEntry]) -> Misplaced | None:
    """Find the first file that no restore could write.

    Reads the entries twice, and keeps the directories; where they are not in order, their paths too.

    :param entries: the files of a batch, or of a backup.
    :return: it; ``None``: there is none.
    """
    ordered = isinstance(entries, FileTable) and entries.is_ordered
    directories: set[str] = set()
    seen: set[str] = set()
    before = ""
    for entry in entries:
        path = entry.path
        if path == before or path in seen:
            return Misplaced(path, f"{path} is listed twice")
        if path[0] == "." or "/." in path:
            return Misplaced(path, f"{path} is a hidden file, which Spark would not see")
        before = path
        if not ordered:
            seen.add(path)
        parent = path.rpartition("/")[0]
        while parent and parent not in directories:
            directories.add(parent)
            parent = parent.rpartition("/")[0]
    for entry in entries:
        if entry.path in directories:
            return Misplaced(entry.path, f"{entry.path} is listed as a file, and as a directory with files in it")
    return None
