"""A repository of format 1 that is migrated, and what has to be whole afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.migrate import MigrateOutcome, apply_migrate, plan_migrate
from airflow_ckpt_provider.backup.packing import PACKED_BELOW
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import pack_size
from tests.support.backups import back_up, files_in, stream
from tests.support.checkpoints import Files, contents
from tests.support.packs import restorable, with_big_files
from tests.support.watched_stores import forget_all, in_memory

ALL = ReadData()


@pytest.fixture
def place() -> Iterator[Location]:
    yield in_memory()
    forget_all()


def format_1(place: Location) -> tuple[Repository, list[Manifest], list[Files]]:
    """A repository of format 1, its two backups, and what these hold."""
    first = back_up(place, with_big_files(stream(4))).manifest
    second = back_up(place, stream(6)).manifest
    return Repository.open(place / "backups"), [first, second], [files_in(each, place) for each in (first, second)]


def migrate(place: Location, *, after: timedelta = timedelta(0)) -> MigrateOutcome:
    plan = plan_migrate(Repository.open(place / "backups"))
    return apply_migrate(place / "backups", plan, abandoned_after=after)


def small_objects(place: Location) -> list[str]:
    """Paths of the objects that lie alone and are small."""
    there = (place / "backups").walk("objects").values()
    return [file.path for file in there if pack_size(file.path) is None and file.size < PACKED_BELOW]


def assert_whole(place: Location, made: list[Manifest], right: list[Files]) -> None:
    repository = Repository.open(place / "backups")
    assert repository.backups("orders") == made, "manifests never change"
    for number, manifest in enumerate(made):
        assert restorable(repository, manifest) == right[number]
        assert verify_backup(repository, manifest, read_data=ALL).ok
        target = place / "targets" / str(number)
        apply_restore(plan_restore(repository, manifest, target))
        assert contents(target) == right[number]
        for path in list(target.walk()):
            target.delete(path)
