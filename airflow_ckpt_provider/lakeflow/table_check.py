"""Counting what a recovery has done to a table: rows, keys that it has twice, and what its source has and it lacks."""

# ruff: noqa: S608  # names are quoted; what is expected is the user's own SQL
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.json_text import load_rendered
from airflow_ckpt_provider.lakeflow.examine import names_of
from airflow_ckpt_provider.lakeflow.tables import TableRecovery, quoted
from airflow_ckpt_provider.verdict import Verdict

_SHAPE = 'give {table: {"keys": [columns], "expected": "SELECT <the keys> FROM <the source>"}}'


@dataclass(frozen=True, slots=True)
class TableCheck:
    """What is counted in a table.

    :param table: its full name.
    :param keys: columns that identify its rows; without them only rows are counted.
    :param expected: a query that gives the keys of all rows that the table has to have; empty: nobody knows.
    """

    table: str
    keys: tuple[str, ...] = ()
    expected: str = ""

    def __post_init__(self) -> None:
        if self.expected and not self.keys:
            raise RefusedError(
                f"table {self.table}: what is expected is compared by keys, and none are given", hint=_SHAPE
            )

    @property
    def queries(self) -> dict[str, str]:
        """The counts, by name: ``rows``; ``doubled`` and ``missing`` where they can be counted."""
        table = TableRecovery(self.table, keys=self.keys)
        found = {"rows": table.count(self.table)}
        if doubled := table.doubled:
            found["doubled"] = doubled
        if self.expected:
            same = " AND ".join(f"t.{quoted(key)} <=> e.{quoted(key)}" for key in self.keys)
            found["missing"] = (
                f"SELECT count(*) AS n FROM ({self.expected}) AS e WHERE NOT EXISTS "
                f"(SELECT 1 FROM {quoted(self.table)} AS t WHERE {same})"
            )
        return found

    def judge(self, now: Mapping[str, int], before: Mapping[str, int]) -> list[Judgement]:
        """Say what the counts mean.

        :param now: the counts.
        :param before: those of before the recovery; empty where nothing was counted then.
        """
        found = []
        if now.get("missing"):
            found.append(
                Judgement(Verdict.WILL_LOSE, f"{self.table}: {now['missing']} rows of its source are not in it")
            )
        if now["rows"] < before.get("rows", 0):
            found.append(
                Judgement(Verdict.WILL_LOSE, f"{self.table}: {now['rows']} rows, where it had {before['rows']} before")
            )
        doubled, had = now.get("doubled", 0), before.get("doubled", 0)
        if doubled > had:
            what = f", {had} of them had been before" if had else ""
            found.append(
                Judgement(Verdict.WILL_DUPLICATE, f"{self.table}: {doubled} keys are there twice or more{what}")
            )
        unknown = [name for name in ("doubled", "missing") if name not in now]
        if unknown and not found:
            found.append(Judgement(Verdict.UNKNOWN, f"{self.table}: not counted: {', '.join(unknown)}; {_SHAPE}"))
        return found


def table_checks(given: Any) -> tuple[TableCheck, ...]:
    """Read what is to be counted, as a form or Python gives it.

    :param given: table -> its keys and what is expected; as JSON text too.
    :raises RefusedError: it has another shape.
    """
    if isinstance(given, str):
        try:
            given = load_rendered(given) if given.strip() not in ("", "None") else {}
        except ValueError as e:
            raise RefusedError(f"tables is {given[:80]!r}", hint=_SHAPE) from e
    if not isinstance(given or {}, Mapping) or not all(isinstance(each, Mapping) for each in (given or {}).values()):
        raise RefusedError(f"tables is {str(given)[:80]!r}", hint=_SHAPE)
    return tuple(
        TableCheck(str(table), names_of(about.get("keys"), "keys"), str(about.get("expected") or ""))
        for table, about in (given or {}).items()
    )


def counts_markdown(checks: Sequence[TableCheck], counts: Mapping[str, Mapping[str, int]]) -> str:
    """The counts as a table for people."""
    found = ((check.table, counts[check.table]) for check in checks)
    rows = [(table, *(now.get(name, "?") for name in ("rows", "doubled", "missing"))) for table, now in found]
    return markdown.table(("table", "rows", "keys twice", "missing"), rows) + "\n"
