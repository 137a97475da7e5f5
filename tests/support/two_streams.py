"""Two streams, their repository, and what a report of them says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import BackupResult, create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.fleet.discovery import discover
from airflow_ckpt_provider.fleet.fleet import Fleet, inspect_fleet
from airflow_ckpt_provider.fleet.stream import Limits, Stream
from airflow_ckpt_provider.guards.registry import Guard, GuardedSource, GuardSettings
from airflow_ckpt_provider.guards.report import PartReport, SourceReport
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import stream
from tests.support.checkpoints import logs, plant


@pytest.fixture
def repository(place: Location) -> Repository:
    return Repository.open_or_create(place / "backups")


@pytest.fixture
def streams(place: Location) -> Location:
    """Two of them: ``orders`` with state and five batches, ``payments`` with three."""
    plant(place / "ck/orders", stream(4))
    plant(place / "ck/payments", logs(range(3)))
    return place / "ck"


def back_up(repository: Repository, checkpoint: Location, **options: Any) -> BackupResult:
    return create_backup(Checkpoint.at(checkpoint), repository, **options)


def look(streams: Location, repository: Repository, limits: Limits | None = None, **options: Any) -> Fleet:
    return inspect_fleet(discover([streams]), repository, limits=limits, **options)


def row(fleet: Fleet, name: str = "orders") -> Stream:
    (found,) = (s for s in fleet.streams if s.found.place.name == name)
    return found


def problems(fleet: Fleet, name: str = "orders") -> tuple[str, ...]:
    return row(fleet, name).problems(fleet.limits)


class Told:
    """A guard that says what it was asked to."""

    kind = "file"

    def __init__(self, answer: Callable[[GuardedSource], SourceReport]) -> None:
        self.answer = answer

    def recognises(self, source: GuardedSource) -> bool:
        return True

    def judge(self, source: GuardedSource) -> SourceReport:
        return self.answer(source)


def telling(seconds_left: float | None, **more: Any) -> Callable[[GuardSettings], Sequence[Guard]]:
    return lambda _: [Told(lambda source: SourceReport(source.name, "file", seconds_left=seconds_left, **more))]


def parts(*seconds: float | None) -> tuple[PartReport, ...]:
    """Partitions of a topic as Kafka's guard reports them; ``None``: limited by size, so nobody can tell."""
    return tuple(
        PartReport(
            f"t-{n}", Verdict.SAFE, {"limited_by": "retention.ms" if left else "retention.bytes", "seconds_left": left}
        )
        for n, left in enumerate(seconds)
    )


NOT_TOLD = "source 0 (file): how long it will be there is not known"
