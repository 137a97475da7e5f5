"""Whether data files of a Delta table are still there: a few of its newest ones, or those that only an older version needs."""

from __future__ import annotations

from itertools import islice
from urllib.parse import unquote

from airflow_ckpt_provider.guards.delta_log import AddedFile, directories_of, read_delta_log
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.sinks.table_history import TableHistory
from airflow_ckpt_provider.storage.location import Location

#: Newest commits whose files are looked for, and how many files at most: one small read each.
_COMMITS = 20
_FILES = 16


def missing_data_file(table: Location, version: int | None = None) -> str | None:
    """The path of a data file that a version of a table needs and that is gone; ``None`` if there is none missed.

    Only files of the newest commits up to it are looked for, so ``None`` is no proof that the version is whole.

    :param table: the table's directory.
    :param version: the version; ``None``: the newest one.
    :raises UnreadableLogError: a commit cannot be parsed.
    :raises StorageError: the store could not be read.
    """
    log = read_delta_log(table)
    active: dict[str, None] = {}
    for number in [n for n in log.commits if version is None or n <= version][-_COMMITS:]:
        commit = log.commit(number)
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


def missing_for_version(table: Location, history: TableHistory, version: int) -> str | None:
    """The path of a file that an older version needs and that is gone; ``None`` if all are there.

    ``VACUUM`` deletes only what the newest version does not have. So only files that left the table since are looked for, and
    of those only the ones in the table's own directory.

    :param table: the table's directory.
    :param history: its log.
    :param version: the version.
    """
    came: set[str] = set()
    needed: set[str] = set()
    for commit in history.commits[max(version - history.first + 1, 0) :]:
        needed |= commit.removed - came
        came |= commit.added
    # Relative paths are URIs without a scheme: percent-encoded.
    paths = [
        AddedFile(unquote(path), None) for path in sorted(needed) if "://" not in path and not path.startswith("/")
    ]
    for directory, names in sorted(directories_of(paths).items()):
        there = {file.path.rpartition("/")[2] for file in table.list(directory).files}
        if gone := sorted(names - there):
            return f"{directory}/{gone[0]}" if directory else gone[0]
    return None
