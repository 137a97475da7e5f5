"""What holds for an Iceberg table behind any catalog."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.sinks.iceberg_rollback import (
    set_snapshot,
)
from airflow_ckpt_provider.verdict import Verdict
from tests.support.iceberg_tables import OTHER, QUERY, Table

HISTORIES: dict[str, tuple[Callable[[Table], object], int | None, int | None]] = {
    # name: what happened, newest batch the table holds, newest it remembers
    "written": (lambda t: t.batch(0, 1, 2, 3), 3, 3),
    "rolled back": (lambda t: t.batch(0, 1, 2, 3).rollback(1), 1, 1),
    "rolled back by a plan": (lambda t: t.batch(0, 1, 2, 3).roll_back(1), 1, 1),
    "rolled back and replayed": (lambda t: t.batch(0, 1, 2, 3).roll_back(1).batch(2, 3), 3, 3),
    "rolled back twice": (lambda t: t.batch(0, 1, 2, 3).roll_back(2).roll_back(0).batch(1), 1, 1),
    "several streams": (lambda t: t.batch(0, 1).batch(0, 1, 2, 3, query=OTHER).batch(2), 2, 2),
    "others wrote": (lambda t: t.batch(0).rows("a").batch(1).rows("b"), 1, 1),
    "old snapshots expired": (lambda t: t.batch(0, 1, 2, 3).expire(2), 3, 3),
    "another query": (lambda t: t.batch(0, 1, query=OTHER), None, None),
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "lake")


@pytest.mark.parametrize("name", [name for name, (_, held, _) in HISTORIES.items() if held is not None])
@pytest.mark.parametrize("target", [0, 2])
def test_the_verdict_is_what_happens(name: str, target: int, table: Table) -> None:
    """Replays all batches after the target, and compares with what was foretold."""
    HISTORIES[name][0](table)
    report = table.look(target)
    before = set(table.held)
    table.batch(*range(target + 1, 7))
    written = {f"{QUERY}/{batch}" for batch in range(target + 1, 7) if batch > (report.remembered or -1)}
    skipped = {f"{QUERY}/{batch}" for batch in range(target + 1, 7)} - written
    assert bool(skipped) == (report.verdict is Verdict.WILL_SKIP)
    if report.verdict is Verdict.SAFE:
        mine = [row for row in table.held if row.startswith(QUERY)]
        assert mine == [f"{QUERY}/{batch}" for batch in range(7)]
    assert set(table.held) == before | written


def test_rolled_back_and_replayed_it_is_exact(table: Table) -> None:
    table.batch(0, 1, 2, 3).roll_back(1)
    assert table.look(1).verdict is Verdict.SAFE
    table.batch(2, 3, 4)
    assert table.held == [f"{QUERY}/{batch}" for batch in range(5)]


def test_somebody_writes_at_the_same_moment(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog itself refuses: what was read before the commit was still right."""
    from airflow_ckpt_provider.sinks import iceberg_rollback

    rollback = table.batch(0, 1, 2).look(0).rollback
    assert rollback
    commit = iceberg_rollback.commit_by_name

    def late(*args: object, **settings: object) -> None:
        table.rows("late")
        commit(*args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(iceberg_rollback, "commit_by_name", late)
    with pytest.raises(RefusedError, match="was written to at the same moment"):
        set_snapshot(table.named, rollback.to_version or 0, expected=rollback.from_version or 0, plan_id="7f3a")
    assert table.held == ["late", *(f"{QUERY}/{batch}" for batch in range(3))]
