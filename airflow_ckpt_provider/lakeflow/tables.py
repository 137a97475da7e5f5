"""The SQL around a full refresh: keep a copy of a table, bring back what the source no longer had, and count.

All statements may be sent again after a lost answer, but the one that inserts: copies are made only if absent, a merge by
keys inserts what is missing, counts read.
"""

# ruff: noqa: S608  # names are quoted; predicates are the user's own SQL
from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_ckpt_provider.errors import RefusedError

APPEND_ONCE, INSERT, MERGE = "append_once", "insert", "merge"
BACKFILLS = (APPEND_ONCE, INSERT, MERGE)
#: How a copy is made.
DEEP_CLONE, CTAS = "deep_clone", "ctas"
COPIES = (DEEP_CLONE, CTAS)
_MARK = "__ckpt_"
_BACKUP = re.compile(rf"{_MARK}(\d{{8}})_[0-9a-f]{{8}}$")


def quoted(name: str) -> str:
    """Quote a name of up to three parts.

    :raises RefusedError: it is no name.
    """
    parts = [part.strip("`") for part in name.split(".")]
    if not 1 <= len(parts) <= 3 or any(not part or "`" in part for part in parts):
        raise RefusedError(f"{name!r} is no name of a table", hint="give catalog.schema.table")
    return ".".join(f"`{part}`" for part in parts)


@dataclass(frozen=True, slots=True)
class TableRecovery:
    """One table that a full refresh empties.

    :param table: its full name.
    :param backup: full name of the copy; empty if there is none kept.
    :param keys: columns that identify its rows; none where rows are compared as a whole.
    :param where: SQL predicate for the rows of the copy that are brought back; empty: all.
    :param backfill: ``append_once``, ``insert``, ``merge``, or empty.
    :param by: ``deep_clone`` or ``ctas``.
    """

    table: str
    backup: str = ""
    keys: tuple[str, ...] = ()
    where: str = ""
    backfill: str = ""
    by: str = DEEP_CLONE

    def __post_init__(self) -> None:
        if self.backfill == MERGE and not self.keys:
            raise RefusedError(
                f"table {self.table}: a backfill by MERGE needs the columns that identify rows",
                hint="give keys={table: […]}",
            )
        if self.backfill == INSERT and self.keys:
            raise RefusedError(
                f"table {self.table} has keys: INSERT would put older versions of the same rows beside the newer ones",
                hint="give backfill='merge', or leave keys out where rows are compared as a whole",
            )

    def renewed(self, version: int) -> TableRecovery:
        """The same with a copy of another name: the table was written after the first copy was made.

        :param version: the table's newest; the same name for the same version.
        """
        found = _BACKUP.search(self.backup)
        token = hashlib.sha256(f"{self.backup}/{version}".encode()).hexdigest()[:8]
        return replace(self, backup=backup_name(self.table, found[1] if found else "00000000", token))

    @property
    def newest_version(self) -> str:
        """Asks which version of the table is the newest; the first column."""
        return f"DESCRIBE HISTORY {quoted(self.table)} LIMIT 1"

    @property
    def copy(self) -> str:
        """Makes the copy, only if absent: a second attempt comes after the table was emptied.

        Of streaming tables the vendor clones only the newest version, and only with its history
        (``DELTA_DEEP_CLONE_MV_ST_ERROR``).
        """
        made = f"CREATE TABLE IF NOT EXISTS {quoted(self.backup)}"
        if self.by == CTAS:
            return f"{made} AS SELECT * FROM {quoted(self.table)}"
        return f"{made} DEEP CLONE {quoted(self.table)} WITH HISTORY"

    def count(self, table: str) -> str:
        """Counts the rows of a table."""
        return f"SELECT count(*) AS n FROM {quoted(table)}"

    @property
    def bring_back(self) -> str:
        """Brings back the rows of the copy that the table does not have."""
        if self.backfill == MERGE:
            source = f"(SELECT * FROM {quoted(self.backup)} WHERE {self.where})" if self.where else quoted(self.backup)
            return f"MERGE INTO {quoted(self.table)} AS t USING {source} AS b ON {self._same} WHEN NOT MATCHED THEN INSERT *"
        return f"INSERT INTO {quoted(self.table)} {self._difference}"

    @property
    def missing(self) -> str:
        """Counts the rows of the copy that the table does not have."""
        if self.keys:
            where = f"({self.where}) AND " if self.where else ""
            return (
                f"SELECT count(*) AS n FROM {quoted(self.backup)} AS b WHERE {where}NOT EXISTS "
                f"(SELECT 1 FROM {quoted(self.table)} AS t WHERE {self._same})"
            )
        return f"SELECT count(*) AS n FROM ({self._difference}) AS d"

    @property
    def doubled(self) -> str | None:
        """Counts keys that the table has more than once; ``None`` without keys."""
        if not self.keys:
            return None
        columns = ", ".join(quoted(key) for key in self.keys)
        several = f"SELECT {columns} FROM {quoted(self.table)} GROUP BY {columns} HAVING count(*) > 1"
        return f"SELECT count(*) AS n FROM ({several}) AS d"

    @property
    def drop(self) -> str:
        """Drops the copy."""
        return f"DROP TABLE IF EXISTS {quoted(self.backup)}"

    @property
    def snippet(self) -> str:
        """The flow that brings the copy back by the pipeline itself, once, for ``backfill="append_once"``."""
        name = self.table.rpartition(".")[2].strip("`")
        # json.dumps writes a text as Python does, in double quotes.
        where = f".where({json.dumps(self.where, ensure_ascii=False)})" if self.where else ""
        flow = json.dumps(f"backfill_{self.backup.rpartition('.')[2].strip('`')}", ensure_ascii=False)
        function = re.sub(r"\W", "_", f"backfill_{name}")
        return (
            "from pyspark import pipelines as dp\n\n\n"
            f"@dp.append_flow(target={json.dumps(name, ensure_ascii=False)}, once=True, name={flow})\n"
            f"def {function}():\n"
            f"    return spark.read.table({json.dumps(self.backup, ensure_ascii=False)}){where}\n"
        )

    @property
    def _same(self) -> str:
        return " AND ".join(f"t.{quoted(key)} <=> b.{quoted(key)}" for key in self.keys)

    @property
    def _difference(self) -> str:
        where = f" WHERE {self.where}" if self.where else ""
        return f"SELECT * FROM {quoted(self.backup)}{where} EXCEPT ALL SELECT * FROM {quoted(self.table)}"


def backup_name(table: str, day: str, token: str) -> str:
    """Name the copy of a table: the same for all attempts of a run.

    :param day: ``YYYYMMDD``, for the clean-up.
    :param token: what distinguishes runs, eight hexadecimal digits.
    """
    return f"{table}{_MARK}{day}_{token}"


def list_backups(table: str) -> str:
    """Asks for all copies of a table; the second column has their bare names."""
    schema, _, name = table.rpartition(".")
    where = f" IN {quoted(schema)}" if schema else ""
    # The pattern knows * and |, and is text of SQL: a quote in a name ends it otherwise.
    pattern = "".join("." if c in "*|" else c for c in name.strip("`")).replace("\\", "\\\\").replace("'", "\\'")
    return f"SHOW TABLES{where} LIKE '{pattern}{_MARK}*'"


def expired(names: Sequence[str], before: str) -> tuple[str, ...]:
    """Return those copies that were made before a day (``YYYYMMDD``); other tables are left out."""
    return tuple(name for name in names if (m := _BACKUP.search(name)) and m[1] < before)
