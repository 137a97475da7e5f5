"""Whether the newest data files of a Delta table are still there: a look at a few of them."""

from __future__ import annotations

from itertools import islice

from airflow_ckpt_provider.backup.transfer import in_parallel
from airflow_ckpt_provider.guards.delta_log import read_delta_log
from airflow_ckpt_provider.storage.location import Location

#: Newest commits whose files are looked for, and how many files at most: one small read each.
_COMMITS = 20
_FILES = 16


def missing_data_file(table: Location) -> str | None:
    """The path of a data file that the newest version of a table needs and that is gone; ``None`` where none is missed.

    Only files of the newest commits are looked for, so ``None`` is no proof that the table is whole.

    :param table: the table's directory.
    :raises UnreadableLogError: a commit cannot be parsed.
    :raises StorageError: the store could not be read.
    """
    log = read_delta_log(table)
    active: dict[str, None] = {}
    for version in list(log.commits)[-_COMMITS:]:
        commit = log.commit(version)
        for path in commit.dropped:
            active.pop(path, None)
        active |= dict.fromkeys(file.path for file in commit.added if not file.is_elsewhere)

    def is_gone(path: str) -> bool:
        try:
            table.read_part(path, 0, 4)
        except FileNotFoundError:
            return True
        return False

    paths = list(islice(reversed(active), _FILES))
    return next((path for path, gone in zip(paths, in_parallel(is_gone, paths), strict=True) if gone), None)
