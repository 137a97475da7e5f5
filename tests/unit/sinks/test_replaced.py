"""Somebody takes all rows out of a table, perhaps for others: the batches that the table remembers are not in it any more."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

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

    def test_some_of_it(self, table: IcebergSink) -> None:
        table.table.delete(f"row = '{QUERY}/2'")
        assert table.look(3, newest=3).verdict is Verdict.SAFE
