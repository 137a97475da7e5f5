"""Damage that a migration, a prune or a copy comes upon is noted: no later backup takes it, and ``check`` says it."""

from __future__ import annotations

import pytest

from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.migrate import plan_migrate
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.errors import DamagedBackupError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of
from tests.support.backups import back_up, stream
from tests.support.migrations import format_1, migrate
from tests.support.moved_packs import flip
from tests.support.packs import mostly_garbage, packed_repository
from tests.support.watched_stores import in_memory


@pytest.fixture
def place() -> Location:
    return in_memory()


def damaged_in(repository: Repository) -> list[str]:
    return [each.backup_id for each in check_repository(repository).damaged]


def is_taken_again(place: Location, entry: FileEntry) -> bool:
    """Whether the next backup lists the damaged object, of which it has the content."""
    return entry.object in {each.object for each in back_up(place, stream(7)).manifest.files}


def one(manifest: Manifest, *, pack: str | None = None) -> FileEntry:
    return next(e for e in manifest.files if 20 < e.size < 500_000 and pack in (None, file_of(e.object)))


@pytest.mark.format_1
def test_by_a_migration(place: Location) -> None:
    repository, made, _ = format_1(place)
    entry = one(made[1])
    repository.location.replace(entry.object, repository.location.read(entry.object)[:-1] + b"\0")
    outcome = migrate(place)
    assert outcome.waits_for == {"orders": (f"{entry.object}, which has 1 damaged content (airflow-ckpt repair)",)}
    repository = Repository.open(place / "backups")
    assert made[1].backup_id in damaged_in(repository)
    assert not plan_migrate(repository).objects
    assert not is_taken_again(place, entry)


def test_by_a_prune_that_repacks(place: Location) -> None:
    repository, made = mostly_garbage(place)
    (pack,) = plan_prune(repository).streams[0].repacked
    wrong = [e for e in made.files if file_of(e.object) == pack and e.size > 20][:2]
    for entry in wrong:
        flip(repository, entry.object)
    outcome = apply_prune(repository, plan_prune(repository))
    assert f"{pack}, which has 2 damaged contents (airflow-ckpt repair)" in outcome.waits_for["orders"]
    assert damaged_in(repository) == [made.backup_id]
    assert not is_taken_again(place, wrong[0])


def test_by_a_copy(place: Location) -> None:
    repository = packed_repository(place)
    made = back_up(place, stream(4)).manifest
    entry = one(made)
    flip(repository, entry.object)
    second = Repository.open_or_create(place / "second", format=2)
    with pytest.raises(DamagedBackupError, match="has another content than was backed up"):
        copy_backups(repository, second, [made])
    assert damaged_in(repository) == [made.backup_id]
    assert not is_taken_again(place, entry)


def test_a_copy_that_is_there_and_damaged(place: Location) -> None:
    repository = packed_repository(place)
    first, made = back_up(place, stream(4)).manifest, back_up(place, stream(5)).manifest
    second = Repository.open_or_create(place / "second", format=2)
    copy_backups(repository, second, [first])
    there = second.manifest(name="orders")
    flip(second, one(there).object)
    record_verification(second, verify_backup(second, there, read_data=ReadData()))
    with pytest.raises(
        DamagedBackupError, match=f"has backup {first.backup_id} of orders already, and it is damaged"
    ) as e:
        copy_backups(repository, second, [first, made])
    assert "airflow-ckpt repair" in (e.value.hint or "")
    assert made.backup_id in second.backup_ids("orders"), "the others are copied"
