"""The same history of a Delta table by delta-rs alone, without a Spark."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, QueryBuilder, Transaction, write_deltalake
from deltalake.schema import PrimitiveType

from tests.support.checkpoints import metadata
from tests.support.delta_history import OTHERS, History
from tests.support.sink_model import Rows


class DeltaRsHistory(History):
    """The same by delta-rs alone, which is fast: it writes what the others do, and a batch as Delta's sink does."""

    common = ("owner", "owner", "delta.enableChangeDataFeed", "delta.setTransactionRetentionDuration")
    rare = ("delta.appendOnly",)
    _by_spark = frozenset({"restore", "restore to a time", "clone"})

    def others(self, *names: str) -> str:
        return super().others(*(name for name in names or OTHERS if name not in self._by_spark))

    def create(self) -> None:
        self.place.replace("metadata", metadata(self.query_id))
        write_deltalake(self.out, _arrow(Counter()))
        self.sync()

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.out)

    def held(self, table: Path | None = None) -> Rows:
        found = QueryBuilder().register("t", DeltaTable(table or self.out)).execute("SELECT id, v FROM t")
        return Counter((str(row["id"]), int(row["v"])) for row in pa.table(found.read_all()).to_pylist())

    def insert(self, table: Path, rows: Rows, txn: tuple[str, int] | None = None) -> None:
        if (about := self._not_remembered(table, txn)) is not None:
            write_deltalake(table, _arrow(rows), mode="append", schema_mode="merge", commit_properties=about)

    def merge_rows(self, table: Path, rows: Rows, txn: tuple[str, int] | None = None) -> None:
        if (about := self._not_remembered(table, txn)) is not None:
            merge = DeltaTable(table).merge(_arrow(rows), "t.id = s.id", "s", "t", commit_properties=about)
            merge = merge.when_matched_update({"v": "s.v"}).when_not_matched_insert({"id": "s.id", "v": "s.v"})
            self._may_refuse(merge.execute)

    def _not_remembered(self, table: Path, txn: tuple[str, int] | None) -> CommitProperties | None:
        if txn is None:
            return CommitProperties()
        remembered = DeltaTable(table).transaction_version(txn[0])
        if remembered is not None and remembered >= txn[1]:
            return None
        # As Delta's sink, with the time: where a table forgets by it, one without is forgotten at once.
        return CommitProperties(app_transactions=[Transaction(*txn, int(time.time() * 1000))])

    def delete_rows(self, where: str) -> None:
        self._may_refuse(lambda: self.table.delete(where))

    def update_rows(self, where: str) -> None:
        self._may_refuse(lambda: self.table.update({"v": "v + 100"}, predicate=where))

    def overwrite(self, rows: Rows) -> None:
        self._may_refuse(lambda: write_deltalake(self.out, _arrow(rows), mode="overwrite", schema_mode="merge"))

    def set_property(self, name: str, value: str) -> None:
        self.table.alter.set_table_properties({name: value}, raise_if_not_exists=False)

    def add_constraint(self, name: str) -> None:
        self.table.alter.add_constraint({name: "id is not null"})

    def add_column(self, name: str) -> None:
        self.table.alter.add_columns(Field(name, PrimitiveType("integer")))

    def optimize(self) -> None:
        self.table.optimize.compact()

    def vacuum(self) -> None:
        self.table.vacuum(0, enforce_retention_duration=False, dry_run=False)

    def _may_refuse(self, deed: Callable[[], object]) -> None:
        try:
            deed()
        except Exception as e:  # such as an append-only table
            raise AssertionError(f"failed: {e}") from e


def _arrow(rows: Rows) -> pa.Table:
    found = list(rows.elements())
    ids, numbers = [id_ for id_, _ in found], [v for _, v in found]
    return pa.table({"id": pa.array(ids, pa.string()), "v": pa.array(numbers, pa.int64())})
