"""A rewind is suspended right before its commit to the sink, or leaves a Spark behind, and is undone meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable, TableFeatures

from airflow_ckpt_provider.errors import LeaseLostError, RefusedError
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.delta_rollback import TableTarget
from airflow_ckpt_provider.sinks.delta_sink import DeltaSink
from airflow_ckpt_provider.sinks.iceberg_sink import IcebergSink
from airflow_ckpt_provider.sinks.kinds import SinkChange, SinkKind
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.backups import stream
from tests.support.changed_sinks import change_of, restored_by_spark, spark_restores
from tests.support.checkpoints import contents, plant
from tests.support.delta_batches import append, delta_table
from tests.support.delta_sink import QUERY, Table
from tests.support.iceberg_tables import Table as IcebergTable
from tests.support.iceberg_tables import look_at
from tests.support.rewinds import NEWEST, repository
from tests.support.rewound_sinks import carry_out
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed

Held = Callable[[], object]


def delta(root: Path) -> tuple[SinkKind, SinkChange, Held]:
    table = Table(root / "t").batch(*range(7))
    report = table.look(4)
    return (
        DeltaSink(),
        change_of(Sink(place=table.place), report, query=QUERY, batch=4),
        lambda: (
            table.held,
            DeltaTable(table.path).transaction_version(QUERY),
        ),
    )


def iceberg(root: Path) -> tuple[SinkKind, SinkChange, Held]:
    table = IcebergTable(root).batch(*range(7))
    return IcebergSink(), change_of(table.sink, table.look(4), query=QUERY, batch=4), lambda: (table.held, table.head)


def hadoop(root: Path) -> tuple[SinkKind, SinkChange, Held]:
    directory = IcebergTable(root).batch(*range(7)).as_hadoop_table()
    sink = Sink(place=open_location(str(directory)))
    report = look_at(sink, 4)
    kind = IcebergSink()

    def held() -> object:
        found = kind.look(sink)
        return found.table.snapshots if found else None

    return kind, change_of(sink, report, query=QUERY, batch=4), held


KINDS = pytest.mark.parametrize("made", [delta, iceberg, hadoop])


@KINDS
class TestSuspended:
    def test_it_is_undone_meanwhile(
        self, made: Callable[[Path], tuple[SinkKind, SinkChange, Held]], tmp_path: Path
    ) -> None:
        """Its commit succeeded: the table lost the rows of 5 and 6 after the checkpoint was at 6 again."""
        kind, change, held = made(tmp_path)
        before, again = held(), replace(change, continued=True)
        undone = []

        def asleep() -> None:
            kind.check_undo(again)
            assert kind.undo(again) is None
            undone.append(kind.is_undone(again))

        with pytest.raises(RefusedError):
            kind.roll_back(replace(change, check_lease=asleep))
        assert (undone, held(), kind.is_rolled_back(change)) == ([True], before, False)
        kind.check_undo(again)
        kind.undo(again)
        assert (held(), kind.is_rolled_back(again)) == (before, False)
        with pytest.raises(RefusedError):
            kind.roll_back(change)  # it was before its first look at the table
        with pytest.raises(RefusedError, match="was brought forward again by an undo of rewind p, which was not ended"):
            kind.check(again)
        assert held() == before

    def test_it_is_resumed_meanwhile(
        self, made: Callable[[Path], tuple[SinkKind, SinkChange, Held]], tmp_path: Path
    ) -> None:
        kind, change, held = made(tmp_path)
        resumed: list[object] = []

        def asleep() -> None:
            kind.roll_back(replace(change, continued=True))
            resumed.append(held())

        with pytest.raises(RefusedError):
            kind.roll_back(replace(change, check_lease=asleep))
        assert [held()] == resumed
        assert kind.is_rolled_back(change)

    def test_its_lease_is_checked_right_before_the_commit(
        self, made: Callable[[Path], tuple[SinkKind, SinkChange, Held]], tmp_path: Path
    ) -> None:
        kind, change, held = made(tmp_path)

        def lost() -> None:
            raise LeaseLostError("another attempt took over", hint="")

        before = held()
        with pytest.raises(LeaseLostError):
            kind.roll_back(replace(change, check_lease=lost))
        assert held() == before
        kind.roll_back(change)
        after = held()
        with pytest.raises(LeaseLostError):
            kind.undo(replace(change, check_lease=lost))
        assert held() == after
        kind.undo(change)
        assert held() == before

    def test_a_second_attempt_that_fails_leaves_the_seal(
        self, made: Callable[[Path], tuple[SinkKind, SinkChange, Held]], tmp_path: Path
    ) -> None:
        """Without it the stream starts, and the first attempt can still commit."""
        kind, change, _ = made(tmp_path)
        assert (kind.is_rolled_back(change), kind.is_rolled_back(replace(change, continued=True))) == (False, None)


def test_somebody_else_wrote_so_nothing_has_to_be_shut_out(tmp_path: Path) -> None:
    table = Table(tmp_path / "t").batch(*range(7))
    change = change_of(Sink(place=table.place), table.look(4), query=QUERY, batch=4, continued=True)
    table.rows("theirs")
    assert (DeltaSink().undo(change), table.version, DeltaSink().is_rolled_back(change)) == (None, 7, False)


def test_the_suspended_attempt_was_first(tmp_path: Path) -> None:
    """It wakes up right before the undo's commit: the undo is refused, and run again it brings the table forward."""
    table = Table(tmp_path / "t").batch(*range(7))
    change, kind = change_of(Sink(place=table.place), table.look(4), query=QUERY, batch=4), DeltaSink()
    before = table.held
    with pytest.raises(
        RefusedError, match="was written to at the same moment, perhaps by the attempt that is undone"
    ) as e:
        kind.undo(replace(change, check_lease=lambda: kind.roll_back(change)))
    assert e.value.hint == "run the same command again"
    kind.check_undo(change)
    assert kind.undo(change) == 8
    assert table.held == before


