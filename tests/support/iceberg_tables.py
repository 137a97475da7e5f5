"""An Iceberg table in a SQL catalog on disk, written as Spark's sink writes it: what the table remembers is skipped silently."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table as PyIcebergTable

from airflow_ckpt_provider.sinks.iceberg_history import EPOCH_ID, QUERY_ID
from airflow_ckpt_provider.sinks.iceberg_rollback import IcebergTable, set_snapshot
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.sinks.sink import Sink, inspect_sink
from airflow_ckpt_provider.storage.opening import open_location

QUERY, OTHER = "query-1", "query-2"
NAME = "lake.sales.orders"


class Table:
    """The table ``lake.sales.orders``.

    :param root: directory for the catalog and the table.
    :param rest: URI of a REST catalog; by default it is one of SQL.
    :param columns: of the table.
    """

    def __init__(
        self,
        root: Path,
        *,
        rest: str | None = None,
        columns: Sequence[tuple[str, pa.DataType]] = (("row", pa.string()),),
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        sql = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/wh"}
        self.properties = {"type": "rest", "uri": rest} if rest else sql
        self._catalog = load_catalog("lake", **self.properties)
        self._catalog.create_namespace("sales")
        self._catalog.create_table("sales.orders", pa.schema(list(columns)))

    @property
    def table(self) -> PyIcebergTable:
        return self._catalog.load_table("sales.orders")

    @property
    def directory(self) -> Path:
        return Path(self.table.location().removeprefix("file://"))

    @property
    def sink(self) -> Sink:
        return Sink.named(f"iceberg:{NAME}", open_location, storage_options=self.properties)

    def batch(self, *batches: int, query: str = QUERY) -> Table:
        for batch in batches:
            memory = self.remembered(query)
            if memory is None or memory < batch:
                self._write([f"{query}/{batch}"], {QUERY_ID: query, EPOCH_ID: str(batch)})
        return self

    def rows(self, *rows: str) -> Table:
        self._write(list(rows), {})
        return self

    def branch_batch(self, branch: str, *batches: int, query: str = QUERY) -> Table:
        for batch in batches:
            properties = {QUERY_ID: query, EPOCH_ID: str(batch)}
            self.table.append(pa.table({"row": [f"{query}/{batch}"]}), snapshot_properties=properties, branch=branch)
        return self

    def branch(self, name: str) -> Table:
        head = self.head
        assert head is not None
        self.table.manage_snapshots().create_branch(head, name).commit()
        return self

    def rollback(self, batch: int) -> Table:
        """As Spark's ``rollback_to_snapshot``."""
        found = next(s for s in self.table.snapshots() if s.summary and s.summary.get(EPOCH_ID) == str(batch))
        self.table.manage_snapshots().rollback_to_snapshot(found.snapshot_id).commit()
        return self

    def expire(self, number: int) -> Table:
        """Expire the oldest snapshots."""
        for snapshot in sorted(self.table.snapshots(), key=lambda s: s.sequence_number or 0)[:number]:
            self.table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
        return self

    def roll_back(self, batch: int) -> Table:
        rollback = self.look(batch).rollback
        assert rollback is not None
        assert rollback.to_version is not None
        assert rollback.from_version is not None
        set_snapshot(
            self.named, rollback.to_version, expected=rollback.from_version, plan_id=f"plan-{rollback.from_version}"
        )
        return self

    @property
    def named(self) -> IcebergTable:
        return IcebergTable(None, NAME, self.properties)

    @property
    def head(self) -> int | None:
        snapshot = self.table.current_snapshot()
        return snapshot.snapshot_id if snapshot else None

    @property
    def held(self) -> list[str]:
        return sorted(self.table.scan().to_arrow()["row"].to_pylist())

    def look(self, batch: int, query: str = QUERY, newest: int = 99) -> SinkReport:
        return look_at(self.sink, batch, query, newest)

    def as_hadoop_table(self) -> Path:
        """The same table as a Hadoop catalog keeps it."""
        directory = self.directory
        metadata = directory / "metadata"
        current = self.table.metadata_location.rpartition("/")[2]
        content = (metadata / current).read_bytes()
        for file in metadata.glob("*.metadata.json"):
            file.unlink()
        (metadata / "v1.metadata.json").write_bytes(content)
        (metadata / "version-hint.text").write_text("1")
        return directory

    def as_registered_table(self, work: Path) -> Table:
        """The Hadoop table after ``register_table`` in another catalog: the files of both lie side by side.

        :param work: where the catalog is made.
        """
        directory = self.as_hadoop_table()
        other = Table(work)
        other._catalog.drop_table("sales.orders")
        other._catalog.register_table("sales.orders", f"file://{directory}/metadata/v1.metadata.json")
        return other

    def remembered(self, query: str) -> int | None:
        """``SparkWrite.findLastCommittedEpochId``."""
        table = self.table
        at = table.current_snapshot()
        while at is not None:
            if at.summary and at.summary.get(QUERY_ID) == query:
                return int(str(at.summary.get(EPOCH_ID)))
            at = table.snapshot_by_id(at.parent_snapshot_id) if at.parent_snapshot_id else None
        return None

    def _write(self, rows: list[str], properties: dict[str, str]) -> None:
        self.table.append(pa.table({"row": rows}), snapshot_properties=properties)


def look_at(sink: Sink, batch: int, query: str = QUERY, newest: int = 99) -> SinkReport:
    """Judge a start after a batch."""
    return inspect_sink(sink, QueryIds.of(query), batch, newest)
