"""Tables of Unity Catalog: looked up over the tables interface, described and restored by statements on a SQL warehouse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.errors import RefusedError, WorkspaceForbiddenError
from airflow_ckpt_provider.guards.delta_log import CATALOG_MANAGED
from airflow_ckpt_provider.sinks.named_tables import (
    UNITY,
    Described,
    NamedTable,
    TableEngine,
    parts_of,
    quoted,
)

#: Versions of a history that are asked for: about 10 MB. A warehouse refuses a result of more than 25 MiB.
VERSIONS = 10_000
_DELTA_TABLES = ("MANAGED", "EXTERNAL", "MANAGED_SHALLOW_CLONE", "EXTERNAL_SHALLOW_CLONE")
#: Type of a table -> what it is, and what to name instead.
_OTHERS = {
    "VIEW": ("a view", "name the table that the query writes to"),
    "METRIC_VIEW": ("a metric view", "name the table that the query writes to"),
    "MATERIALIZED_VIEW": (
        "a materialized view, which a pipeline writes",
        "a query cannot write to it; for its pipeline see airflow-ckpt pipelines",
    ),
    "STREAMING_TABLE": (
        "a streaming table, which a pipeline writes",
        "its flows are recovered by airflow-ckpt pipelines, not by a checkpoint",
    ),
    "FOREIGN": ("a foreign table: another system keeps it", "name it in the system that keeps it"),
}

#: Runs a statement and returns its rows.
Statement = Callable[[str], list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class UnityCatalog(TableEngine):
    """One of :class:`~airflow_ckpt_provider.sinks.named_tables.TableEngine`.

    :param find_table: GET of a table; raises as the workspace refuses.
    :param ask: runs a statement that only reads; ``None``: no warehouse was named.
    :param change: runs a statement that is sent once.
    """

    find_table: Callable[[str], Mapping[str, Any]]
    ask: Statement | None = None
    change: Statement | None = None
    kind: str = UNITY
    words: str = "Unity Catalog"

    def resolve(self, name: str) -> NamedTable:
        """Look a table up, and see that it is a Delta table that a query can write to."""
        if len(parts_of(name)) != 3:
            raise RefusedError(
                f"{name!r} has {len(parts_of(name))} parts, and Unity Catalog names a table by three",
                hint="give CATALOG.SCHEMA.TABLE, such as main.sales.orders",
            )
        found = self._found(name)
        full, kind = str(found.get("full_name") or name), str(found.get("table_type") or "unknown")
        if kind in _OTHERS:
            what, hint = _OTHERS[kind]
            raise RefusedError(f"{full} is {what}", hint=hint)
        if kind not in _DELTA_TABLES:
            raise RefusedError(f"{full} is of the type {kind}, which is not known here", hint="name a Delta table")
        form = str(found.get("data_source_format") or "unknown")
        if form != "DELTA":
            how = f"name it as iceberg:{full}" if form == "ICEBERG" else "name a Delta table"
            raise RefusedError(f"{full} is a table of the format {form}, not DELTA", hint=how)
        if pipeline := found.get("pipeline_id"):
            raise RefusedError(
                f"{full} is written by pipeline {pipeline}",
                hint="its flows are recovered by airflow-ckpt pipelines, not by a checkpoint",
            )
        properties = found.get("properties") or {}
        managed = sorted(f for f in CATALOG_MANAGED if f"delta.feature.{f}" in properties)
        why = f"it has the feature {managed[0]}: its newest versions may not be in its log" if managed else ""
        return NamedTable(full, str(found.get("storage_location") or ""), why)

    def describe(self, name: str) -> Described:
        """Ask the warehouse for detail and history."""
        if self.ask is None:
            raise _no_warehouse(name)
        detail = self.ask(f"DESCRIBE DETAIL {quoted(name)}")
        history = self.ask(f"DESCRIBE HISTORY {quoted(name)} LIMIT {VERSIONS}")
        return Described(detail[0] if detail else {}, history)

    def restore(self, name: str, version: int, *, plan_id: str) -> None:
        """Send one ``RESTORE`` and wait for its end."""
        if self.change is None:
            raise _no_warehouse(name)
        self.change(f"RESTORE TABLE {quoted(name)} TO VERSION AS OF {version}")

    def _found(self, name: str) -> Mapping[str, Any]:
        try:
            return self.find_table(".".join(parts_of(name)))
        except WorkspaceForbiddenError as e:
            if e.status == 403:
                e.hint = f"grant the login USE CATALOG, USE SCHEMA and SELECT on {name} (MODIFY to roll it back)"
            raise
        except RefusedError as e:
            raise RefusedError(
                e.message,
                hint="check the three parts of the name, and that this login may see it (USE CATALOG, USE SCHEMA, SELECT); for a "
                "table that was dropped see SHOW TABLES DROPPED and UNDROP",
            ) from e


def _no_warehouse(name: str) -> RefusedError:
    return RefusedError(
        f"the log of {name} cannot be read from here, and no SQL warehouse is named that could describe the table",
        hint="name one (--warehouse / warehouse_id), or give credentials that may read its location",
    )
