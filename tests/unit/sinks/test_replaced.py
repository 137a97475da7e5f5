"""Somebody takes all rows out of a table, perhaps for others: the batches that the table remembers are not in it any more."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from airflow_ckpt_provider.sinks.delta import inspect_delta
from airflow_ckpt_provider.sinks.described_history import described_history
from airflow_ckpt_provider.sinks.iceberg_history import EPOCH_ID, QUERY_ID, history_of_metadata
from airflow_ckpt_provider.sinks.named_tables import Described
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.verdict import Verdict
from tests.support.delta_sink import QUERY
from tests.support.delta_sink import Table as DeltaSink
from tests.support.iceberg_tables import Table as IcebergSink

LEFT_NO_ROW = "left no row in the table that it had before: whether it holds the rows of batches 0 to 3 is not known"


def overwrite(path: str, *rows: str) -> None:
    write_deltalake(path, pa.table({"row": list(rows)}), mode="overwrite")


@pytest.fixture
def delta(tmp_path: Path) -> DeltaSink:
    return DeltaSink(tmp_path / "table").batch(0, 1, 2, 3)


class TestDelta:
    @pytest.mark.parametrize("how", ["overwritten", "emptied", "overwritten and the log cleaned up"])
    def test_all_of_it(self, how: str, delta: DeltaSink) -> None:
        assert delta.look(3).verdict is Verdict.SAFE
        if how == "emptied":
            DeltaTable(delta.path).delete()
        else:
            overwrite(delta.path, "others")
        if how.endswith("cleaned up"):
            delta.clean_log(1)
        report = delta.look(3)
        held = LEFT_NO_ROW.replace("0 to 3", "1 to 3") if how.endswith("cleaned up") else LEFT_NO_ROW
        assert report.verdict is Verdict.UNKNOWN
        assert any(reason.endswith(held) for reason in report.reasons), report.reasons
        assert report.reasons[0].startswith(f"version 4 ({'DELETE' if how == 'emptied' else 'WRITE'} at ")

    def test_before_newer_batches(self, delta: DeltaSink) -> None:
        overwrite(delta.path, "others")
        report = delta.batch(4, 5).look(5)
        assert report.verdict is Verdict.UNKNOWN
        assert report.reasons[0].endswith(LEFT_NO_ROW)

    def test_where_a_roll_back_takes_it_back(self, delta: DeltaSink) -> None:
        """What a rollback removes with the batches is not in the way of the start after it."""
        delta.batch(4)
        overwrite(delta.path, "others")
        report = delta.look(3)
        assert (report.verdict, report.doubts) == (Verdict.WILL_SKIP, ())
        delta.roll_back(3)
        assert delta.held == {f"{QUERY}/{batch}" for batch in range(4)}
        assert delta.look(3).verdict is Verdict.SAFE

    def test_taken_back_by_a_restore(self, delta: DeltaSink) -> None:
        overwrite(delta.path, "others")
        assert delta.restore(3).look(3).verdict is Verdict.SAFE

    def test_the_stream_itself_writes_all_again(self, delta: DeltaSink) -> None:
        """As a query in output mode complete does: there is nothing before its newest batch that could be missing."""
        overwrite(delta.path, "others")
        own = CommitProperties(app_transactions=[Transaction(QUERY, 4)])
        write_deltalake(delta.path, pa.table({"row": ["all"]}), mode="overwrite", commit_properties=own)
        assert delta.held == {"all"}
        assert delta.look(4).verdict is Verdict.SAFE

    def test_by_row_they_stay(self, delta: DeltaSink) -> None:
        """All files are new, and hold what they held."""
        DeltaTable(delta.path).update(predicate="row != ''", new_values={"row": "x"})
        overwritten = delta.optimize()
        assert overwritten.held == {"x"}
        assert overwritten.look(3).verdict is Verdict.SAFE

    def test_one_of_its_files(self, delta: DeltaSink) -> None:
        DeltaTable(delta.path).delete(f"row = '{QUERY}/2'")
        assert delta.look(3).verdict is Verdict.SAFE

    def test_rows_of_one_file_of_all_of_them(self, tmp_path: Path) -> None:
        """A table of one file: it is written again without one row."""
        table = DeltaSink(tmp_path / "one").batch(0).rows("a", "b").optimize()
        DeltaTable(table.path).delete("row = 'a'")
        assert table.held == {f"{QUERY}/0", "b"}
        assert table.look(0).verdict is Verdict.SAFE

    @pytest.mark.parametrize("newest", [4, 5])
    def test_the_stream_overwrites_one_partition(self, newest: int, tmp_path: Path) -> None:
        """The last batch takes out all files that are left, and writes no more than one day again."""
        path = str(tmp_path / "days")
        for batch in range(newest + 1):
            if batch == 4:
                DeltaTable(path).delete()
            how = {"mode": "append"} if batch < 4 else {"mode": "overwrite", "predicate": "day = '5'"}
            day = str(batch) if batch < 4 else "5"
            write_days(path, day, batch, **how)
        assert DeltaTable(path).to_pyarrow_table().to_pylist() == [{"day": "5", "row": str(newest)}]
        assert DeltaSink(Path(path)).look(newest).verdict is Verdict.UNKNOWN

    @pytest.mark.parametrize("how", ["overwritten", "deleted"])
    def test_one_partition_of_a_table_whose_log_was_cleaned_up(self, how: str, tmp_path: Path) -> None:
        """The log that is left names that partition alone; the rows of older days are there."""
        path = str(tmp_path / "days")
        for batch in range(20):
            write_days(path, "old" if batch < 15 else "today", batch, mode="append")
        if how == "deleted":
            DeltaTable(path).delete("day = 'today'")
        else:
            write_days(path, "today", None, mode="overwrite", predicate="day = 'today'")
        write_days(path, "tomorrow", 20, mode="append")
        table = DeltaSink(Path(path)).clean_log(15)
        assert table.look(20).verdict is Verdict.SAFE

    def test_others_overwrite_their_own_rows_beside_batches_without_rows(self, tmp_path: Path) -> None:
        table = DeltaSink(tmp_path / "table").rows("theirs")
        table._write([], Transaction(QUERY, 0))
        overwrite(table.path, "theirs again")
        assert table.look(0).verdict is Verdict.SAFE


def write_days(path: str, day: str, batch: int | None, **how: str) -> None:
    own = CommitProperties(app_transactions=[] if batch is None else [Transaction(QUERY, batch)])
    rows = pa.table({"day": [day], "row": [str(batch)]})
    write_deltalake(path, rows, commit_properties=own, **how, **({"partition_by": ["day"]} if batch == 0 else {}))  # type: ignore[call-overload]


class TestByName:
    """``DESCRIBE HISTORY`` names operations and no files."""

    @pytest.mark.parametrize(
        ("operation", "parameters", "verdict"),
        [
            ("TRUNCATE", {}, Verdict.UNKNOWN),
            ("CREATE OR REPLACE TABLE AS SELECT", {}, Verdict.UNKNOWN),
            ("CLONE", {"source": "sales.other", "isShallow": "true"}, Verdict.UNKNOWN),
            ("WRITE", {"mode": "Overwrite", "partitionBy": "[]"}, Verdict.UNKNOWN),
            ("DELETE", {"predicate": '["true"]'}, Verdict.UNKNOWN),
            ("WRITE", {"mode": "Overwrite", "predicate": "day = '5'"}, Verdict.SAFE),
            ("WRITE", {"mode": "Overwrite", "isDynamicPartitionOverwrite": "true"}, Verdict.SAFE),
            ("WRITE", {"mode": "Append"}, Verdict.SAFE),
            ("DELETE", {"predicate": "[\"(day#12 = '5')\"]"}, Verdict.SAFE),
            ("MERGE", {"predicate": "[]"}, Verdict.SAFE),
        ],
    )
    def test_before_newer_batches(self, operation: str, parameters: dict[str, str], verdict: Verdict) -> None:
        others = (operation, parameters)
        found = by_name(*(own(batch) for batch in range(4)), others, own(4))
        assert found.verdict is verdict, found.reasons

    def test_the_stream_itself_writes_all_again(self) -> None:
        complete = ("STREAMING UPDATE", {**own(4)[1], "outputMode": "Complete"})
        assert by_name(own(3), ("TRUNCATE", {}), complete).verdict is Verdict.SAFE


def own(batch: int) -> tuple[str, dict[str, str]]:
    return "STREAMING UPDATE", {"queryId": QUERY, "epochId": str(batch), "outputMode": "Append"}


def by_name(*operations: tuple[str, dict[str, str]]) -> SinkReport:
    rows = [("CREATE TABLE", {}), *operations]
    history = [
        {"version": n, "timestamp": f"2026-01-01T00:{n:02}:00Z", "operation": operation, "operationParameters": given}
        for n, (operation, given) in enumerate(rows)
    ]
    described = Described(detail={"format": "delta", "id": "x"}, history=history)
    return inspect_delta(described_history("unity:c.s.t", described, feature="catalogManaged"), QueryIds.of(QUERY), 4)


class TestIceberg:
    @pytest.fixture
    def table(self, tmp_path: Path) -> IcebergSink:
        return IcebergSink(tmp_path).batch(0, 1, 2, 3)

    @pytest.mark.parametrize("rows", [[], ["others"]])
    def test_all_of_it(self, rows: list[str], table: IcebergSink) -> None:
        assert table.look(3, newest=3).verdict is Verdict.SAFE
        table.table.overwrite(pa.table({"row": pa.array(rows, pa.string())}))
        assert table.held == rows
        report = table.look(3, newest=3)
        assert report.verdict is Verdict.UNKNOWN
        assert report.reasons[0].endswith(LEFT_NO_ROW)

    @pytest.mark.parametrize("operation", ["delete", "overwrite"])
    def test_by_a_writer_that_counts_no_files(self, operation: str) -> None:
        """The table format leaves the counts of a summary to the writer."""
        own = {"operation": "append", "added-records": "2", QUERY_ID: QUERY, EPOCH_ID: "3"}
        snapshots: list[dict[str, object]] = [
            {"snapshot-id": n, "timestamp-ms": n, "sequence-number": n, "summary": summary}
            for n, summary in enumerate((own, {"operation": operation}), start=1)
        ]
        snapshots[1]["parent-snapshot-id"] = 1
        metadata = {"table-uuid": "t", "current-snapshot-id": 2, "snapshots": snapshots, "refs": {}}
        history = history_of_metadata(metadata, "iceberg:t", path="t")
        assert inspect_delta(history, QueryIds.of(QUERY), 3).verdict is Verdict.UNKNOWN

    def test_some_of_it(self, table: IcebergSink) -> None:
        table.table.delete(f"row = '{QUERY}/2'")
        assert table.look(3, newest=3).verdict is Verdict.SAFE
