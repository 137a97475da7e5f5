"""Time to loss and the retention that a downtime needs, from plain numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.guards.kafka_log import LogEnds, Record, TopicConfig
from airflow_ckpt_provider.guards.kafka_retention import Movement, TimeToLoss, retention_needed_ms, time_to_loss
from airflow_ckpt_provider.guards.time_left import hours_needed

_HOUR = 3_600_000
_NOW = 1_800_000_000_000


def config(**changes: object) -> TopicConfig:
    values: dict[str, object] = {
        "retention_ms": 24 * _HOUR,
        "retention_is_inherited": True,
        "retention_bytes": None,
        "cleanup": frozenset({"delete"}),
        "segment_ms": 2 * _HOUR,
        "segment_bytes": 1 << 30,
        "check_interval_ms": 300_000,
    }
    return TopicConfig(**{**values, **changes})  # type: ignore[arg-type]


def left(
    age_h: float | None = 6.0,
    *,
    offset: int = 100,
    ends: LogEnds | None = None,
    newest_h: float | None = None,
    oldest: Record | None = None,
    movement: Movement | None = None,
    **changes: object,
) -> TimeToLoss:
    record = None if age_h is None else Record(offset, _NOW - int(age_h * _HOUR), 100)
    newest = None if newest_h is None else _NOW - int(newest_h * _HOUR)
    log = ends or LogEnds(50, 1000, 1000)
    return time_to_loss(
        offset,
        log,
        config(**changes),
        now_ms=_NOW,
        at_offset=record,
        oldest=oldest,
        newest_ms=newest,
        movement=movement,
    )


def test_lower_bound_is_the_records_own_age() -> None:
    found = left(6)
    assert found.at_least == 18 * 3600
    # Half a segment of 2 h, and half of 5 minutes.
    assert found.estimate == 18 * 3600 + 3600 + 150
    assert found.limited_by == "retention.ms"
    assert found.reason.endswith("timestamps are the producers' own")
    assert "own" not in left(6, append_time=True).reason


def test_a_segment_ends_with_the_newest_record() -> None:
    assert left(6, newest_h=5.9).estimate == pytest.approx(18 * 3600 + 360 + 150)


def test_overdue_may_go_at_any_moment() -> None:
    found = left(30)
    assert (found.at_least, found.limited_by) == (0.0, "retention.ms")
    assert found.estimate is not None
    assert found.estimate >= 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"retention_ms": None}, "retention.ms is -1"),
        ({"cleanup": frozenset({"compact"})}, "cleanup.policy is compact: no age or size limit"),
    ],
)
def test_nothing_is_deleted(changes: dict[str, object], reason: str) -> None:
    assert left(6, **changes) == TimeToLoss(None, None, "nothing", reason)


def test_compact_and_delete_deletes() -> None:
    assert left(6, cleanup=frozenset({"compact", "delete"})).at_least == 18 * 3600


def test_all_is_read() -> None:
    found = left(None, offset=1000)
    assert (found.at_least, found.estimate) == (24 * 3600, 24 * 3600)
    assert left(None, offset=1000, retention_bytes=1 << 30).at_least is None
    assert left(None, offset=0, ends=LogEnds(0, 0, 0)).at_least == 24 * 3600


@pytest.mark.parametrize(
    ("ends", "newest_h", "words"),
    [
        (LogEnds(50, 1000, 1000), 13, "the newest record is older than half of retention.ms"),
        (LogEnds(1000, 1000, 1000), None, "the newest record is deleted already"),
    ],
)
def test_producers_who_write_old_timestamps(ends: LogEnds, newest_h: float | None, words: str) -> None:
    found = left(None, offset=1000, ends=ends, newest_h=newest_h)
    assert (found.at_least, found.estimate, found.limited_by) == (None, None, "retention.ms")
    assert words in found.reason
    assert left(None, offset=1000, ends=ends, newest_h=newest_h, append_time=True).at_least == 24 * 3600
    assert left(None, offset=1000, ends=ends, newest_h=11).at_least == 24 * 3600


def test_unread_record_that_could_not_be_read() -> None:
    assert left(None).at_least is None


def test_a_limit_by_size_takes_the_bound_away() -> None:
    found = left(6, retention_bytes=1 << 40)
    assert (found.at_least, found.estimate, found.limited_by) == (None, None, "retention.bytes")
    oldest = Record(50, _NOW - 10 * _HOUR, 100)
    # 950 records in 10 h; 900 are unread, of 112 bytes each. Room for 100 more: what comes in about an hour.
    small = left(6, retention_bytes=1000 * 112, oldest=oldest, newest_h=0.0)
    assert (small.at_least, small.limited_by) == (None, "retention.bytes")
    assert small.estimate == pytest.approx(100 / 95 * 3600, rel=0.01)


def test_measured_movement_goes_before_a_guess() -> None:
    found = left(6, retention_bytes=1 << 20, retention_ms=None, movement=Movement(25, 3600))
    assert found.estimate == pytest.approx(2 * 3600)
    assert found.reason.startswith("the earliest offset moved by 25 in 3,600 s")


def test_tiered_storage_is_named() -> None:
    assert "tiered storage" in left(6, tiered=True).reason


@given(
    age=st.integers(0, 10**10),
    retention=st.integers(0, 10**11),
    segment=st.integers(1, 10**10),
    newest=st.integers(0, 10**10),
)
def test_bounds_are_ordered(age: int, retention: int, segment: int, newest: int) -> None:
    found = time_to_loss(
        5,
        LogEnds(0, 10, 10),
        config(retention_ms=retention, segment_ms=segment),
        now_ms=_NOW,
        at_offset=Record(5, _NOW - age, 10),
        oldest=None,
        newest_ms=_NOW - newest,
    )
    assert found.at_least is not None
    assert found.estimate is not None
    assert 0 <= found.at_least <= found.estimate
    assert found.at_least == max(0, (retention - age) / 1000)


@pytest.mark.parametrize(("needed", "hours"), [(59 * 60, 1), (59 * 60 + 1, 2), (3600, 2), (0, 1)])
def test_a_minute_is_added_and_whole_hours_are_named(needed: float, hours: int) -> None:
    assert hours_needed(needed * 1000) == hours
    assert retention_needed_ms(needed, oldest_unread_ms=None, now_ms=_NOW) == hours * _HOUR


@given(age=st.integers(0, 10**9), needed=st.integers(0, 10**10).map(lambda ms: ms / 1000))
def test_the_retention_named_is_enough_and_not_an_hour_more(age: int, needed: float) -> None:
    enough = retention_needed_ms(needed, oldest_unread_ms=_NOW - age, now_ms=_NOW)
    assert enough % _HOUR == 0
    assert enough >= age + needed * 1000 + 60_000 > enough - _HOUR - 1
    # What it says is then what time_to_loss says as well.
    found = time_to_loss(
        5,
        LogEnds(0, 10, 10),
        config(retention_ms=enough),
        now_ms=_NOW,
        at_offset=Record(5, _NOW - age, 10),
        oldest=None,
    )
    assert found.at_least is None or found.at_least >= needed + 59.99
