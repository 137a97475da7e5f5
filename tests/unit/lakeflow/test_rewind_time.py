"""The time of a rewind, in every zone, and the classes of its refusal."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.lakeflow.rewind_plan import rewind_datasets, rewind_spec, rewind_time
from airflow_ckpt_provider.lakeflow.rewind_refusals import REFUSALS, explain_refusal


@pytest.mark.parametrize(
    ("given_time", "zone", "utc"),
    [
        ("2026-08-21T12:00:00Z", None, "2026-08-21T12:00:00.000Z"),
        ("2026-08-21T12:00:00+02:00", None, "2026-08-21T10:00:00.000Z"),
        ("2026-08-21T12:00:00+02:00", "America/New_York", "2026-08-21T10:00:00.000Z"),
        ("2026-08-21T12:00:00", "Europe/Berlin", "2026-08-21T10:00:00.000Z"),
        ("2026-01-21 12:00", "Europe/Berlin", "2026-01-21T11:00:00.000Z"),
        ("2026-08-21T12:00:00.123456Z", None, "2026-08-21T12:00:00.123Z"),
    ],
)
def test_in_utc(given_time: str, zone: str | None, utc: str) -> None:
    assert rewind_spec(rewind_time(given_time, zone), [], dry_run=True) == {"rewind_timestamp": utc, "dry_run": True}


@pytest.mark.parametrize(
    ("given_time", "words", "hint"),
    [
        ("2026-10-25T02:30:00", "came twice", "2026-10-25T00:30:00+00:00 or 2026-10-25T01:30:00+00:00"),
        ("2026-03-29T02:30:00", "was skipped", "2026-03-29T01:30:00+00:00 or 2026-03-29T00:30:00+00:00"),
    ],
)
def test_when_clocks_were_changed(given_time: str, words: str, hint: str) -> None:
    with pytest.raises(RefusedError, match=words) as refused:
        rewind_time(given_time, "Europe/Berlin")
    assert hint in str(refused.value.hint)


@pytest.mark.parametrize("zone", [None, "Mars/Olympus", "../etc/passwd", ""])
def test_no_zone(zone: str | None) -> None:
    with pytest.raises(RefusedError, match="zone"):
        rewind_time("2026-08-21T12:00:00", zone)


@settings(max_examples=30, deadline=None)
@given(st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.timezones()))
def test_any_zone_is_the_same_moment(time: datetime) -> None:
    assert rewind_time(time.isoformat()) == datetime.fromisoformat(time.isoformat()).astimezone(UTC)


def test_datasets() -> None:
    assert rewind_datasets(["a", {"identifier": "b", "cascade": False}]) == [
        {"identifier": "a", "cascade": True, "reset_checkpoints": True},
        {"identifier": "b", "cascade": False, "reset_checkpoints": True},
    ]
    assert rewind_datasets("a") == rewind_datasets(["a"])
    assert rewind_datasets(None) == []


def test_refusals() -> None:
    assert explain_refusal("all is well") is None
    for name in REFUSALS:
        assert str(explain_refusal(f"java.lang.X: [{name}] told by {name} SQLSTATE: 0A000")).startswith(f"{name}: ")
    assert str(explain_refusal("[UNSUPPORTED_REWIND.SOMETHING_NEW] x")).startswith(
        "UNSUPPORTED_REWIND.SOMETHING_NEW: a flow"
    )
