"""RPO and RTO: met, not met, or UNKNOWN; the report, its metrics and the page say the same."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.drills import record_drill
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.fleet.discovery import discover
from airflow_ckpt_provider.fleet.fleet import Fleet, inspect_fleet
from airflow_ckpt_provider.fleet.metrics import gauges
from airflow_ckpt_provider.fleet.objectives import Met, Recovery, judge_rpo, judge_rto, standing
from airflow_ckpt_provider.fleet.report import keep_report, read_reports, rows_of
from airflow_ckpt_provider.fleet.stream import Limits
from airflow_ckpt_provider.page.stream_row import StreamRow
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.streams.stream import Objectives
from tests.support.backups import stream
from tests.support.checkpoints import logs, plant

NOW = datetime(2026, 11, 23, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)
FOUND = Recovery(NOW, has_backup=True, backup_created=NOW - HOUR, nothing_to_lose=False, drill_seconds=60.0)
NO_BACKUP = replace(FOUND, has_backup=False, backup_created=None)


class TestRpo:
    @pytest.mark.parametrize(
        ("found", "objective", "seconds", "met"),
        [
            (FOUND, 3600, 3600, Met.YES),
            (FOUND, 3599, 3600, Met.NO),
            (NO_BACKUP, 3600, None, Met.NO),
            (replace(NO_BACKUP, has_backup=None), 3600, None, Met.UNKNOWN),
            (replace(NO_BACKUP, has_backup=None, nothing_to_lose=None), 3600, None, Met.UNKNOWN),
            pytest.param(replace(NO_BACKUP, nothing_to_lose=True), 1, 0, Met.YES, id="no batch yet"),
            pytest.param(replace(FOUND, nothing_to_lose=True), 1, 0, Met.YES, id="it holds all"),
            pytest.param(replace(FOUND, nothing_to_lose=None), 60, 3600, Met.UNKNOWN, id="it may hold all"),
            pytest.param(replace(FOUND, backup_created=NOW + HOUR), 60, None, Met.UNKNOWN, id="a clock is ahead"),
            pytest.param(replace(FOUND, backup_created=NOW + HOUR / 60), 60, 0, Met.YES, id="a clock is a bit ahead"),
        ],
    )
    def test_when_the_report_is_made(self, found: Recovery, objective: float, seconds: float | None, met: Met) -> None:
        judged = judge_rpo(objective, found, NOW)
        assert (judged.objective, judged.seconds, judged.met) == (objective, seconds, met)

    @pytest.mark.parametrize(("minutes", "seconds", "met"), [(10, 600, Met.YES), (20, 1200, Met.UNKNOWN)])
    def test_later(self, minutes: int, seconds: float, met: Met) -> None:
        """What was committed since the report can be lost, and the report does not say whether anything was."""
        judged = judge_rpo(900, replace(FOUND, nothing_to_lose=True), NOW + timedelta(minutes=minutes))
        assert (judged.seconds, judged.met) == (seconds, met)

    def test_a_backup_that_is_younger_than_its_report_counts(self) -> None:
        found = replace(FOUND, reported=NOW - 2 * HOUR, nothing_to_lose=True)
        assert judge_rpo(1, found, NOW).seconds == 3600

    @pytest.mark.parametrize(("hours", "met"), [(0.5, Met.YES), (2, Met.UNKNOWN)])
    def test_a_backup_that_does_not_say_when_it_read_its_position(self, hours: float, met: Met) -> None:
        """It was finished an hour ago, and that may have been long after."""
        held = replace(FOUND, backup_created=NOW - HOUR / 4, backup_held_until=NOW - hours * HOUR)
        judged = judge_rpo(3600, held, NOW)
        assert (judged.seconds, judged.met) == (hours * 3600, met)
        assert judge_rpo(60, held, NOW).met is Met.NO


class TestBackupThatWasPaused:
    """A backup that read its position, was paused for five hours, and finished; the stream has continued."""

    @pytest.fixture
    def fleet(self, place: Location, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Fleet:
        class FiveHoursAgo(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:
                return datetime.now(tz) - 5 * HOUR

        monkeypatch.setattr("airflow_ckpt_provider.backup.closure_copy.datetime", FiveHoursAgo)
        orders = plant(place / "ck/orders", stream(4))
        create_backup(Checkpoint.at(orders), repository)
        plant(orders, stream(8))
        limits, objectives = {orders.uri: Limits(max_age=3600.0)}, {orders.uri: Objectives(rpo=HOUR)}
        return inspect_fleet(discover([place / "ck"]), repository, own_limits=limits, objectives=objectives)

    def test_it_is_as_old_as_its_position(self, fleet: Fleet) -> None:
        (orders,) = fleet.streams
        assert orders.batches_behind == 4
        found = numbers(fleet, "orders")
        assert (found["rpo_seconds"], found["rpo_met"]) == (pytest.approx(5 * 3600, abs=60), 0)
        assert fleet.problems() == {orders.found.place.uri: ("last good backup 5 h old, more than 1 h",)}

    def test_of_an_earlier_version_it_is_not_known(self, fleet: Fleet) -> None:
        """Its manifest has no time but that of its batch, which was planned long before it was committed, or was not."""
        (orders,) = fleet.streams
        assert orders.backup
        facts = {key: value for key, value in orders.backup.facts.items() if key != "pinned_at"}
        before = replace(orders, backup=replace(orders.backup, as_of=orders.backup.created, facts=facts))
        fleet = replace(fleet, streams=(before,))
        assert numbers(fleet, "orders")["unknown rpo"] == 1
        ((problem,),) = fleet.problems().values()
        assert problem.startswith("age of the last good backup UNKNOWN: it holds batch 4, planned ")


@pytest.mark.parametrize(("seconds", "met"), [(None, Met.UNKNOWN), (900.0, Met.YES), (901.0, Met.NO)])
def test_rto(seconds: float | None, met: Met) -> None:
    judged = judge_rto(900.0, replace(FOUND, drill_seconds=seconds))
    assert (judged.objective, judged.seconds, judged.met) == (900.0, seconds, met)


def test_what_is_not_declared_is_not_judged() -> None:
    found = standing(Objectives(restorable_for=HOUR), FOUND, NOW)
    assert found.to_json() == {"rpo": None, "rto": None}


DECLARED = Objectives(rpo=timedelta(minutes=30), rto=timedelta(minutes=15))


@pytest.fixture
def repository(place: Location) -> Repository:
    return Repository.open_or_create(place / "backups")


def report(place: Location, repository: Repository, **drilled: float) -> Fleet:
    """A report of ``orders`` with a backup, ``payments`` without, and ``fresh``, which has committed nothing."""
    orders, uncommitted = place / "ck/orders", {k: v for k, v in logs(range(1)).items() if "commits" not in k}
    for name, files in (("orders", stream(4)), ("payments", logs(range(3))), ("fresh", uncommitted)):
        plant(place / "ck" / name, files)
    made = create_backup(Checkpoint.at(orders), repository)
    for name, seconds in drilled.items():
        rehearsal: dict[str, Any] = {"name": name, "backup_id": made.backup_id, "starts": True, "seconds": seconds}
        record_drill(repository, rehearsal)
    found = discover([place / "ck"])
    objectives = {each.place.uri: DECLARED for each in found.found}
    return inspect_fleet(found, repository, objectives=objectives)


def numbers(fleet: Fleet, name: str) -> dict[str, float]:
    """The gauges of both objectives, and what is not known of them."""
    found = {}
    for gauge in gauges(fleet):
        part = gauge.labels.get("part", "")
        if gauge.labels["stream"] == name and (gauge.name[:4] in ("rpo_", "rto_") or part in ("rpo", "rto")):
            found[f"{gauge.name} {part}".strip()] = gauge.value
    return found


def test_metrics(place: Location, repository: Repository) -> None:
    fleet = report(place, repository, orders=60.0)
    both = {"rpo_objective_seconds": 1800.0, "rto_objective_seconds": 900.0}
    assert numbers(fleet, "orders") == {**both, "rpo_seconds": 0.0, "rpo_met": 1, "rto_seconds": 60.0, "rto_met": 1}
    assert numbers(fleet, "payments") == {**both, "rpo_met": 0, "unknown rto": 1}, "absent where it is not known"
    assert numbers(fleet, "fresh") == {**both, "rpo_seconds": 0.0, "rpo_met": 1, "unknown rto": 1}


def test_no_metrics_of_what_is_not_declared(place: Location, repository: Repository) -> None:
    fleet = replace(report(place, repository), objectives={})
    assert numbers(fleet, "orders") == {}


def test_problems_are_counted_by_the_limits_of_the_stream(place: Location, repository: Repository) -> None:
    fleet = report(place, repository)
    uri = (place / "ck/payments").uri
    strict = replace(fleet, own_limits={uri: Limits(max_age=1.0)})
    found = {gauge.labels["checkpoint"]: gauge.value for gauge in gauges(strict) if gauge.name == "problems"}
    assert found == {each.found.place.uri: float(each.found.place.uri == uri) for each in fleet.streams}


@pytest.mark.parametrize("drilled", [{}, {"orders": 60.0}, {"orders": 6000.0}])
def test_the_page_says_what_the_report_and_the_metrics_say(
    place: Location, repository: Repository, drilled: dict[str, float]
) -> None:
    fleet = report(place, repository, **drilled)
    keep_report(repository, fleet, writer="test")
    for row in rows_of(read_reports(repository).found):
        page = StreamRow.of(row, fleet.looked_at, DECLARED)
        said = {name: each["met"] for name, each in row["objectives"].items()}
        assert {"rpo": page.rpo, "rto": page.rto} == said
        counted = numbers(fleet, page.name)
        words = {1: "met", 0: "not met", None: "UNKNOWN"}
        assert {name: words[counted.get(f"{name}_met")] for name in said} == said
