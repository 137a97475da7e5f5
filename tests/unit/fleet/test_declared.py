"""How long the rules of a declaration keep backups."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.fleet.declared import kept_for

DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("schedule", "rules", "kept"),
    [
        (timedelta(hours=6), {"last": 8}, 2 * DAY),
        ("@weekly", {"last": 4}, 28 * DAY),
        ("0 * * * *", {"last": 24}, DAY),
        ("*/15 8-19 * * *", {"last": 48}, DAY),
        ("30 2 * * *", {"last": 7}, 7 * DAY),
        ("30 2 * * MON", {"last": 4}, 28 * DAY),
        ("30 2 * * 1-5", {"last": 5}, 7 * DAY),
        ("30 2 * * SUN,0,7", {"last": 2}, 14 * DAY),
        ("30 2 1 * *", {"last": 3}, 90 * DAY),
        ("30 2 1,15 * *", {"last": 2}, 30 * DAY),
        ("30 2 * * MON#2", {"last": 2}, 60 * DAY),
        ("0 0 1 1 *", {"last": 1}, 360 * DAY),
        ("0 * * * *", {"daily": 7}, 7 * DAY),
        ("0 * * * *", {"hourly": "unlimited"}, None),
    ],
)
def test_kept_for(schedule: str | timedelta, rules: dict[str, int | str], kept: timedelta | None) -> None:
    assert kept_for(Policy.parse(rules), schedule) == kept
