"""The guard of Iceberg sources, on real tables of a SQL catalog."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_ckpt_provider.checkpoint.offsets import SourceOffset
from airflow_ckpt_provider.checkpoint.source_offsets import IcebergOffset, OpaqueOffset, parse_offset
from airflow_ckpt_provider.guards.iceberg import IcebergGuard
from airflow_ckpt_provider.guards.registry import GuardedSource, GuardSettings, judge_source
from airflow_ckpt_provider.guards.report import SourceReport
from airflow_ckpt_provider.verdict import Verdict
from tests.unit.sinks.iceberg_tables import NAME, Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "lake").rows("a").rows("b")


def text(snapshot: int, position: int = 1, *, everything: bool = False) -> str:
    """As Spark writes it."""
    value = {"version": 1, "snapshot_id": snapshot, "position": position, "scan_all_files": everything}
    return json.dumps(value, separators=(",", ":"))


def judge(
    table: Table,
    start: int,
    *,
    end: int | None = None,
    where: str = f"iceberg:{NAME}",
    reader: dict[str, str] | None = None,
) -> SourceReport:
    catalog = {f"catalog.{key}": value for key, value in table.properties.items()}
    options = {"table.0": where, **catalog, **{f"option.0.{key}": value for key, value in (reader or {}).items()}}
    planned = parse_offset(text(end)) if end is not None else None
    source = GuardedSource(SourceOffset("0", parse_offset(text(start))), planned)
    return judge_source(source, [IcebergGuard(GuardSettings(options={"iceberg": options}))])


def test_the_offset() -> None:
    assert parse_offset(text(-1, -1)) == IcebergOffset(text(-1, -1), -1, -1, False)
    assert parse_offset(text(5, 3, everything=True)) == IcebergOffset(text(5, 3, everything=True), 5, 3, True)
    for other in (
        '{"version":1,"snapshot_id":5,"position":3}',
        '{"version":1,"snapshot_id":"5","position":3,"scan_all_files":true}',
    ):
        assert isinstance(parse_offset(other), OpaqueOffset)


def test_an_ancestor_is_safe(table: Table) -> None:
    head = table.head or 0
    assert (judge(table, head).verdict, judge(table, head).lost) == (Verdict.SAFE, 0)
    table.rows("c")
    assert judge(table, head, end=table.head).verdict is Verdict.SAFE


def test_an_expired_snapshot(table: Table) -> None:
    head = table.head or 0
    table.rows("c").expire(2)
    report = judge(table, head)
    assert (report.verdict, report.lost) == (Verdict.WILL_FAIL, None)
    assert f"snapshot {head}, which the checkpoint has read up to, has expired" in report.reasons[0]


def test_a_table_that_was_rolled_back(table: Table) -> None:
    head = table.batch(0, 1).head or 0
    table.rollback(0)
    report = judge(table, head)
    assert report.verdict is Verdict.WILL_FAIL
    assert "is not an ancestor of the current one" in report.reasons[0]


def test_a_planned_batch_whose_end_is_gone(table: Table) -> None:
    start = table.batch(0).head or 0
    end = table.batch(1).head
    table.rollback(0)
    report = judge(table, start, end=end)
    assert report.verdict is Verdict.WILL_FAIL
    assert f"snapshot {end}, up to which the next batch was planned" in report.reasons[0]


@pytest.mark.parametrize(
    ("reader", "verdict"),
    [({}, Verdict.WILL_FAIL), ({"streaming-skip-delete-snapshots": "true"}, Verdict.WILL_SKIP)],
)
def test_a_delete(table: Table, reader: dict[str, str], verdict: Verdict) -> None:
    head = table.head or 0
    table.table.delete("row = 'a'")
    assert judge(table, head, reader=reader).verdict is verdict


def test_by_the_directory_of_a_catalogs_table_it_is_unknown(table: Table) -> None:
    assert judge(table, table.head or 0, where=str(table.directory)).verdict is Verdict.UNKNOWN


def test_a_hadoop_table(table: Table) -> None:
    head = table.head or 0
    assert judge(table, head, where=str(table.as_hadoop_table())).verdict is Verdict.SAFE


def test_what_was_not_given(table: Table, tmp_path: Path) -> None:
    assert judge(table, -1).verdict is Verdict.UNKNOWN
    assert judge(table, table.head or 0, where=str(tmp_path / "nothing")).verdict is Verdict.WILL_FAIL
    source = GuardedSource(SourceOffset("0", parse_offset(text(7))))
    report = judge_source(source, [IcebergGuard(GuardSettings())])
    assert report.reasons == ("no table was given for source 0: an offset of Iceberg does not name its table",)
