"""The history of a Delta table, as ``DESCRIBE HISTORY`` shows it: what was written when, by which query, in which batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.lakeflow.progress import moment
from airflow_ckpt_provider.units import is_number

#: Entries that are asked for. Where so many come back there may be older ones.
ENTRIES = 1000
#: Operations by which flows write rows.
WRITES = frozenset({"STREAMING UPDATE", "WRITE", "MERGE"})
#: Operations that change no row of a table.
WITHOUT_ROWS = frozenset(
    {
        "OPTIMIZE",
        "VACUUM START",
        "VACUUM END",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "ADD COLUMNS",
        "CHANGE COLUMN",
        "ADD CONSTRAINT",
        "COMPUTE STATS",
        "FSCK",
        "REORG",
        "CLUSTER BY",
        "DLT SETUP",
    }
)
#: Removes files that were put out of use.
VACUUM = frozenset({"VACUUM START", "VACUUM END"})
#: Operations that put no file out of use, unless they overwrite.
_KEEPS_FILES = WITHOUT_ROWS - {"OPTIMIZE", "REORG", "FSCK"} | {"STREAMING UPDATE", "WRITE", "CREATE TABLE"}


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry.

    :param version: of the table.
    :param time: of the commit, in UTC.
    :param operation: in Delta's word.
    :param query_id: of the streaming query that wrote it; empty if it is not reported.
    :param epoch: number of its batch; ``None`` if it is not reported.
    :param rows: that it wrote; ``None`` if it is not reported.
    :param overwrites: it put its rows in the place of others.
    """

    version: int
    time: datetime
    operation: str
    query_id: str = ""
    epoch: int | None = None
    rows: int | None = None
    overwrites: bool = False


@dataclass(frozen=True, slots=True)
class TableHistory:
    """A table's history.

    :param commits: newest first.
    :param table_id: the table's own id, which a table that was recreated does not have; empty: not known.
    :param complete: whether all that the table's log still has is among them.
    """

    commits: tuple[Commit, ...]
    table_id: str = ""
    complete: bool = True

    @property
    def newest_write(self) -> Commit | None:
        """The newest commit by which a flow can have written rows."""
        return next((commit for commit in self.commits if commit.operation in WRITES), None)

    def since(self, time: datetime) -> tuple[Commit, ...]:
        """Commits at or after a time, newest first."""
        return tuple(commit for commit in self.commits if commit.time >= time)

    def after(self, version: int) -> tuple[Commit, ...]:
        """Commits after a version, newest first."""
        return tuple(commit for commit in self.commits if commit.version > version)


def foreign(commits: Iterable[Commit], *, merges: bool) -> tuple[str, ...]:
    """Name operations that may have taken rows away, with their versions.

    :param merges: flows write the table by MERGE, so that one is no stranger's.
    """
    known = (WRITES if merges else WRITES - {"MERGE"}) | WITHOUT_ROWS
    return tuple(f"{c.operation} (version {c.version})" for c in commits if c.operation not in known or c.overwrites)


def removes_files(commit: Commit) -> bool:
    """Whether a commit may have put files out of use, which VACUUM removes later."""
    return commit.overwrites or commit.operation not in _KEEPS_FILES


def history_of(rows: Sequence[Mapping[str, Any]], detail: Sequence[Mapping[str, Any]] = ()) -> TableHistory:
    """Read what the statements returned.

    :param rows: of ``DESCRIBE HISTORY``.
    :param detail: of ``DESCRIBE DETAIL``, for the id.
    """
    commits = sorted(filter(None, map(_commit, rows)), key=lambda commit: -commit.version)
    table_id = str(next(iter(detail), {}).get("id") or "")
    return TableHistory(tuple(commits), table_id, len(rows) < ENTRIES and len(commits) == len(rows))


def written_rows(commits: Iterable[Commit]) -> int | None:
    """Rows that commits wrote; ``None`` where one does not show."""
    rows = [commit.rows for commit in commits]
    return sum(each for each in rows if each is not None) if None not in rows else None


@dataclass(frozen=True, slots=True)
class _Json:
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, text: Any) -> _Json:
        try:
            found = load_json(text) if isinstance(text, str) else text
        except ValueError:
            found = None
        return cls(found if isinstance(found, Mapping) else {})

    def number(self, name: str) -> int | None:
        text = str(self.values.get(name, ""))
        return int(text) if is_number(text.removeprefix("-")) else None


def _commit(row: Mapping[str, Any]) -> Commit | None:
    time = moment(row.get("timestamp"))
    version = str(row.get("version") or "")
    if time is None or not is_number(version):
        return None
    parameters, metrics = _Json.of(row.get("operationParameters")), _Json.of(row.get("operationMetrics"))
    return Commit(
        int(version),
        time,
        str(row.get("operation") or ""),
        str(parameters.values.get("queryId") or ""),
        parameters.number("epochId"),
        metrics.number("numOutputRows"),
        str(parameters.values.get("mode") or "").lower() == "overwrite",
    )
