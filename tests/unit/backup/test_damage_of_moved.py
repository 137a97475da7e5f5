"""Damage of contents that were moved: a name is whole where it was read whole itself, and forgotten when nobody lists its place.

A content is at P; a repack moves it to Q, a second one to R. Backups list it as P, as Q or as R.
"""

from __future__ import annotations

import pytest

from airflow_ckpt_provider.backup.damaged import learn_damaged, read_damaged
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import hold, record_verification
from airflow_ckpt_provider.backup.prune import MaxUnused, apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.repository_repair import apply_objects_repair, plan_objects_repair
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.backup.verify_repository import verify_repository
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of, read_moved
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import back_up, stream
from tests.support.migrations import format_1, migrate
from tests.support.moved_packs import flip, moved_once, moved_twice, prune
from tests.support.packs import packs_of, restorable


def verify(repository: Repository, manifest: Manifest) -> bool:
    """Read all of a backup, note what was found, and return whether nothing was."""
    report = verify_backup(repository, manifest, read_data=ReadData())
    record_verification(repository, report)
    return report.ok


def damaged(repository: Repository) -> set[str]:
    """Backups that a check names."""
    return {each.backup_id for each in check_repository(repository).damaged}


def known(repository: Repository) -> set[str]:
    return set(read_damaged(repository.location, "orders").objects)


def rotten_at_r(place: Location) -> tuple[Repository, Manifest, Manifest, FileEntry]:
    """P is gone, Q is whole and still there, R is rotten: a backup that lists P, one that lists R, and its entry of that."""
    repository, first, entry, _ = moved_twice(place)
    second = back_up(place, stream(7)).manifest
    now = read_moved(repository.location, "orders").now(entry.object)
    found = next(each for each in second.files if each.object == now)
    flip(repository, now)
    return repository, first, second, found


def test_what_another_backup_reads_elsewhere_clears_nothing(place: Location) -> None:
    repository, first, second, entry = rotten_at_r(place)
    assert not verify(repository, second)
    verify(repository, first)
    assert damaged(repository) == {second.backup_id}
    assert entry.object in known(repository)
    apply_expire(repository, plan_expire(repository, Policy(last=1)))
    prune(repository)
    assert first.backup_id in repository.backup_ids("orders")
    assert len(restorable(repository, first)) == len(first.files)


def test_verifying_all_and_a_check_agree(place: Location) -> None:
    repository, first, second, entry = rotten_at_r(place)
    for _ in range(2):
        verify_repository(repository, read_data=ReadData())
        assert damaged(repository) == {second.backup_id}
        assert entry.object in known(repository)
    assert repository.manifest(name="orders").backup_id == first.backup_id


def test_without_the_earlier_place_both_are_damaged_and_whole_together(place: Location) -> None:
    repository, first, second, entry = rotten_at_r(place)
    moved = read_moved(repository.location, "orders")
    (earlier,) = {file_of(to) for to in moved.paths.values()} - {file_of(entry.object)} & set(packs_of(repository))
    kept = repository.location.read(earlier)
    repository.location.delete(earlier)
    assert not verify(repository, second)
    assert damaged(repository) == {first.backup_id, second.backup_id}
    flip(repository, entry.object)
    assert verify(repository, second)
    assert (damaged(repository), known(repository)) == (set(), set())
    repository.location.create(earlier, kept)
    flip(repository, entry.object)
    assert not verify(repository, second)
    flip(repository, entry.object)
    assert verify(repository, second)
    assert (damaged(repository), known(repository)) == (set(), set())


def test_damage_is_not_forgotten_while_the_content_is_listed_under_its_first_name(place: Location) -> None:
    repository, made, entry, _ = moved_twice(place)
    prune(repository)
    flip(repository, read_moved(repository.location, "orders").now(entry.object))
    assert not verify(repository, made)
    before = known(repository)
    for rest in "ab":
        repository.location.create(f"objects/orders/aa/{rest * 64}", b"left by a killed backup")
        assert apply_prune(repository, plan_prune(repository)).objects
        assert known(repository) == before
    assert damaged(repository) == {made.backup_id}
    assert len(repository.location.walk("damaged")) == 1, "nothing new was learned"


