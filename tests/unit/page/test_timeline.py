"""The timeline: everything at its time, and the window no wider than what is known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_ckpt_provider.page.backup_point import BackupPoint, Standing
from airflow_ckpt_provider.page.change_record import ChangeRecord
from airflow_ckpt_provider.page.stream_row import StreamRow
from airflow_ckpt_provider.page.timeline import LEFT, RIGHT, WIDTH, timeline

NOW = datetime(2026, 11, 23, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)


def row(*, left: float | None = 6 * 3600, known: bool = True, oldest: timedelta | None = 2 * HOUR) -> StreamRow:
    """A stream whose newest batch is of now."""
    values: dict[str, Any] = {
        "name": "orders",
        "checkpoint": "/orders",
        "looked_at": NOW.isoformat(),
        "batch_time": NOW.isoformat(),
        "latest_committed": 90,
        "oldest": {"batch_id": 3, "batch_time": (NOW - oldest).isoformat()} if oldest else None,
        "time_to_loss": {"seconds": left, "known": known, "verdict": "SAFE", "reasons": []},
    }
    return StreamRow.of(values, NOW)


def backup(hours: float, standing: Standing = Standing.WHOLE) -> BackupPoint:
    class Readable:
        """Only that it is there counts."""

    there: Any = None if standing is Standing.DAMAGED else Readable()
    return BackupPoint("orders", f"b{hours}", standing, there, NOW - hours * HOUR)


def test_nothing_with_a_time_is_no_drawing() -> None:
    assert timeline(StreamRow.of({"name": "orders"}, NOW), [], []) is None


def test_all_that_is_drawn_is_inside_and_in_order() -> None:
    found = timeline(row(), [backup(n) for n in (9, 5, 1)], [ChangeRecord("1", "rewind", "/orders", NOW - 3 * HOUR)])
    assert found is not None
    xs = [mark.x for mark in found.backups]
    assert xs == sorted(xs)
    marks = [*found.backups, *found.changes, *found.ticks, *found.stops]
    assert all(LEFT <= mark.x <= WIDTH - RIGHT for mark in marks)
    assert (found.stops[0].at, found.stops[-1].at) == (NOW - 2 * HOUR, NOW)
    assert found.stops[-1].x == found.batches.x + found.batches.width if found.batches else False


@pytest.mark.parametrize(
    ("given", "backups", "since"),
    [
        # The sources keep about six hours: the backup before that is of no use without loss.
        (row(), [9, 5], 5.0),
        (row(left=None), [9, 5], 9.0),  # without limit
        (row(left=None, known=False), [9, 5], None),  # not known
        (row(left=0.0), [9, 5], None),  # gone already
        (row(), [], 2.0),  # the checkpoint's own batches
        (row(oldest=10 * HOUR), [9], 6.0),  # of these, the ones whose rows are there
        (row(oldest=None), [9], None),
    ],
)
def test_the_window(given: StreamRow, backups: list[float], since: float | None) -> None:
    found = timeline(given, [backup(n) for n in backups], [])
    assert found is not None
    assert (found.window.begin if found.window else None) == (None if since is None else NOW - since * HOUR)


def test_the_window_ends_with_the_newest_batch() -> None:
    values = {"name": "orders", "looked_at": NOW.isoformat(), "batch_time": (NOW - 2 * HOUR).isoformat()}
    left = {"seconds": 86400.0, "known": True, "verdict": "SAFE", "reasons": []}
    found = timeline(StreamRow.of({**values, "time_to_loss": left}, NOW), [backup(5)], [])
    assert found is not None
    assert found.window is not None
    assert (found.window.begin, found.window.end) == (NOW - 5 * HOUR, NOW - 2 * HOUR)


def test_a_damaged_backup_is_drawn_and_does_not_widen_the_window() -> None:
    found = timeline(row(), [backup(5, Standing.DAMAGED), backup(3)], [])
    assert found is not None
    assert len(found.backups) == 2
    assert found.window is not None
    assert found.window.begin == NOW - 3 * HOUR


def test_points_that_a_pointer_could_not_tell_apart_are_left_out_or_put_below_each_other() -> None:
    found = timeline(row(oldest=timedelta(seconds=5)), [backup(n) for n in (40, 1, 1.001, 1.002)], [])
    assert found is not None
    assert len(found.stops) == 1
    assert [mark.level for mark in found.backups] == [0, 0, 1, 2]
    wide = timeline(row(oldest=20 * HOUR), [backup(n) for n in (20, 10, 1)], [])
    assert wide is not None
    assert len(wide.stops) == 13
    assert {mark.level for mark in wide.backups} == {0}


@pytest.mark.parametrize("days", [0.01, 1, 40, 900])
def test_the_axis_has_a_few_marks_whatever_its_length(days: float) -> None:
    found = timeline(row(), [backup(days * 24)], [])
    assert found is not None
    assert 2 <= len(found.ticks) <= 12
