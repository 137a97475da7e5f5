"""Sources with a plain number as offset: only ``rate`` makes its own rows, and only its start time shows that it is one."""

from __future__ import annotations

import json

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.fleet.time_to_loss import time_to_loss
from airflow_ckpt_provider.guards.query import from_checkpoint, guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.guards.report import GuardReport
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.upgrade.preflight import query_to_guard
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import repository
from tests.support.checkpoints import Files, commit_log, metadata, offsets_log, plant

STARTED = b"v1\n1795263545094"
NOTHING_SHOWS_IT = (
    "its offset is a plain number, and there is no sources/0/0 with a start time to show that it is a source of Spark's "
    "format rate: a socket and other sources have such offsets too"
)
ANOTHER = "sources/0/0 holds no start time of Spark's format rate: it is another source, or torn"


def stream(first: bytes | None, offset: str = "{}9", *, commits: int = 3) -> Files:
    files: Files = {"metadata": metadata()}
    files |= {f"offsets/{n}": offsets_log(offset.replace("{}", str(n))) for n in range(3)}
    files |= {f"commits/{n}": commit_log() for n in range(commits)}
    return files if first is None else files | {"sources/0/0": first}


def judged(place: Location) -> GuardReport:
    return guard_query(from_checkpoint(place), GuardSettings())


@pytest.mark.parametrize("commits", [3, 2], ids=["next batch", "replay"])
def test_rate(place: Location, commits: int) -> None:
    report = judged(plant(place, stream(STARTED, commits=commits)))
    assert (report.verdict, report.reasons) == (Verdict.SAFE, ())
    assert (time_to_loss(report).seconds, time_to_loss(report).known) == (None, True)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (None, NOTHING_SHOWS_IT),
        (b"", ANOTHER),
        (b"v1", ANOTHER),
        (b"v1\n", ANOTHER),
        (b"v1\n-3", ANOTHER),
        (b'v1\n{"t":{"0":5}}', ANOTHER),
        (b"v1\n1795263545094\n5", ANOTHER),
        (b"\xff\xfe", ANOTHER),
    ],
)
def test_any_other_source_with_a_number(place: Location, first: bytes | None, reason: str) -> None:
    report = judged(plant(place, stream(first)))
    assert (report.verdict, list(report.reasons)) == (Verdict.UNKNOWN, [reason])
    assert not time_to_loss(report).known


def test_offsets_as_those_of_rate_per_micro_batch(place: Location) -> None:
    """A Python data source may have them too, and no file shows which it is."""
    offset = json.dumps({"offset": 10, "timestamp": 2000})
    assert judged(plant(place, stream(None, offset))).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("first", "verdict"), [(STARTED, Verdict.SAFE), (None, Verdict.UNKNOWN)])
def test_a_backup(place: Location, first: bytes | None, verdict: Verdict) -> None:
    there = repository(place)
    create_backup(Checkpoint.at(plant(place / "orders", stream(first))), there)
    assert guard_query(query_to_guard(repository=there), GuardSettings()).verdict is verdict
