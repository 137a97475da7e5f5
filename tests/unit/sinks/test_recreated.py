"""A table that was dropped and recreated while the query went on: rows of the batches before are in none of its versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ckpt_provider.sinks.delta import inspect_delta
from airflow_ckpt_provider.sinks.query_ids import QueryIdLink, QueryIds
from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.sinks.table_history import TableCommit, TableHistory
from airflow_ckpt_provider.verdict import Verdict
from tests.support.delta_sink import OTHER, QUERY
from tests.support.iceberg_tables import Table as IcebergSink

IDS = QueryIds.of(QUERY)
CREATED = TableCommit(0, None, "CREATE TABLE", {}, False, rows=0)


def own(version: int, batch: int, operation: str = "STREAMING UPDATE", *, is_all: bool = False) -> TableCommit:
    return TableCommit(version, None, operation, {QUERY: batch}, True, rows=2, is_all=is_all)


def look(*commits: TableCommit, ids: QueryIds = IDS, unwritten: frozenset[int] = frozenset()) -> SinkReport:
    return inspect_delta(TableHistory("t", commits), ids, 6, unwritten=unwritten)


WORDS = "the table begins with batch 5 of the query, and its log is whole: if it was dropped and recreated since, the rows of "


def test_iceberg(tmp_path: Path) -> None:
    """It was SAFE: snapshots that left a table were looked for, and a recreated one never had them."""
    table = IcebergSink(tmp_path).batch(5, 6)
    report = table.look(6, newest=6)
    assert report.verdict is Verdict.UNKNOWN
    assert report.reasons[0].startswith(f"{WORDS}batches 0 to 4 are missing")
    assert table.look(5, newest=6).doubts == report.reasons


def test_iceberg_from_its_first_batch(tmp_path: Path) -> None:
    assert IcebergSink(tmp_path).rows("a").batch(0, 1, 2).look(2, newest=2).verdict is Verdict.SAFE


def test_another_stream_writes_into_it_later() -> None:
    """It was SAFE: any other id in the table was taken for one that may have written the batches."""
    other = TableCommit(3, None, "STREAMING UPDATE", {OTHER: 100}, True, rows=2)
    assert look(CREATED, own(1, 5), own(2, 6), other).reasons[0].startswith(f"{WORDS}batches 0 to 4")


def test_a_huge_number_takes_neither_time_nor_memory() -> None:
    now = 1_795_000_000_000
    report = inspect_delta(TableHistory("t", (CREATED, own(1, now))), IDS, now)
    assert f"the rows of batches 0 to {now - 1} are missing" in report.reasons[0]


@pytest.mark.parametrize("others", [(CREATED,), (TableCommit(0, None, "WRITE", {}, True, rows=9),)])
def test_whatever_it_begins_with(others: tuple[TableCommit, ...]) -> None:
    assert look(*others, own(1, 5), own(2, 6)).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    "commits",
    [
        pytest.param((CREATED, own(1, 0), *(own(b + 1, b) for b in range(1, 7))), id="batch 0 is in it"),
        pytest.param((own(7, 5), own(8, 6)), id="its log was cleaned up"),
        pytest.param((TableCommit(0, None, "CLONE", {}, True), own(1, 5), own(2, 6)), id="moved by a clone"),
        pytest.param((CREATED, own(1, 5, is_all=True), own(2, 6, is_all=True)), id="output mode complete"),
    ],
)
def test_ordinary_tables(commits: tuple[TableCommit, ...]) -> None:
    report = look(*commits)
    assert report.verdict is Verdict.SAFE, report.reasons


class TestAnotherId:
    LATER = (CREATED, own(1, 5), own(2, 6))

    def test_a_reset_has_given_it_with_a_new_table(self) -> None:
        ids = QueryIds((QueryIdLink("older", "a backup"), QueryIdLink(QUERY, "reset 7f3a", 5)))
        assert look(*self.LATER, ids=ids).verdict is Verdict.SAFE

    def test_its_numbers_begin_there(self) -> None:
        assert look(*self.LATER, ids=QueryIds((QueryIdLink(QUERY, "reset 7f3a", 5),))).verdict is Verdict.SAFE

    def test_an_unknown_one_has_written_all_of_them(self) -> None:
        older = (TableCommit(b, None, "STREAMING UPDATE", {OTHER: b}, True, rows=2) for b in range(5))
        assert look(*older, own(5, 5), own(6, 6)).verdict is Verdict.SAFE

    def test_the_batches_before_wrote_nothing_by_design(self) -> None:
        assert look(*self.LATER, unwritten=frozenset(range(5))).verdict is Verdict.SAFE
