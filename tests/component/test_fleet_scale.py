"""Three hundred streams: how many requests finding them and reading all of them takes, counted where they leave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.fleet.discovery import discover
from airflow_ckpt_provider.fleet.fleet import inspect_fleet
from airflow_ckpt_provider.fleet.limits import WORKERS
from airflow_ckpt_provider.fleet.stream import Limits
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.checkpoints import contents, plant
from tests.support.one_checkpoint import NEWEST, unpack
from tests.support.s3_gate import Gate, by_kind
from tests.support.s3_server import S3Server
from tests.support.watched_stores import watched

#: Requests that a stream may cost: its directory, two logs, query id and newest entry; then backups, what is known to be damaged,
#: verification, manifest.
TO_FIND, TO_COMPARE = 5, 4
#: And all of them together: the folders on the way; marker, names, damaged, verified, drills and plans of the repository.
FOLDERS, OF_REPOSITORY = 3, 6


@pytest.fixture
def gate(s3_server: S3Server) -> Iterator[Gate]:
    made = Gate(s3_server)
    yield made
    made.close()


def fleet_of(place: Location, sample: Path, count: int) -> None:
    """Copies of one real checkpoint in two folders, each with a backup that was verified."""
    files = contents(open_location(str(sample)))
    repository = Repository.open_or_create(place / "backups")

    def make(n: int) -> None:
        checkpoint = plant(place / f"ck/team{n % 2}/s{n:03}", files)
        made = create_backup(Checkpoint.at(checkpoint), repository, workers=4)
        record_verification(repository, verify_backup(repository, made.manifest))

    in_parallel(make, range(count), workers=8)


@pytest.mark.parametrize("count", [12, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_on_s3(s3_server: S3Server, gate: Gate, tmp_path: Path, count: int) -> None:
    root = f"s3://{s3_server.make_bucket()}/lake"
    fleet_of(open_location(root, storage_options=s3_server.options()), unpack(tmp_path / "sample"), count)
    place = open_location(root, storage_options=gate.options())
    with gate.watched() as finding:
        found = discover([place / "ck"])
    assert [f.progress.latest_committed for f in found.found if f.progress] == [NEWEST] * count
    assert len(finding) <= FOLDERS + TO_FIND * count
    assert by_kind(finding)["LIST"] == FOLDERS + 3 * count
    with gate.watched() as looking:
        fleet = inspect_fleet(found, Repository.open(place / "backups"), limits=Limits(max_age=3600, max_gap=0))
    assert fleet.problems() == {}
    assert all(s.backup and s.backup.verified for s in fleet.streams)
    assert len(looking) <= OF_REPOSITORY + TO_COMPARE * count
    # A poll at one checkpoint asks for up to three things at once.
    assert max(r.at_once for r in [*finding, *looking]) <= 3 * WORKERS, "the pool is bounded"
    print(f"{count} streams on S3: {len(finding)} requests to find, {len(looking)} to compare")


@pytest.mark.slow
def test_on_the_local_disk(tmp_path: Path) -> None:
    count = 300
    place = open_location(str(tmp_path / "lake"))
    fleet_of(place, unpack(tmp_path / "sample"), count)
    looking, store = watched(place / "ck")
    asking, kept = watched(place / "backups")
    fleet = inspect_fleet(discover([looking]), Repository.open(asking), limits=Limits(max_age=3600, max_gap=0))
    assert fleet.problems() == {}
    assert len(fleet.streams) == count
    assert len(store.requests) == FOLDERS + TO_FIND * count
    assert len(kept.requests) == OF_REPOSITORY + TO_COMPARE * count
