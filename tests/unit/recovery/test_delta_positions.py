"""A position of Delta is ``SAFE`` only where the table was read and has all of it: the same table, its versions, their files."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.delta_start import NO_TABLE, TABLE_READ
from airflow_ckpt_provider.recovery.positions.asking import Question, ask
from airflow_ckpt_provider.recovery.positions.logs import logs_of_checkpoint
from airflow_ckpt_provider.recovery.positions.position import SourcePosition
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.delta_tables import delta_checkpoint, new_table, rows


def position(checkpoint: Path, table: Path | None, question: Question | None = None) -> SourcePosition:
    tables = {"0": open_location(str(table))} if table else None
    (source,) = ask(logs_of_checkpoint(open_location(str(checkpoint))), question or Question(), tables=tables).sources
    return source


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return new_table(tmp_path / "table", 5)


def commit(table: Path, version: int) -> Path:
    return table / f"_delta_log/{version:020d}.json"


def file_of(table: Path, version: int) -> Path:
    lines = [json.loads(line) for line in commit(table, version).read_text().splitlines()]
    return table / next(line["add"]["path"] for line in lines if "add" in line)


@pytest.mark.parametrize("version", [3, 5])
def test_a_table_that_has_all_of_it(tmp_path: Path, table: Path, version: int) -> None:
    place = delta_checkpoint(tmp_path / "orders", table, version)
    assert position(place, None).verdict is Verdict.UNKNOWN
    found = position(place, table)
    assert (found.verdict, found.options) == (Verdict.SAFE, {"startingVersion": str(version)})
    assert any(reason.startswith(TABLE_READ) for reason in found.reasons)
    assert NO_TABLE not in found.reasons


def test_another_table_under_the_same_path(tmp_path: Path, table: Path) -> None:
    """Spark reads it without an error from the version on: a new query knows no table id."""
    place = delta_checkpoint(tmp_path / "orders", table, 3)
    shutil.rmtree(table)
    new_table(table, 5)
    found = position(place, table)
    assert found.verdict is Verdict.WILL_LOSE
    assert "is another one (id" in found.reasons[0]


def test_versions_that_the_log_does_not_have_any_more(tmp_path: Path, table: Path) -> None:
    place = delta_checkpoint(tmp_path / "orders", table, 2)
    DeltaTable(table).create_checkpoint()
    for version in range(4):
        commit(table, version).unlink()
    found = position(place, table)
    assert found.verdict is Verdict.WILL_FAIL
    assert "the log no longer has versions 2 to 3" in found.reasons[0]


@pytest.mark.parametrize(
    ("version", "index", "gone", "verdict"), [(3, -1, 4, "WILL_FAIL"), (3, 0, 3, "WILL_DUPLICATE"), (3, -1, 1, "SAFE")]
)
def test_files_that_were_vacuumed(
    tmp_path: Path, table: Path, version: int, index: int, gone: int, verdict: str
) -> None:
    place = delta_checkpoint(tmp_path / "orders", table, version, index)
    file_of(table, gone).unlink()
    found = position(place, table)
    assert found.verdict.value == verdict
    assert any("are gone, by VACUUM or by hand" in reason for reason in found.reasons) is (verdict != "SAFE")


@pytest.mark.parametrize("back_to", [1, 3])
def test_a_table_that_was_taken_back(tmp_path: Path, table: Path, back_to: int) -> None:
    place = delta_checkpoint(tmp_path / "orders", table, 5)
    for version in range(back_to, 5):
        commit(table, version).unlink()
    assert position(place, table).verdict is Verdict.WILL_FAIL


@pytest.mark.parametrize("index", [-1, 0])
def test_within_the_first_snapshot(tmp_path: Path, table: Path, index: int) -> None:
    """The new query takes the whole table as it is now."""
    place = delta_checkpoint(tmp_path / "orders", table, 2, index, initial=True)
    found = position(place, table)
    assert found.options == {}
    assert found.verdict is (Verdict.SAFE if index < 0 else Verdict.WILL_DUPLICATE)
    assert found.repeats == ({} if index < 0 else {"files": 1, "rows": 10})
    file_of(table, 4).unlink()
    assert position(place, table).verdict is (Verdict.WILL_FAIL if index < 0 else Verdict.WILL_DUPLICATE)
    write_deltalake(table, rows(7), mode="overwrite")
    assert position(place, table).verdict is (Verdict.SAFE if index < 0 else Verdict.WILL_DUPLICATE)
    for version in range(2, 6):
        commit(table, version).unlink()
    assert "the table was restored" in " ".join(position(place, table).reasons)


def test_by_the_clock_it_is_never_safe(tmp_path: Path, table: Path) -> None:
    place = delta_checkpoint(tmp_path / "orders", table, 5)
    long_ago = Question(to_datetime=(datetime.now(UTC) - timedelta(days=1)).isoformat())
    assert position(place, None, long_ago).verdict is Verdict.UNKNOWN
    found = position(place, table, long_ago)
    assert (found.verdict, list(found.options)) == (Verdict.UNKNOWN, ["startingTimestamp"])
    DeltaTable(table).create_checkpoint()
    commit(table, 0).unlink()
    found = position(place, table, long_ago)
    assert found.verdict is Verdict.WILL_LOSE
    assert "begins at version 1, after the time" in found.reasons[0]
    shutil.rmtree(table)
    new_table(table, 2)
    assert "is another one" in position(place, table, long_ago).reasons[0]


def test_no_table_where_one_is_named(tmp_path: Path, table: Path) -> None:
    place = delta_checkpoint(tmp_path / "orders", table, 3)
    with pytest.raises(RefusedError, match="is not a Delta table"):
        position(place, tmp_path)


def test_a_reset_asks_for_it_to_be_accepted(tmp_path: Path, table: Path) -> None:
    place = open_location(str(delta_checkpoint(tmp_path / "orders", table, 3)))
    sink = {"way": ResetWay.KEEP_POSITION}
    unread = plan_reset(place, **sink)  # type: ignore[arg-type]
    assert [source.verdict for source in unread.sources] == [Verdict.UNKNOWN]
    with pytest.raises(RefusedError, match=r"source_unknown \(source 0: the table was not read"):
        unread.check_accepted(("sink_unknown",))
    read = plan_reset(place, tables={"0": open_location(str(table))}, **sink)  # type: ignore[arg-type]
    read.check_accepted(("sink_unknown",))
