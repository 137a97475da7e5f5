"""A rewind, or its undo, is resumed after somebody has restored the table: its commit counts only while it is in effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, TableFeatures

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.delta_sink import DeltaSink
from airflow_ckpt_provider.sinks.described_sink import DescribedSink
from airflow_ckpt_provider.sinks.kinds import SinkChange, SinkStart
from airflow_ckpt_provider.sinks.named_tables import Described
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.sinks.table_history import TableCommit, TableHistory
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import stream
from tests.support.changed_sinks import after_writing, change_of, spark_restores
from tests.support.checkpoints import contents, plant
from tests.support.delta_batches import append, delta_table
from tests.support.delta_sink import QUERY, Table
from tests.support.rewinds import NEWEST, repository
from tests.support.rewound_sinks import carry_out, plan_of
from tests.support.stopped import STOPPED

KIND = DeltaSink()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table").batch(*range(7))


def rewind_of(table: Table) -> SinkChange:
    return change_of(Sink(place=table.place), table.look(4), query=QUERY, batch=4, continued=True)


def mine(table: Table) -> list[int]:
    return sorted(int(row.partition("/")[2]) for row in table.held if row.startswith(QUERY))


class TestARewind:
    def test_somebody_restored_what_was_before(self, table: Table) -> None:
        """It was taken for done: the table had batches 5 and 6, and their replay was written beside them."""
        change = rewind_of(table)
        assert KIND.roll_back(change) == 7
        table.restore(6)
        for again in (KIND.check, KIND.roll_back):
            with pytest.raises(RefusedError) as e:
                again(change)
            assert e.value.message.startswith(
                f"{table.place} was changed by plan p in version 7, and restored since by ver"
            )
            assert e.value.message.endswith("which reverted that; it was not changed now")
            restore = f"RESTORE TABLE delta.`{table.place.uri}` TO VERSION AS OF 7"
            assert e.value.hint == (
                f"restore version 7, without what was written since ({restore}), then run the same command again"
            )
        table.restore(7)  # the hint
        KIND.check(change)
        assert KIND.roll_back(change) == 7
        assert mine(table) == [0, 1, 2, 3, 4]
        assert table.batch(5, 6).held == {f"{QUERY}/{batch}" for batch in range(7)}

    @pytest.mark.parametrize("version", [5, 2, 0])
    def test_or_any_other_version_before_it(self, table: Table, version: int) -> None:
        change = rewind_of(table)
        KIND.roll_back(change)
        table.restore(version)
        with pytest.raises(RefusedError, match="and restored since by version 8"):
            KIND.check(change)

    @pytest.mark.parametrize("version", [4, 7])
    def test_a_restore_to_the_same_rows_reverts_nothing(self, table: Table, version: int) -> None:
        change = rewind_of(table)
        KIND.roll_back(change)
        table.rows("theirs").restore(version)
        KIND.check(change)
        assert KIND.roll_back(change) == 7

    def test_what_others_write_later_is_theirs(self, table: Table) -> None:
        change = rewind_of(table)
        KIND.roll_back(change)
        table.rows("a").rows("b").optimize().restore(8).rows("c")
        KIND.check(change)
        assert KIND.roll_back(change) == 7

    def test_restored_by_hand_it_is_undone_by_its_memory_alone(self, table: Table) -> None:
        change = rewind_of(table)
        KIND.roll_back(change)
        table.restore(6).rows("theirs")
        KIND.check_undo(change)
        assert KIND.undo(change) == 10
        assert KIND.undo(change) == 10
        assert mine(table) == list(range(7))
        assert "theirs" in table.held
        table.batch(5, 6, 7)
        assert (mine(table), DeltaTable(table.path).transaction_version(QUERY)) == (list(range(8)), 7)


class TestAnUndo:
    def test_somebody_restored_what_the_rewind_had_made(self, table: Table) -> None:
        """It was taken for done: the checkpoint was put back to 6, and the rows of 5 and 6 were in no table."""
        change = rewind_of(table)
        KIND.roll_back(change)
        assert KIND.undo(change) == 8
        table.restore(7)
        for again in (KIND.check_undo, KIND.undo):
            with pytest.raises(RefusedError, match="by plan p-undo in version 8, and restored since by version 9"):
                again(change)
        table.restore(8)  # the hint
        KIND.check_undo(change)
        assert KIND.undo(change) == 8
        assert mine(table) == list(range(7))

    def test_what_others_write_later_is_theirs(self, table: Table) -> None:
        change = rewind_of(table)
        KIND.roll_back(change)
        KIND.undo(change)
        table.rows("theirs")
        KIND.check_undo(change)
        assert KIND.undo(change) == 8


def spark_table(root: Path) -> Location:
    """A table that only Spark restores: version 1 adds the feature, version n + 1 is batch n."""
    table = delta_table(root / "t", [0])
    feature = TableFeatures.DeletionVectors
    DeltaTable(table.uri).alter.add_feature(feature, allow_protocol_versions_increase=True)
    return delta_table(root / "t", range(1, NEWEST + 1))


class TestBySpark:
    """A rewind by Spark meets another writer, and its error names two ways that lead out."""

    @pytest.fixture
    def table(self, tmp_path: Path) -> Location:
        return spark_table(tmp_path)

    @pytest.fixture
    def orders(self, place: Location) -> Location:
        return plant(place / "orders", stream(NEWEST))

    def met(self, orders: Location, table: Location) -> tuple[list[Sink], str]:
        by_spark = after_writing(lambda: append(table.uri, 777, app_id=None))
        sink = [Sink(place=table, by_spark=by_spark)]
        with pytest.raises(
            StorageError, match=r"somebody wrote version 8 .*, which took their rows out in version 9"
        ) as e:
            carry_out(orders, sink)
        return sink, str(e.value.hint)

    def batches(self, table: Location) -> list[int]:
        rows = QueryBuilder().register("t", DeltaTable(table.uri)).execute("select distinct batch from t").read_all()
        return sorted(pa.table(rows)["batch"].to_pylist())

    def test_given_back_by_hand_and_undone(self, orders: Location, table: Location) -> None:
        """Its hint ended in a rewind that was taken for done: rows of 5 and 6 were written twice."""
        before = contents(orders)
        sink, hint = self.met(orders, table)
        assert f"by hand (RESTORE TABLE delta.`{table.uri}` TO VERSION AS OF 8), undo it (`airflow-ckpt undo " in hint
        DeltaTable(table.uri).restore(8)
        with pytest.raises(RefusedError, match="and restored since by version 10"):
            carry_out(orders, sink)
        assert self.batches(table) == [*range(NEWEST + 1), 777]
        undo(orders, repository(orders), sink=sink, rest=STOPPED)
        assert contents(orders) == before
        assert (self.batches(table), DeltaTable(table.uri).version()) == ([*range(NEWEST + 1), 777], 10)

    def test_kept_and_written_again(self, orders: Location, table: Location) -> None:
        sink, hint = self.met(orders, table)
        assert hint.startswith(
            "stop whoever writes, copy those rows from version 8, run the same command again, which keeps"
        )
        assert carry_out(orders, sink).table_version == 9
        assert Checkpoint.at(orders).progress().latest_committed == 4
        assert self.batches(table) == list(range(5))


def test_spark_has_no_version_to_restore_without_rows_of_others(place: Location, tmp_path: Path) -> None:
    """Restored by hand to batch 4, and written to by another job since: its rows left, nobody was asked, and it was SAFE."""
    table = spark_table(tmp_path)
    DeltaTable(table.uri).restore(5)
    restored = plan_of(plant(place / "restored", stream(NEWEST)), [Sink(place=table, by_spark=spark_restores)])
    assert restored.sinks[0].report.rollback is not None
    assert restored.sinks[0].report.rollback.to_version == 5
    append(table.uri, 777, app_id=None)
    with pytest.raises(
        RefusedError, match="no earlier version has the rows that the table has now, and Spark makes no"
    ):
        plan_of(plant(place / "orders", stream(NEWEST)), [Sink(place=table, by_spark=spark_restores)])


def test_nor_has_the_engine_of_a_table_by_its_name() -> None:
    warehouse = Warehouse()
    warehouse.restore("", 4)
    warehouse.add("MERGE")
    sink = Sink(None, "unity", table="a.b.c", engines=(warehouse,))  # type: ignore[arg-type]
    looked = DescribedSink("unity").look(sink)
    assert looked is not None
    report = looked.verdict(SinkStart(QueryIds.of(QUERY), 4, 8))
    assert report.rollback is None
    assert str(report.obstacle).startswith("no earlier version has the rows that the table has now")


class Warehouse:
    """A table that only ``DESCRIBE HISTORY`` shows."""

    kind = "unity"
    words = "the warehouse"

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        for batch in range(9):
            self.add("STREAMING UPDATE", queryId=QUERY, epochId=str(batch))

    def add(self, operation: str, **parameters: str) -> None:
        self.rows.append(
            {
                "version": len(self.rows),
                "timestamp": f"2026-11-01T00:{len(self.rows):02d}:00Z",
                "operation": operation,
                "operationParameters": parameters,
            }
        )

    def describe(self, name: str) -> Described:
        return Described({"format": "delta", "id": "t", "properties": {}}, list(self.rows))

    def restore(self, name: str, version: int, *, plan_id: str = "") -> None:
        self.add("RESTORE", version=str(version))


class TestByItsName:
    KIND = DescribedSink("unity")

    @pytest.fixture
    def warehouse(self) -> Warehouse:
        return Warehouse()

    @pytest.fixture
    def change(self, warehouse: Warehouse) -> SinkChange:
        sink = Sink(None, "unity", table="a.b.c", engines=(warehouse,))  # type: ignore[arg-type]
        looked = self.KIND.look(sink)
        assert looked is not None
        report = looked.verdict(SinkStart(QueryIds.of(QUERY), 4, 8))
        return change_of(sink, report, query=QUERY, batch=4, continued=True, table_id="t")

    def test_a_rewind(self, warehouse: Warehouse, change: SinkChange) -> None:
        assert self.KIND.roll_back(change) == 9
        warehouse.restore("", 6)
        for again in (self.KIND.check, self.KIND.roll_back):
            with pytest.raises(RefusedError, match="in version 9, and restored since by version 10") as e:
                again(change)
            assert "(RESTORE TABLE a.b.c TO VERSION AS OF 9), then run the same" in str(e.value.hint)
        warehouse.restore("", 9)
        self.KIND.check(change)
        assert self.KIND.roll_back(change) == 9

    def test_an_undo(self, warehouse: Warehouse, change: SinkChange) -> None:
        assert (self.KIND.roll_back(change), self.KIND.undo(change)) == (9, 10)
        warehouse.restore("", 4)
        for again in (self.KIND.check_undo, self.KIND.undo):
            with pytest.raises(RefusedError, match="by plan p-undo in version 10, and restored since by version 11"):
                again(change)
        warehouse.restore("", 10)
        self.KIND.check_undo(change)
        assert self.KIND.undo(change) == 10

    def test_what_others_write_later_is_theirs(self, warehouse: Warehouse, change: SinkChange) -> None:
        self.KIND.roll_back(change)
        warehouse.add("WRITE")
        self.KIND.check(change)
        assert self.KIND.roll_back(change) == 9


@pytest.mark.parametrize(
    ("restored", "by"),
    [
        ({}, None),
        ({7: 6}, None),
        ({7: 5}, None),
        ({7: 3}, None),
        ({7: 4}, 7),
        ({7: 4, 8: 5}, None),
        ({8: -2}, 8),
        ({7: 9}, None),
    ],
)
def test_which_restore_left_a_version(restored: dict[int, int], by: int | None) -> None:
    """Version 5 restored version 3; a version that names itself or a later one is damaged, and ends all the same."""
    commits = [TableCommit(v, None, "WRITE", {}, True, restored={5: 3, **restored}.get(v)) for v in range(9)]
    left = TableHistory("t", tuple(commits)).left_by(5)
    assert (left.version if left else None) == by
