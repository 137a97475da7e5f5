"""What a Delta table skips, in scripted histories; each is told by the log alone and compared with what the table holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_ckpt_provider.errors import RefusedError, UnreadableLogError
from airflow_ckpt_provider.guards.delta_log import commit_path
from airflow_ckpt_provider.sinks.delta_history import read_table_history
from airflow_ckpt_provider.sinks.delta_rollback import TableTarget, roll_back_table
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.delta_sink import OTHER, QUERY, Table

HISTORIES: dict[str, tuple[Callable[[Table], object], int | None, int | None]] = {
    # name: what happened, newest batch the table holds, newest it remembers
    "written": (lambda t: t.batch(0, 1, 2, 3), 3, 3),
    "restored": (lambda t: t.batch(0, 1, 2, 3).restore(1), 1, 3),
    "restored twice": (lambda t: t.batch(0, 1, 2, 3).restore(2).restore(1), 1, 3),
    "restored and forward again": (lambda t: t.batch(0, 1, 2, 3).restore(1).restore(3), 3, 3),
    "restored, then replayed in vain": (lambda t: t.batch(0, 1, 2, 3).restore(1).batch(2, 3), 1, 3),
    "restored, then continued": (lambda t: t.batch(0, 1, 2, 3).restore(1).batch(2, 3, 4), 4, 4),
    "rolled back": (lambda t: t.batch(0, 1, 2, 3).roll_back(1), 1, 1),
    "rolled back and replayed": (lambda t: t.batch(0, 1, 2, 3).roll_back(1).batch(2, 3), 3, 3),
    "rolled back twice": (lambda t: t.batch(0, 1, 2, 3).roll_back(2).roll_back(0).batch(1), 1, 1),
    "restored before, rolled back after": (lambda t: t.batch(0, 1, 2, 3).restore(2).roll_back(1), 1, 1),
    "rolled back, restored after": (lambda t: t.batch(0, 1, 2, 3).roll_back(1).restore(3), 3, 1),
    "several streams": (lambda t: t.batch(0, 1).batch(0, 1, 2, 3, query=OTHER).batch(2), 2, 2),
    "a new query id": (lambda t: t.batch(0, 1, 2, query=OTHER).batch(0, 1), 1, 1),
    "others wrote": (lambda t: t.batch(0).rows("a").batch(1).rows("b"), 1, 1),
    "optimized": (lambda t: t.batch(0, 1, 2, 3).optimize(), 3, 3),
    "optimized, then restored": (lambda t: t.batch(0, 1, 2, 3).optimize().restore(2), 2, 3),
    "log cleaned": (lambda t: t.batch(0, 1, 2, 3).clean_log(2), 3, 3),
    "log cleaned, restored": (lambda t: t.batch(0, 1).clean_log(1).batch(2, 3).restore(2), 2, 3),
    "another query": (lambda t: t.batch(0, 1, query=OTHER), None, None),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_what_the_table_holds_and_remembers(name: str, tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    happen, held, remembered = HISTORIES[name]
    happen(table)
    report = table.look(99)
    assert (report.batch_id, report.remembered) == (held, remembered)
    mine = {int(row.partition("/")[2]) for row in table.held if row.startswith(QUERY)}
    assert max(mine, default=None) == held


@pytest.mark.parametrize("name", [name for name, (_, held, _) in HISTORIES.items() if held is not None])
@pytest.mark.parametrize("target", [0, 2])
def test_the_verdict_is_what_happens(name: str, target: int, tmp_path: Path) -> None:
    """Replays all batches after the target, and compares with what was foretold."""
    table = Table(tmp_path / "table")
    HISTORIES[name][0](table)
    report = table.look(target)
    before = table.held
    doubled = {f"{QUERY}/{batch}" for batch in range(target + 1, 7)} & before
    table.batch(*range(target + 1, 7))
    written = {f"{QUERY}/{batch}" for batch in range(target + 1, 7) if batch > (report.remembered or -1)}
    skipped = {f"{QUERY}/{batch}" for batch in range(target + 1, 7)} - written
    assert bool(skipped) == (report.verdict is Verdict.WILL_SKIP)
    if report.verdict is Verdict.WILL_DUPLICATE:
        assert doubled
    assert table.held == before | written


@pytest.mark.parametrize(
    "name", [n for n, (_, held, _) in HISTORIES.items() if held is not None and "cleaned" not in n]
)
@pytest.mark.parametrize("target", [1])
def test_rolled_back_and_replayed_it_is_exact(name: str, target: int, tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    HISTORIES[name][0](table)
    strangers = {row for row in table.held if not row.startswith(QUERY)}
    report = table.look(target)
    if report.rollback is None:
        assert report.verdict is Verdict.SAFE
    else:
        table.roll_back(target)
    assert table.look(target).verdict is Verdict.SAFE
    table.batch(*range(target + 1, 6))
    mine = {row for row in table.held if row.startswith(QUERY)}
    assert mine == {f"{QUERY}/{batch}" for batch in range(6)}
    assert table.held - mine <= strangers


def test_everything_was_restored_away_before_the_stream_went_on(tmp_path: Path) -> None:
    """It was SAFE: the oldest batch in the table is the first that anything was compared with."""
    table = Table(tmp_path / "table").rows("a").batch(0, 1).restore(0).batch(2, 3)
    assert table.held == {"a", f"{QUERY}/2", f"{QUERY}/3"}
    report = table.look(3)
    lost = "batches 0 to 1 were taken out of the table and not written again: their rows are missing if they had any"
    assert (report.verdict, report.reasons) == (Verdict.UNKNOWN, (lost,))
    assert table.look(2).doubts == (lost,)


def test_what_others_wrote_is_named(tmp_path: Path) -> None:
    table = Table(tmp_path / "table").batch(0, 1).rows("a").batch(2).rows("b")
    rollback = table.look(1).rollback
    assert rollback is not None
    assert rollback.to_version == 2  # what was written before the first batch that goes stays
    assert len(rollback.foreign) == 1
    assert rollback.foreign[0].startswith("version 4 (WRITE")
    assert rollback.rows == 2


def test_a_version_that_the_log_does_not_have(tmp_path: Path) -> None:
    report = Table(tmp_path / "table").batch(0, 1, 2, 3).clean_log(3).look(0)
    assert report.verdict is Verdict.WILL_SKIP
    assert report.rollback is None
    assert report.obstacle == (
        "the table's log begins at version 3, after batch 0 was written: the version of that batch cannot be found any more"
    )


def test_the_same_rollback_twice_is_one_commit(tmp_path: Path) -> None:
    table = Table(tmp_path / "table").batch(0, 1, 2)
    target = TableTarget(table.place, 0, QUERY, 0, "7f3a", {})
    assert roll_back_table(target, expected=2) == 3
    assert roll_back_table(target, expected=2) == 3
    assert table.version == 3


def test_no_table(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"is not a Delta table: it has no commits in _delta_log/"):
        read_table_history(open_location(str(tmp_path)))


def test_a_damaged_commit(tmp_path: Path) -> None:
    table = Table(tmp_path / "table").batch(0, 1)
    table.place.replace(commit_path(1), b'{"commitInfo":')
    with pytest.raises(UnreadableLogError, match=r"00000000000000000001.json: the JSON is broken or cut off"):
        read_table_history(table.place)


def test_a_log_checkpoint_newer_than_every_commit(tmp_path: Path) -> None:
    """It was SAFE: only the commits were read, and the table seemed to end with batch 1."""
    table = Table(tmp_path / "table").batch(0, 1, 2, 3).clean_log(0)
    for version in (2, 3):
        table.place.delete(commit_path(version))
    message = r"0{19}3\.checkpoint\.parquet is newer than every commit \(the newest commit is _delta_log/0{19}1\.json\)"
    with pytest.raises(UnreadableLogError, match=message):
        read_table_history(table.place)
