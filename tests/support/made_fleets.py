"""Reports of a fleet with one fault each, as the text for Prometheus: real checkpoints and backups, and a fault in the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.drills import record_drill
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import verify_backup
from airflow_ckpt_provider.change.sealing import seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.fleet.discovery import Unread, discover
from airflow_ckpt_provider.fleet.fleet import Fleet, Missing, inspect_fleet
from airflow_ckpt_provider.fleet.stream import Limits, Stream
from airflow_ckpt_provider.fleet.time_to_loss import TimeToLoss, not_known
from airflow_ckpt_provider.recovery.status import UNDER_WAY, UNTOUCHED, RewindStatus
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.streams.stream import Objectives
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import stream
from tests.support.checkpoints import logs, plant

OBJECTIVES = Objectives(rpo=timedelta(hours=1), rto=timedelta(minutes=15))
#: Changes the stream ``orders`` of a report.
Fault = Callable[[Stream], Stream]


def healthy_fleet(place: Location) -> Fleet:
    """``orders`` with objectives, all of them met; ``payments`` without, and ``fresh``, which has committed nothing.

    :param place: an empty place.
    """
    repository = Repository.open_or_create(place / "backups")
    orders, payments = plant(place / "ck/orders", stream(4)), plant(place / "ck/payments", logs(range(3)))
    plant(place / "ck/fresh", {path: data for path, data in logs(range(1)).items() if "commits" not in path})
    for checkpoint in (orders, payments):
        made = create_backup(Checkpoint.at(checkpoint), repository).manifest
        record_verification(repository, verify_backup(repository, made))
        if checkpoint is orders:
            record_drill(repository, {"name": made.name, "backup_id": made.backup_id, "starts": True, "seconds": 60.0})
    fleet = inspect_fleet(
        discover([place / "ck"]),
        repository,
        own_limits={orders.uri: Limits(max_age=3600.0, max_gap=10)},
        objectives={orders.uri: OBJECTIVES},
        sizes=True,
    )
    # As with a guard that was asked.
    return with_fault(fleet, lambda s: replace(s, time_to_loss=TimeToLoss(7 * 86400.0, True, Verdict.SAFE)))


def with_fault(fleet: Fleet, fault: Fault) -> Fleet:
    """The report with a fault in ``orders``."""
    return replace(fleet, streams=tuple(fault(each) if each.name == "orders" else each for each in fleet.streams))


def sealed_fleet(place: Location) -> Fleet:
    """The report of a fleet whose stream ``orders`` is sealed.

    :param place: an empty place.
    """
    fleet = healthy_fleet(place)
    seal(Checkpoint.at(place / "ck/orders"), reason="a test")
    found = discover([place / "ck"])
    fresh = {each.place.uri: each for each in found.found}
    return with_fault(fleet, lambda s: replace(s, found=fresh[s.found.place.uri]))


def hours(number: float) -> Fault:
    """Make the last backup older, with batches committed since."""

    def older(s: Stream) -> Stream:
        assert s.backup
        assert s.found.progress
        progress = replace(s.found.progress, committed=(*s.found.progress.committed, 5), logged=(*range(6),))
        backup = replace(s.backup, as_of=s.backup.as_of - timedelta(hours=number))
        return replace(s, backup=backup, found=replace(s.found, progress=progress))

    return older


def aged(s: Stream) -> Stream:
    """Make the last backup older, with nothing committed since."""
    assert s.backup
    return replace(s, backup=replace(s.backup, as_of=s.backup.as_of - timedelta(hours=30)))


def gap(batches: int) -> Fault:
    """Log batches that are not committed."""

    def wider(s: Stream) -> Stream:
        assert s.found.progress
        progress = replace(s.found.progress, logged=tuple(range(5 + batches)))
        return replace(s, found=replace(s.found, progress=progress))

    return wider


def drilled(*, days_ago: float = 0, seconds: float = 60.0) -> Fault:
    """Have the last drill been longer ago, or longer."""

    def other(s: Stream) -> Stream:
        assert s.drill
        report = {**s.drill.report, "seconds": seconds}
        return replace(s, drill=replace(s.drill, at=s.drill.at - timedelta(days=days_ago), report=report))

    return other


def left(seconds: float) -> Fault:
    """Say how long the sources will have what is read next."""
    return lambda s: replace(s, time_to_loss=TimeToLoss(seconds, True, Verdict.SAFE))


def guards_silent(s: Stream) -> Stream:
    """The guards cannot ask the sources."""
    return replace(s, time_to_loss=not_known("nobody answers at kafka:9092"))


def no_backup(s: Stream) -> Stream:
    """All of its backups are gone."""
    return replace(s, backup=None, drill=None)


def not_verified(s: Stream) -> Stream:
    """Nobody verified the backup."""
    assert s.backup
    return replace(s, backup=replace(s.backup, verified=None))


def never_drilled(s: Stream) -> Stream:
    """No backup was restored and run on."""
    return replace(s, drill=None)


def half_way(s: Stream) -> Stream:
    """A rewind stopped before its end."""
    return replace(s, situation=RewindStatus(UNDER_WAY, "a rewind stopped half-way", ("airflow-ckpt status",), "1"))


def situation_not_known(s: Stream) -> Stream:
    """The records of its changes cannot be read."""
    return replace(s, situation=None, unknown={"situation": "no rights"})


@dataclass(frozen=True)
class Scenario:
    """A report, and the alerts that it raises.

    :param name: in words.
    :param alerts: all alerts that fire, by name.
    :param fleet: the report; ``None``: there is no file at all.
    :param before: the reports until ``since``.
    :param since: since when ``fleet`` is what is reported, in hours before the end.
    :param late: age of the report, in hours.
    """

    name: str
    alerts: frozenset[str]
    fleet: Fleet | None
    before: Fleet | None = None
    since: float = 0
    late: float = 0


def scenarios(place: Location) -> list[Scenario]:
    """A healthy fleet, and each alert once.

    :param place: an empty place.
    """
    good = healthy_fleet(place / "good")
    assert not good.problems()
    assert all(each.situation is None or each.situation.kind == UNTOUCHED for each in good.streams)

    def scenario(*alerts: str, fault: Fault, before: Fleet | None = None, since: float = 0) -> Scenario:
        return Scenario(fault.__name__, frozenset(alerts), with_fault(good, fault), before, since)

    old, ahead = (replace(with_fault(good, hours(n)), objectives={}, own_limits={}) for n in (30, -48))
    return [
        Scenario("healthy", frozenset(), good),
        Scenario("healthy for a while", frozenset(), good, before=with_fault(good, gap(1)), since=2),
        scenario("CkptNoBackup", "CkptRpoNotMet", "CkptNeverDrilled", "CkptProblems", fault=no_backup),
        scenario("CkptRpoNotMet", "CkptProblems", fault=hours(2)),
        Scenario("no rpo", frozenset({"CkptBackupTooOld"}), old),
        Scenario("old, and nothing to do", frozenset(), with_fault(good, aged)),
        Scenario("the same without rpo", frozenset(), replace(with_fault(good, aged), objectives={}, own_limits={})),
        scenario("CkptBackupNotVerified", fault=not_verified),
        scenario("CkptRtoNotMet", fault=drilled(seconds=6000.0)),
        scenario("CkptNeverDrilled", fault=never_drilled),
        scenario("CkptDrillTooOld", fault=drilled(days_ago=40)),
        Scenario(
            "a drill in the future",
            frozenset({"CkptNotKnown", "CkptNeverDrilled"}),
            with_fault(good, drilled(days_ago=-400)),
        ),
        Scenario("a backup in the future", frozenset({"CkptNotKnown"}), ahead),
        scenario("CkptTimeToLossBelowADay", fault=left(7200.0)),
        scenario("CkptTimeToLossBelowAnHour", fault=left(60.0)),
        scenario("CkptTimeToLossNotKnown", fault=guards_silent, before=good, since=6),
        Scenario("never a guard", frozenset(), with_fault(good, guards_silent)),
        scenario("CkptGapGrowing", fault=gap(5), before=good, since=1),
        Scenario("a gap that does not grow", frozenset(), with_fault(good, gap(5))),
        Scenario("sealed", frozenset({"CkptSealed"}), sealed_fleet(place / "sealed")),
        scenario("CkptChangeUnfinished", "CkptProblems", fault=half_way),
        scenario("CkptNotKnown", "CkptProblems", fault=situation_not_known),
        Scenario("late", frozenset({"CkptReportStopped"}), good, late=3),
        Scenario("no report", frozenset({"CkptReportStopped"}), None),
        Scenario(
            "unread", frozenset({"CkptDirectoriesNotRead"}), replace(good, unread=(Unread("s3://lake/x", "no rights"),))
        ),
        Scenario(
            "deleted",
            frozenset({"CkptCheckpointMissing"}),
            replace(good, missing=(Missing("old", "s3://lake/old"),)),
        ),
        Scenario("empty", frozenset({"CkptNoStreams"}), replace(good, streams=())),
    ]
