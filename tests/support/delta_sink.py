"""A Delta table that a query wrote to."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from airflow_ckpt_provider.guards import delta_client
from airflow_ckpt_provider.guards.delta_log import commit_path
from airflow_ckpt_provider.sinks.delta import inspect_delta
from airflow_ckpt_provider.sinks.delta_history import read_table_history
from airflow_ckpt_provider.sinks.delta_rollback import TableTarget, roll_back_table
from airflow_ckpt_provider.sinks.delta_sink import described
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.storage.opening import open_location

QUERY, OTHER = "query-1", "query-2"


class Table:
    """A table that streams write to, as Delta's sink does: what the table remembers is skipped silently."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.place = open_location(self.path)

    def batch(self, *batches: int, query: str = QUERY, updated: int | None = None) -> Table:
        """
        :param updated: the ``lastUpdated`` of the ``txn``, in milliseconds; ``None``: it has none.
        """
        for batch in batches:
            if self._remembered(query) < batch:
                self._write([f"{query}/{batch}"], Transaction(query, batch, updated))
        return self

    def rows(self, *rows: str) -> Table:
        self._write(list(rows))
        return self

    def restore(self, version: int) -> Table:
        """As Spark's RESTORE: content is rewound, memory does not."""
        DeltaTable(self.path).restore(version)
        return self

    def roll_back(self, batch: int) -> Table:
        report = self.look(batch)
        assert report.rollback is not None, report
        assert report.rollback.to_version is not None
        target = TableTarget(self.place, report.rollback.to_version, QUERY, batch, f"plan-{self.version}", {})
        roll_back_table(target, expected=report.rollback.from_version)
        return self

    def optimize(self) -> Table:
        DeltaTable(self.path).optimize.compact()
        return self

    def clean_log(self, below: int) -> Table:
        """A log checkpoint, and the commits before it gone, as Delta's own clean-up leaves it."""
        DeltaTable(self.path).create_checkpoint()
        for version in range(below):
            self.place.delete(commit_path(version))
        return self

    @property
    def version(self) -> int:
        return DeltaTable(self.path).version()

    @property
    def held(self) -> set[str]:
        return set(DeltaTable(self.path).to_pyarrow_table()["row"].to_pylist())

    def look(self, batch: int, query: str = QUERY) -> SinkReport:
        history = described(self.place, read_table_history(self.place))
        remembered = None
        if history.remembered(query) is None and not history.is_whole:
            remembered = delta_client.remembered(self.place, query, storage_options={})
        return inspect_delta(history, QueryIds.of(query), batch, remembered={query: remembered})

    def _remembered(self, query: str) -> int:
        if not (Path(self.path) / "_delta_log").exists():
            return -1
        found = DeltaTable(self.path).transaction_version(query)
        return -1 if found is None else found

    def _write(self, rows: list[str], *transactions: Transaction) -> None:
        properties = CommitProperties(app_transactions=list(transactions))
        write_deltalake(self.path, pa.table({"row": rows}), mode="append", commit_properties=properties)
