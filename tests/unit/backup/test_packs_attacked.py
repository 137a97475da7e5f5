"""Orders of events and forged files that may cost no content in a pack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest

from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.prune import MaxUnused, apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_repair import apply_objects_repair, plan_objects_repair
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of, part_of, read_moved
from tests.unit.backup.backups import back_up, files_in, stream
from tests.unit.backup.packs import packed_repository, packs_of, restorable
from tests.unit.checkpoint.stores import forget_all, in_memory

ALL = ReadData()


@pytest.fixture
def place() -> Iterator[Location]:
    yield in_memory()
    forget_all()


def moved_once(place: Location) -> tuple[Repository, Manifest]:
    """A repository whose only backup lists contents that were moved, and the pack that its manifest names is gone."""
    repository = packed_repository(place)
    back_up(place, {**stream(4), **{f"_schema/{n}": bytes([n]) * 5000 for n in range(8)}})
    for n in range(8):
        (place / "orders").delete(f"_schema/{n}")
    made = back_up(place, stream(6)).manifest
    apply_expire(repository, plan_expire(repository, Policy(last=1)))
    apply_prune(repository, plan_prune(repository))
    assert read_moved(repository.location, "orders").paths
    return repository, made


def flip(repository: Repository, path: str) -> None:
    """Change a bit of a content in a pack."""
    part = part_of(path)
    assert part is not None
    assert part.length
    data = bytearray(repository.location.read(part.pack))
    data[part.start] ^= 1
    repository.location.replace(part.pack, bytes(data))


def prune(repository: Repository) -> None:
    apply_prune(repository, plan_prune(repository, max_unused=MaxUnused(0)), abandoned_after=timedelta(0))


def test_a_repair_of_one_moved_content_hides_no_other(place: Location) -> None:
    repository, made = moved_once(place)
    right = files_in(made, place)
    moved = read_moved(repository.location, "orders").paths
    entry = next(e for e in made.files if e.object in moved and e.size)
    flip(repository, moved[entry.object])
    record_verification(repository, verify_backup(repository, made, read_data=ALL))
    apply_objects_repair(repository, place / "orders", plan_objects_repair(repository, place / "orders"))
    assert restorable(repository, made) == right
    assert verify_backup(repository, made, read_data=ALL).ok
    apply_prune(repository, plan_prune(repository))
    assert plan_prune(repository, max_unused=MaxUnused(0)).steps == ()
    assert restorable(repository, made) == right


def test_a_repair_that_stood_still_hides_nothing_that_was_moved_meanwhile(place: Location) -> None:
    """Its content is put into a pack that a prune has deleted."""
    repository = packed_repository(place)
    back_up(place, {**stream(4), **{f"_schema/{n}": bytes([n]) * 5000 for n in range(8)}})
    for n in range(8):
        (place / "orders").delete(f"_schema/{n}")
    made = back_up(place, stream(6)).manifest
    right = files_in(made, place)
    entry = next(e for e in repository.backups()[0].files if e.path == "_schema/0")
    flip(repository, entry.object)
    record_verification(repository, verify_backup(repository, repository.backups()[0], read_data=ALL))
    (place / "orders").create(entry.path, bytes(5000))
    plan = plan_objects_repair(repository, place / "orders")
    assert [each.entry.object for each in plan.rebuilt] == [entry.object]
    apply_expire(repository, plan_expire(repository, Policy(last=1)))
    apply_prune(repository, plan_prune(repository))
    assert file_of(entry.object) not in packs_of(repository)
    with suppress(StorageError):
        apply_objects_repair(repository, place / "orders", plan)
    assert restorable(repository, made) == right