class TestSparkIsLeftBehind:
    """The task is killed; the ``spark-submit`` that it started runs on."""

    @pytest.fixture
    def table(self, tmp_path: Path) -> Location:
        table = delta_table(tmp_path / "t", [0])
        feature = TableFeatures.DeletionVectors
        DeltaTable(table.uri).alter.add_feature(feature, allow_protocol_versions_increase=True)
        return delta_table(tmp_path / "t", range(1, NEWEST + 1))

    @pytest.fixture
    def orders(self, place: Location) -> Location:
        return plant(place / "orders", stream(NEWEST))

    def killed(self, orders: Location, table: Location) -> TableTarget:
        running: list[TableTarget] = []

        def by_spark(target: TableTarget, expected: int) -> None:
            running.append(target)
            raise Killed

        with pytest.raises(Killed):
            carry_out(orders, [Sink(place=table, by_spark=by_spark)])
        return running[0]

    def test_the_undo_is_refused(self, orders: Location, table: Location) -> None:
        """It ended at once, and then Spark took the rows of 5 and 6 out."""
        before, target = contents(orders), self.killed(orders, table)
        sink = [Sink(place=table, by_spark=spark_restores)]
        sealed = contents(orders)
        with pytest.raises(
            RefusedError, match=r"was not ended, and .* has no RESTORE of it; a Spark that it started may"
        ) as e:
            undo(orders, repository(orders), sink=sink, rest=STOPPED)
        assert str(e.value.hint).startswith(
            "run the same rewind again, which ends it, and undo that; or see that no Spark"
        )
        assert contents(orders) == sealed
        restored_by_spark(target)
        assert carry_out(orders, sink).table_version == NEWEST + 2
        undo(orders, repository(orders), sink=sink, rest=STOPPED)
        assert contents(orders) == before
        assert DeltaTable(table.uri).version() == NEWEST + 3

    def test_any_commit_lets_it_refuse(self, orders: Location, table: Location) -> None:
        before, target = contents(orders), self.killed(orders, table)
        append(table.uri, 777, app_id=None)
        undo(orders, repository(orders), sink=[Sink(place=table, by_spark=spark_restores)], rest=STOPPED)
        assert contents(orders) == before
        with pytest.raises(AssertionError, match="it refuses"):
            spark_restores(target, NEWEST + 1)
