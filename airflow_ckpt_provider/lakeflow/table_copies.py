"""The steps around a full refresh: copy the tables before, bring back what only the copies have, count, tidy up.

Every step notes what it found, so that a second attempt does nothing twice. A copy is made, and compared with the table's
newest version, only right before a start is sent, when it is known that no earlier one has emptied the table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from airflow_ckpt_provider.errors import RefusedError, WorkspaceError
from airflow_ckpt_provider.lakeflow.refresh_plan import DROP, KEEP
from airflow_ckpt_provider.lakeflow.tables import APPEND_ONCE, INSERT, TableRecovery, expired, list_backups

log = logging.getLogger(__name__)

Rows = list[list[str | None]]
#: Fact of a table: ids of updates after which it may be empty, though its copy is not. Then it is not copied again.
EMPTIED_BY = "emptied_by"


class Sql(Protocol):
    """Statements on a warehouse, each carried out once as far as that can be; what came of them outlives the process."""

    def ask(self, statement: str) -> Rows:
        """Run a statement that reads, and wait for it here: its answer is of now, and is not kept."""
        ...

    def run(self, name: str, statement: str) -> Rows:
        """Run a statement that may be run again; one of that name that has ended is not."""
        ...

    def run_once(self, name: str, statement: str) -> bool:
        """Run a statement that must not be run twice; ``False`` where nobody knows whether it was."""
        ...

    def forget(self, name: str) -> None:
        """Let a statement be run again."""
        ...


class TableCopies:
    """Copies of the tables that a full refresh empties; one of :class:`~airflow_ckpt_provider.lakeflow.starting.Prepared`.

    :param sql: the warehouse.
    :param tables: the tables; those without a copy are left out.
    :param facts: what was found of each table, by its name; plain JSON that outlives the process.
    :param keep: writes the facts down.
    :param blank: an attempt before may have left a copy of which nothing here knows, so that nobody knows its version.
    """

    def __init__(
        self,
        sql: Sql,
        tables: Sequence[TableRecovery],
        facts: dict[str, Any],
        keep: Callable[[], None],
        *,
        blank: bool = False,
    ) -> None:
        self._sql, self._facts, self._keep, self._blank = sql, facts, keep, blank
        self._planned = [table for table in tables if table.backup]
        self._newest: dict[str, int] = {}

    @property
    def tables(self) -> list[TableRecovery]:
        """The tables, each with the name of its newest copy."""
        return [replace(table, backup=self._of(table).get("backup", table.backup)) for table in self._planned]

    def emptied_by(self, table: TableRecovery) -> list[str]:
        """Ids of updates after which a table may be empty, though its copy is not."""
        return list(self._of(table).get(EMPTIED_BY, ()))

    def outdated(self) -> bool:
        """Ask for the newest version of each table; return whether one of them has no whole copy of it."""
        for table in self._planned:
            # Where a copy is still to be made, its version is compared again after it, so this wait may be handed over.
            first = "version" not in self._of(table)
            asked = table.newest_version
            rows = self._sql.run(f"version {table.backup}", asked) if first else self._sql.ask(asked)
            newest = self._newest[table.table] = number(rows)
            if EMPTIED_BY in self._of(table):
                self._of(table).setdefault("emptied_at", newest)
        whole = {table.table for table in self._planned if "rows" in self._of(table)}
        return any(name not in whole or _copied(self._facts[name]) != newest for name, newest in self._newest.items())

    def renew(self) -> None:
        """Copy each table of which :meth:`outdated` found a newer version, under a new name if it has a copy already.

        :raises RefusedError: a table was changed while it was copied, or since it was emptied.
        """
        for table in self.tables:
            facts, newest = self._of(table), self._newest[table.table]
            if _copied(facts) != newest:
                if EMPTIED_BY in facts:
                    raise RefusedError(
                        f"{table.table} was written after it was emptied: {table.backup} has its rows of before, and no copy has "
                        "the new ones",
                        hint=f"bring back what {table.table} lacks of {table.backup} by SQL; start a new run to refresh again",
                    )
                if "version" in facts or self._blank:
                    facts.setdefault("former", []).append(table.backup)
                    table = table.renewed(newest)
                facts |= {"version": newest, "backup": table.backup}
                facts.pop("rows", None)
            if "rows" not in facts:
                self._copy(table, facts)

    def _copy(self, table: TableRecovery, facts: dict[str, Any]) -> None:
        self._keep()
        self._sql.run(f"copy {table.backup}", table.copy)
        version = number(self._sql.ask(table.newest_version))
        if version != facts["version"]:
            raise RefusedError(
                f"{table.table} was changed while it was copied: version {facts['version']} before, {version} after",
                hint=f"stop what writes to it, drop {table.backup}, and clear this task",
            )
        facts["rows"] = number(self._sql.run(f"rows {table.backup}", table.count(table.backup)))
        self._keep()
        log.info("%s: copied %s rows of version %s to %s", table.table, facts["rows"], version, table.backup)

    def bring_back(self, table: TableRecovery, *, settle: Callable[[], None]) -> None:
        """Bring back what the table lacks of its copy, and count; nothing where the pipeline itself does it.

        :param settle: waits until a statement whose answer was lost must have shown its effect.
        :raises RefusedError: it is not to be known whether the rows were inserted.
        """
        facts = self._of(table)
        if not table.backfill or table.backfill == APPEND_ONCE or "verified" in facts:
            return
        if "rows" not in facts:
            facts["rows"] = number(self._sql.run(f"rows {table.backup}", table.count(table.backup)))
        before = number(self._sql.run(f"before {table.table}", table.count(table.table)))
        lacking = number(self._sql.run(f"lacking {table.table}", table.missing))
        if lacking:
            self._insert(table, lacking, settle)
        after = number(self._sql.run(f"after {table.table}", table.count(table.table)))
        missing = number(self._sql.run(f"missing {table.table}", table.missing))
        if table.doubled:
            doubled = number(self._sql.run(f"doubled {table.table}", table.doubled))
        else:
            doubled = max(0, after - before - lacking)
        facts["verified"] = {
            "table": table.table,
            "backup_rows": facts["rows"],
            "rows_after_refresh": before,
            "brought_back": after - before,
            "rows": after,
            "missing": missing,
            "doubled": doubled,
            "ok": missing == 0 and doubled == 0,
        }
        self._keep()
        log.info("%s: %s", table.table, facts["verified"])

    def drop(self, clean_up: str, *, now: datetime) -> list[str]:
        """Drop copies that are not wanted any more, once the counts agree; return their names.

        :param clean_up: ``keep``, ``drop_when_verified``, or a number of days.
        """
        if clean_up == KEEP:
            return []
        dropped = []
        for table in (table for table in self.tables if "verified" in self._of(table)):
            ours = [replace(table, backup=name) for name in (*self._of(table).get("former", ()), table.backup)]
            for old in ours if clean_up == DROP else self._older(table, now - timedelta(days=int(clean_up))):
                self._sql.run(f"drop {old.backup}", old.drop)
                dropped.append(old.backup)
        return dropped

    def to_json(self) -> dict[str, Any]:
        """What was found, as plain JSON: ``backups``, ``backfill``, ``verification``."""
        copied = self.tables
        known = {table.table: self._of(table) for table in copied}
        return {
            "backups": [
                {
                    "table": t.table,
                    "backup": t.backup,
                    **{name: known[t.table].get(name) for name in ("version", "rows")},
                }
                for t in copied
            ],
            "backfill": [{"table": t.table, "way": t.backfill} for t in copied if t.backfill],
            "verification": [facts["verified"] for facts in known.values() if "verified" in facts],
        }

    def _of(self, table: TableRecovery) -> dict[str, Any]:
        facts: dict[str, Any] = self._facts.setdefault(table.table, {})
        return facts

    def _insert(self, table: TableRecovery, lacking: int, settle: Callable[[], None]) -> None:
        name = f"bring back {table.table}"
        if table.backfill != INSERT:
            self._sql.run(name, table.bring_back)  # a merge by keys may be sent again
            return
        while not self._sql.run_once(name, table.bring_back):
            log.warning("%s: the answer to the INSERT was lost; looking whether it was carried out", table.table)
            settle()
            self._sql.forget(f"again {table.table}")
            left = number(self._sql.run(f"again {table.table}", table.missing))
            if left == 0:
                return
            if left != lacking:
                raise RefusedError(
                    f"{table.table}: UNKNOWN what became of the INSERT: {lacking} rows lacked before, {left} lack now",
                    hint="somebody else writes to the table: stop the pipeline, and bring back the rest by hand",
                )
            self._sql.forget(name)

    def _older(self, table: TableRecovery, than: datetime) -> list[TableRecovery]:
        rows = self._sql.run(f"copies {table.table}", list_backups(table.table))
        schema = table.table.rpartition(".")[0]
        names = expired([str(row[1]) for row in rows if len(row) > 1], f"{than:%Y%m%d}")
        return [TableRecovery(table.table, f"{schema}.{name}" if schema else name) for name in names]


def _copied(facts: Mapping[str, Any]) -> Any:
    """The version of a table that needs no other copy."""
    return facts.get("emptied_at", facts.get("version"))


def number(rows: Rows) -> int:
    """Return the number in the first column of the first row.

    :raises WorkspaceError: there is none.
    """
    try:
        return int(str(rows[0][0]))
    except (IndexError, ValueError) as e:
        raise WorkspaceError(f"a count came back as {rows!r}") from e
