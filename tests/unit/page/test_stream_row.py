"""A row of the page: whether the stream is fine, and what of it is not known."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_ckpt_provider.page.html import Head, streams_page
from airflow_ckpt_provider.page.site import FileLinks
from airflow_ckpt_provider.page.stream_row import Met, StreamRow
from airflow_ckpt_provider.streams.stream import Objectives
from tests.support.report_pages import NOW, harmless, row

EARLIER = (NOW - timedelta(hours=5)).isoformat()


class TestStanding:
    def test_fine(self) -> None:
        assert StreamRow.of(row(), NOW).standing == "fine"

    @pytest.mark.parametrize(
        "values",
        [
            {"problems": ["gap 12, more than 10"]},
            {"state": "sealed"},
            {"situation": {"kind": "under_way", "message": "half-way", "commands": [], "plan_id": "1"}},
        ],
    )
    def test_problems(self, values: dict[str, Any]) -> None:
        assert StreamRow.of(row(**values), NOW).standing == "problem"

    @pytest.mark.parametrize(
        "values",
        [{"backup": None}, {"time_to_loss": None}, {"time_to_loss": {"verdict": "fine", "known": True}}],
    )
    def test_not_known(self, values: dict[str, Any]) -> None:
        assert StreamRow.of(row(**values), NOW).standing == "unknown"

    @pytest.mark.parametrize(
        ("since", "left", "verdict"),
        [
            # The clock of whoever reported may be five minutes behind.
            (timedelta(minutes=54), 3600.0, "SAFE"),
            (timedelta(minutes=56), 3600.0, "UNKNOWN"),
            (timedelta(minutes=60), 3600.0, "UNKNOWN"),
            (timedelta(hours=47), None, "SAFE"),
            (timedelta(hours=49), None, "UNKNOWN"),
            # The clock of whoever reported is ahead, or the report is forged: it says nothing for ever.
            (timedelta(days=-400), None, "UNKNOWN"),
        ],
    )
    def test_what_was_safe_is_not_known_later(self, since: timedelta, left: float | None, verdict: str) -> None:
        said = {"seconds": left, "known": True, "verdict": "SAFE", "reasons": []}
        later = StreamRow.of(row(time_to_loss=said), NOW + since)
        assert later.verdict_now == verdict
        assert later.standing == ("fine" if verdict == "SAFE" else "unknown")
        page = harmless(streams_page(Head(FileLinks(), "backups", NOW + since), [later])).text
        assert ("SAFE when it was reported" in page) is (verdict == "UNKNOWN")

    def test_a_report_of_the_future_sets_no_time_to_loss(self) -> None:
        said = {"seconds": None, "known": True, "verdict": "SAFE", "reasons": []}
        assert StreamRow.of(row(time_to_loss=said), NOW).left_known
        assert not StreamRow.of(row(time_to_loss=said), NOW - timedelta(days=400)).left_known

    def test_a_loss_that_was_foreseen_stays_one(self) -> None:
        said = {"seconds": 0.0, "known": True, "verdict": "WILL_LOSE", "reasons": []}
        assert StreamRow.of(row(time_to_loss=said), NOW + timedelta(days=9)).verdict_now == "WILL_LOSE"

    def test_the_time_to_loss_goes_on_after_the_report(self) -> None:
        later = StreamRow.of(row(), NOW + timedelta(minutes=20))
        assert later.left_now == 2400.0
        assert StreamRow.of(row(), NOW + timedelta(hours=9)).left_now == 0.0

    @pytest.mark.parametrize(
        ("values", "rpo", "met"),
        [
            ({}, 7200.0, Met.YES),
            ({}, 60.0, Met.NO),
            # Nothing was committed since, as far as numbers tell.
            ({"batches_behind": 0}, 60.0, Met.UNKNOWN),
            ({"backup": None}, 7200.0, Met.NO),
            ({"backup": {"created": NOW.isoformat()}}, 7200.0, Met.NO),
            ({"backup": None, "unknown": {"backup": "no rights"}}, 7200.0, Met.UNKNOWN),
            # The report says it: an hour after the backup nothing was to be lost.
            ({"batches_behind": 0, "nothing_to_lose": True}, 60.0, Met.YES),
            ({"batches_behind": 0, "nothing_to_lose": False}, 60.0, Met.NO),
            ({"backup": None, "nothing_to_lose": True}, 60.0, Met.YES),
            # It counts from when it read the newest committed batch.
            ({"backup": {"backup_id": "b", "created": NOW.isoformat(), "as_of": EARLIER}}, 7200.0, Met.NO),
            # A clock that is ahead proves nothing.
            ({"backup": {"backup_id": "b", "created": (NOW + timedelta(hours=1)).isoformat()}}, 7200.0, Met.UNKNOWN),
        ],
    )
    def test_rpo(self, values: dict[str, Any], rpo: float, met: Met) -> None:
        assert StreamRow.of(row(**values), NOW, Objectives(rpo=timedelta(seconds=rpo))).rpo is met

    def test_a_drill_of_the_future_proves_nothing(self) -> None:
        drill = {"proven_at": (NOW + timedelta(days=400)).isoformat(), "seconds": 60}
        found = StreamRow.of(row(last_drill=drill), NOW, Objectives(rto=timedelta(minutes=15)))
        assert found.rto is Met.UNKNOWN

    @pytest.mark.parametrize(("seconds", "met"), [(None, Met.UNKNOWN), (60, Met.YES), (6000, Met.NO)])
    def test_rto(self, seconds: float | None, met: Met) -> None:
        drill = {"proven_at": NOW.isoformat(), "seconds": seconds} if seconds else None
        assert StreamRow.of(row(last_drill=drill), NOW, Objectives(rto=timedelta(minutes=15))).rto is met