def test_damage_is_not_forgotten_once_its_first_name_is_listed_no_more(place: Location) -> None:
    repository, _ = moved_once(place)
    second = back_up(place, stream(7)).manifest
    moved = set(read_moved(repository.location, "orders").paths.values())
    flip(repository, next(e.object for e in second.files if e.object in moved and e.size > 20))
    assert not verify(repository, second)
    (place / "orders").create("_schema/extra", bytes(3000))
    back_up(place, stream(7))
    (place / "orders").delete("_schema/extra")
    back_up(place, stream(8))
    hold(repository, second, reason="incident 12")
    apply_expire(repository, plan_expire(repository, Policy(last=1)))
    apply_prune(repository, plan_prune(repository))
    assert second.backup_id in damaged(repository)


def test_what_was_found_later_under_one_name_is_not_cleared_by_who_began_before(place: Location) -> None:
    repository, first = moved_once(place)
    location, moved = repository.location, read_moved(repository.location, "orders")
    old = next(e.object for e in first.files if e.object in moved.paths and e.size)
    now = moved.now(old)
    for names in ((old, now), (now, old)):
        learn_damaged(location, "orders", damaged={names[0]: "content"}, whole=(), since=0)
        began = read_damaged(location, "orders").number
        learn_damaged(location, "orders", damaged={names[1]: "content"}, whole=(), since=0)
        assert {d.number for d in read_damaged(location, "orders").objects.values()} == {began + 1}
        learn_damaged(location, "orders", damaged={}, whole={old, now}, since=began)
        assert {old, now} <= known(repository)
        learn_damaged(location, "orders", damaged={}, whole={old, now}, since=began + 1)
        assert known(repository) == set()


@pytest.mark.parametrize("is_listed", [True, False], ids=["a backup lists P", "none does"])
def test_a_repair_takes_what_is_still_at_an_earlier_place(place: Location, is_listed: bool) -> None:
    repository, first, second, entry = rotten_at_r(place)
    if not is_listed:
        repository.location.delete(first.path)
    verify_repository(repository, read_data=ReadData())
    plan = plan_objects_repair(repository, place / "gone", name="orders")
    assert (plan.verdict, plan.lost) == (Verdict.SAFE, ())
    assert [(each.entry.object, each.origin) for each in plan.rebuilt] == [(entry.object, "repository")]
    apply_objects_repair(repository, place / "gone", plan)
    verify_repository(repository, read_data=ReadData())
    assert (damaged(repository), known(repository)) == (set(), set())
    assert len(restorable(repository, second)) == len(second.files)


@pytest.mark.format_1("an object that lies alone")
def test_a_prune_keeps_the_last_whole_copy_of_an_object_that_is_damaged(place: Location) -> None:
    """It lies alone, and nothing of it was ever moved; a later backup has stored its content in a pack."""
    repository, (_, second), _ = format_1(place)
    repository.location.delete(repository.backups("orders")[0].path)
    entry = next(each for each in second.files if each.path == "metadata")
    repository.location.replace(entry.object, repository.location.read(entry.object)[:-1] + b"\0")
    assert not verify(repository, second)
    migrate(place)
    repository = Repository.open(place / "backups")
    third = back_up(place, {**stream(7), "_schema/extra": bytes(range(200)) * 15}).manifest
    (place / "orders").delete("_schema/extra")
    (again,) = (each for each in third.files if each.path == "metadata")
    assert file_of(again.object) in packs_of(repository)
    back_up(place, {**stream(8), "metadata": b'{"id": "199ce9d3-fd64-4a41-a1cf-23002acf0134"}'})
    hold(repository, second, reason="incident 12")
    apply_expire(repository, plan_expire(repository, Policy(last=1)))
    assert third.backup_id not in repository.backup_ids("orders")
    prune(repository)
    assert again.is_content(repository.location.read(again.object))


def test_a_prune_keeps_the_last_whole_copy_of_what_is_damaged_where_a_backup_lists_it(place: Location) -> None:
    repository, first, second, _ = rotten_at_r(place)
    assert not verify(repository, second)
    back_up(place, {**stream(8), "metadata": b'{"id": "199ce9d3-fd64-4a41-a1cf-23002acf0134"}'})
    hold(repository, second, reason="incident 12")
    apply_expire(repository, plan_expire(repository, Policy(last=1)))
    assert first.backup_id not in repository.backup_ids("orders")
    outcome = apply_prune(repository, plan_prune(repository, max_unused=MaxUnused(0)))
    assert "damaged or missing" in str(outcome.to_json())
    assert second.backup_id in damaged(repository)
    apply_objects_repair(repository, place / "gone", plan_objects_repair(repository, place / "gone"))
    assert len(restorable(repository, second)) == len(second.files)
    assert verify(repository, second)
    prune(repository)
    assert len(restorable(repository, second)) == len(second.files)
