"""Orders of events and forged files that may cost no content in a pack."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from airflow_ckpt_provider.backup import repack
from airflow_ckpt_provider.backup.claims import entries_in_use, in_use, open_claims
from airflow_ckpt_provider.backup.contents import Listed
from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.damaged import learn_damaged, read_damaged
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.immutability import Immutability
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.pack_reads import spans
from airflow_ckpt_provider.backup.prune import MaxUnused, apply_prune, plan_prune
from airflow_ckpt_provider.backup.prune_marks import Marks, read_marks, write_mark
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.repository_repair import apply_objects_repair, plan_objects_repair
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import DamagedBackupError, StorageError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of, part_of, read_moved
from tests.support.backups import back_up, files_in, stream
from tests.support.checkpoints import plant
from tests.support.locked_objects import Locks
from tests.support.locked_objects import lockable as lockable
from tests.support.moved_packs import flip, moved_once, moved_twice, prune, repacked
from tests.support.packs import packed_repository, packs_of, restorable
from tests.support.watched_stores import forget_all, in_memory, watched

ALL = ReadData()


@pytest.fixture
def place() -> Iterator[Location]:
    yield in_memory()
    forget_all()


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


@pytest.mark.parametrize("number", ["000000", "000002"])
def test_a_forged_record_of_what_was_moved_before_deletes_nothing(place: Location, number: str) -> None:
    repository, made = moved_once(place)
    right = files_in(made, place)
    moved = read_moved(repository.location, "orders").paths
    new = {file_of(to) for to in moved.values()}
    (other,) = {file_of(e.object) for e in made.files} & set(packs_of(repository))
    # It says of what was moved, at its old or at its new place, that it is elsewhere.
    record: dict[str, dict[str, dict[str, int]]] = {}
    for old, to in moved.items():
        pack, _, content = (old if number == "000000" else to).rpartition("/")
        record.setdefault(pack, {}).setdefault(other, {})[content] = 8
    document = {"format": "airflow-ckpt-moved", "version": 1, "moved": record}
    repository.location.create(f"moved/orders/{number}.json", json.dumps(document).encode())
    prune(repository)
    prune(repository)
    assert new <= set(packs_of(repository))
    repository.location.delete(f"moved/orders/{number}.json")
    assert restorable(repository, made) == right


def test_what_was_moved_twice_is_read_before_its_last_good_copy_goes(place: Location) -> None:
    repository, made, entry, first = moved_twice(place)
    right = files_in(made, place)
    moved = read_moved(repository.location, "orders")
    flip(repository, moved.now(entry.object))
    prune(repository)
    assert first <= set(packs_of(repository))
    repository.location.delete("moved/orders/000002.json")
    assert restorable(repository, made) == right


def test_who_has_read_records_finds_what_was_moved_since(place: Location) -> None:
    """A reader that was paused between two contents of a pack: meanwhile the pack was repacked, and deleted."""
    repository, made = moved_once(place)
    right = files_in(made, place)
    moved = read_moved(repository.location, "orders")
    entries = [entry for entry in made.files if entry.object in moved.paths and entry.size]
    (pack,) = {file_of(moved.now(entry.object)) for entry in entries}
    whole = repository.location.read(pack)
    repository.location.replace(pack, bytes(byte ^ 1 for byte in whole))
    (span,) = spans(repository.location, pack, entries, moved=moved)
    assert span.read(entries[0]) != right[entries[0].path]
    repository.location.replace(pack, whole)
    assert repack.repack(repository, "orders", {pack}, made_by="a test")[0] == {pack}
    prune(repository)
    assert pack not in packs_of(repository)
    assert [span.read(entry) for entry in entries] == [right[entry.path] for entry in entries]


def test_without_its_record_what_was_moved_stays(place: Location) -> None:
    """A repository that was copied without it, or a prune that trusts other keys than the one before."""
    repository, made = moved_once(place)
    right, path = files_in(made, place), "moved/orders/000001.json"
    data, before = repository.location.read(path), packs_of(repository)
    repository.location.delete(path)
    apply_prune(repository, plan_prune(repository, max_unused=MaxUnused(0)))
    assert packs_of(repository) == before
    repository.location.create(path, data)
    assert restorable(repository, made) == right


def test_a_prune_that_had_opened_it_as_format_1_knows_what_was_moved(place: Location) -> None:
    repository, made = moved_once(place)
    right = files_in(made, place)
    opened_before = Repository(repository.location, repository.repository_id, 1)
    assert plan_prune(opened_before, max_unused=MaxUnused(0)).objects == 0
    prune(opened_before)
    assert restorable(repository, made) == right


def test_a_prune_that_stood_still_deletes_no_record_that_is_needed_by_now(place: Location) -> None:
    """Since its read the manifests others have backed up, expired, and repacked."""
    repository, made = moved_once(place)
    right = files_in(made, place)
    moved = {file_of(to) for to in read_moved(repository.location, "orders").paths.values()}
    repack.repack(repository, "orders", moved, made_by="a test")
    prune(repository)
    seen_before = Listed("orders", frozenset(), frozenset(), frozenset(), ())
    repack.tidy_moved(repository, "orders", seen_before)
    assert restorable(repository, made) == right


def test_a_restore_that_runs_keeps_the_records_that_it_reads_by(place: Location) -> None:
    repository, made = moved_once(place)
    moved = {file_of(to) for to in read_moved(repository.location, "orders").paths.values()}
    repack.repack(repository, "orders", moved, made_by="a test")
    right = files_in(made, place)
    with in_use(repository, made, what="restore", made_by="somebody"):
        back_up(place, stream(7))
        apply_expire(repository, plan_expire(repository, Policy(last=1)))
        apply_prune(repository, plan_prune(repository, max_unused=MaxUnused.parse("unlimited")))
        assert restorable(repository, made) == right


def test_a_copy_lists_no_pack_that_is_known_to_be_damaged_there(place: Location) -> None:
    source = packed_repository(place)
    first = back_up(place, {**stream(6), **{f"_schema/{n}": bytes([n]) * 5000 for n in range(8)}}).manifest
    target = Repository.open_or_create(place / "second", format=2)
    copy_backups(source, target, [first])
    wrong = next(e.object for e in target.manifest().files if e.path == "metadata")
    flip(target, wrong)  # found by a verify that reads few contents: nothing is known of the pack as such
    learn_damaged(target.location, "orders", damaged={wrong: "content"}, whole=(), since=0)
    second = back_up(place, stream(7)).manifest
    copy_backups(source, target, [second])
    assert verify_backup(target, target.manifest(second.backup_id), read_data=ALL).ok


def test_a_pack_that_could_not_be_read_is_not_whole(place: Location) -> None:
    repository = packed_repository(place)
    made = back_up(place, stream()).manifest
    (pack,) = packs_of(repository)
    learn_damaged(repository.location, "orders", damaged={pack: "content"}, whole=(), since=0)

    def fail(operation: str, path: str) -> None:
        if operation.startswith("read") and path.endswith(".pack"):
            raise StorageError("the store is down")

    report = verify_backup(Repository.open(watched(place / "backups", fail)[0]), made, read_data=ALL)
    record_verification(repository, report)
    assert pack in read_damaged(repository.location, "orders").objects


def test_a_backup_knows_by_its_new_place_what_was_found_damaged_by_its_old_one(place: Location) -> None:
    repository, made = moved_once(place)
    newer = back_up(place, stream(7)).manifest
    moved = read_moved(repository.location, "orders").paths
    listed = {e.object for e in newer.files}
    entry = next(e for e in made.files if moved.get(e.object) in listed and e.size)
    flip(repository, moved[entry.object])
    record_verification(repository, verify_backup(repository, made, read_data=ALL))
    after = create_backup(Checkpoint.at(place / "orders"), repository).manifest
    assert moved[entry.object] not in {e.object for e in after.files}
    assert restorable(repository, after) == files_in(after, place)


def test_a_manifest_that_cannot_be_read_now_needs_its_records(place: Location) -> None:
    repository, made = moved_once(place)
    right = files_in(made, place)
    moved = {file_of(to) for to in read_moved(repository.location, "orders").paths.values()}
    repack.repack(repository, "orders", moved, made_by="a test")
    back_up(place, stream(7))
    repository.location.create("objects/orders/aa/left", b"by a backup that was killed")
    plan = plan_prune(repository, max_unused=MaxUnused.parse("unlimited"))

    def fail(operation: str, path: str) -> None:
        if operation.startswith("read") and path.endswith(made.path):
            raise StorageError("the store is down")

    apply_prune(Repository.open(watched(place / "backups", fail)[0]), plan)
    assert restorable(repository, made) == right


def test_what_was_moved_is_read_by_as_few_requests_as_what_was_not(place: Location) -> None:
    repository, made = moved_once(place)
    seen, store = watched(place / "backups")
    assert verify_backup(Repository.open(seen), made, read_data=ALL).ok
    packs = {file_of(e.object) for e in made.files} | set(packs_of(repository))
    assert len(packs) == 3
    assert sum(path.endswith(".pack") for path in store.paths("read", "read_part")) <= 4
    # One to see that all is there, one to read it.
    assert len([path for path in store.paths("read", "read_at_most") if "/moved/" in path]) == 2


def test_an_empty_content_that_was_moved_is_read_without_a_part_of_no_bytes(place: Location) -> None:
    repository = packed_repository(place)
    back_up(place, {**stream(4), "_schema/empty": b"", **{f"_schema/{n}": bytes([n]) * 5000 for n in range(8)}})
    for n in range(8):
        (place / "orders").delete(f"_schema/{n}")
    made = back_up(place, stream(6)).manifest
    apply_expire(repository, plan_expire(repository, Policy(last=1)))
    apply_prune(repository, plan_prune(repository))
    empty = next(e.object for e in made.files if e.path == "_schema/empty")
    assert file_of(empty) not in packs_of(repository)
    seen, store = watched(place / "backups")
    assert seen.read(empty) == b""
    assert not [path for path in store.paths("read", "read_part") if path.endswith(".pack")]


def test_a_lock_covers_the_record_by_which_moved_contents_are_found(lockable: Location) -> None:
    repository, made = moved_once(lockable)
    immutability = Immutability(repository, timedelta(days=1))
    immutability.lock_objects(made)
    assert {"moved/orders/000001.json", *packs_of(repository)} <= Locks.locked.keys()


@pytest.mark.parametrize("when", ["since the plan was made", "which is not known"])
def test_a_pack_that_is_locked_is_not_packed_anew(lockable: Location, when: str) -> None:
    repository = packed_repository(lockable)
    back_up(lockable, {**stream(4), **{f"_schema/{n}": bytes([n]) * 5000 for n in range(8)}})
    for n in range(8):
        (lockable / "orders").delete(f"_schema/{n}")
    made = back_up(lockable, stream(6)).manifest
    apply_expire(repository, plan_expire(repository, Policy(last=1)))
    if when == "which is not known":
        Locks.fails = True
    plan = plan_prune(repository)
    if when == "since the plan was made":
        assert plan.streams[0].repacked
        Immutability(repository, timedelta(days=1)).lock_objects(made)
    before = packs_of(repository)
    apply_prune(repository, plan)
    assert packs_of(repository) == before


def test_contents_of_a_pack_that_a_prune_is_deleting_are_not_taken_into_use(place: Location) -> None:
    repository = packed_repository(place)
    made = back_up(place, stream()).manifest
    (pack,) = packs_of(repository)
    write_mark(repository.location, "orders", Marks(), {pack}, made_by="a prune")
    with (
        pytest.raises(StorageError, match="a prune is deleting it"),
        entries_in_use(repository, made.files, what="repair", made_by="somebody"),
    ):
        raise AssertionError("it was taken into use")


def test_what_a_repair_cannot_rebuild_of_a_pack_is_known_to_be_damaged(place: Location) -> None:
    """The pack is there again, with its size: nothing else would show it, and the next backup would list it."""
    repository = packed_repository(place)
    made = back_up(place, stream()).manifest
    right, (pack,) = files_in(made, place), packs_of(repository)
    repository.location.delete(pack)
    lost = next(e for e in made.files if e.path.startswith("sources/"))
    (place / "orders").delete(lost.path)
    plan = plan_objects_repair(repository, place / "orders")
    assert [path for path, _ in plan.lost] == [lost.object]
    apply_objects_repair(repository, place / "orders", plan)
    assert lost.object in read_damaged(repository.location, "orders").objects
    (place / "orders").create(lost.path, right[lost.path])
    after = back_up(place).manifest
    assert restorable(repository, after) == right


def test_a_repair_writes_nothing_over_a_content_because_of_a_forged_manifest(place: Location) -> None:
    """That lists another content, which the repository holds elsewhere, in the place of a good one."""
    repository = packed_repository(place)
    made = back_up(place, stream()).manifest
    right, (pack,) = files_in(made, place), packs_of(repository)
    first, second, *_ = sorted((e for e in made.files if e.size > 40), key=lambda e: e.size)
    part = part_of(second.object)
    assert part is not None
    content = bytes(part.length)
    sha256 = hashlib.sha256(content).hexdigest()
    repository.location.create(f"objects/orders/aa/{sha256}", content)
    here = FileEntry("_schema/a", len(content), f"objects/orders/aa/{sha256}", sha256)
    there = FileEntry("_schema/b", len(content), f"{pack}/{sha256}-{part.start}-{part.length}", sha256)
    rest = tuple(e for e in made.files if e.object != second.object)
    forged = replace(made, backup_id="20300101T000000Z-b000004", files=(*rest, here, there))
    repository.location.create(forged.path, forged.to_document())
    record_verification(repository, verify_backup(repository, forged, read_data=ALL))
    flip(repository, first.object)
    record_verification(repository, verify_backup(repository, made, read_data=ALL))
    plan = plan_objects_repair(repository, place / "orders")
    assert [path for path, _ in plan.disputed] == [there.object]
    apply_objects_repair(repository, place / "orders", plan)
    assert restorable(repository, made) == right


def test_a_pack_that_stays_leaves_no_mark_and_its_contents_are_used_by_nobody(place: Location) -> None:
    repository, made, pack, entry = repacked(place)
    right = files_in(made, place)
    now = read_moved(repository.location, "orders").now(entry.object)
    flip(repository, now)
    assert (
        f"{pack}, which has a content that is damaged"
        in apply_prune(repository, plan_prune(repository)).waits_for["orders"][0]
    )
    assert read_marks(repository.location, "orders").unfinished == ()
    assert pack in packs_of(repository)
    assert {now, file_of(now)} <= read_damaged(repository.location, "orders").objects.keys()
    (plan,) = plan_prune(repository, max_unused=MaxUnused(0)).streams
    assert (plan.objects, list(plan.repacked)) == ({}, [file_of(now)]), (
        "what is whole of the damaged pack is packed anew"
    )
    prune(repository)
    assert file_of(now) not in packs_of(repository)
    assert pack in packs_of(repository)
    assert plan_prune(repository, max_unused=MaxUnused(0)).steps == (), (
        "what has to stay is not planned again and again"
    )
    assert check_repository(repository).streams[0].unfinished_prunes == 0
    assert restorable(repository, made) == right
    after = back_up(place, stream(7)).manifest
    assert verify_backup(repository, after, read_data=ALL).ok
    assert {pack, file_of(now)}.isdisjoint({file_of(e.object) for e in after.files if e.sha256 == entry.sha256})


def test_a_prune_that_stood_still_deletes_nothing_that_a_backup_has_listed_since(place: Location) -> None:
    """It has read what was moved, which rots then; the next prune leaves the pack, and a backup follows."""
    repository, made, pack, entry = repacked(place)
    made_since: list[Manifest] = []

    def stand_still(operation: str, path: str) -> None:
        if operation != "delete" or not path.endswith(pack) or made_since:
            return
        made_since.append(made)
        flip(repository, read_moved(repository.location, "orders").now(entry.object))
        prune(repository)
        assert pack in packs_of(repository)
        made_since.append(back_up(place, stream(7)).manifest)

    prune(Repository.open(watched(place / "backups", stand_still)[0]))
    assert pack not in packs_of(repository)
    assert restorable(repository, made_since[1]) == files_in(made_since[1], place)
    assert verify_backup(repository, made_since[1], read_data=ALL).ok


@pytest.mark.parametrize("when", ["locked since", "not known"])
def test_what_was_moved_is_not_deleted_where_somebody_has_locked_it_since(lockable: Location, when: str) -> None:
    repository, made, pack, _ = repacked(lockable)
    plan = plan_prune(repository)
    assert pack in plan.streams[0].objects
    if when == "locked since":
        Immutability(repository, timedelta(days=1)).lock_objects(made)
    else:
        Locks.fails = True
    outcome = apply_prune(repository, plan)
    assert pack in packs_of(repository)
    assert f"{pack}, " in outcome.waits_for["orders"][0]
    assert read_marks(repository.location, "orders").unfinished == ()


def test_a_lock_covers_both_places_of_what_is_being_moved(lockable: Location) -> None:
    """The old one may be deleted by a prune that began before, the new one may be another content that somebody has forged."""
    repository, made, pack, entry = repacked(lockable)
    Immutability(repository, timedelta(days=1)).lock_objects(made)
    now = read_moved(repository.location, "orders").now(entry.object)
    assert {pack, file_of(now), "moved/orders/000001.json"} <= Locks.locked.keys()


def test_what_is_locked_again_is_in_use_meanwhile(lockable: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup that is not taken because nothing was committed locks the one before: no prune may take a pack from under it."""
    repository = packed_repository(lockable)
    made = back_up(lockable, stream()).manifest
    at_work: list[list[str]] = []
    lock = Locks.lock

    def noted(self: Locks, path: str, until: datetime) -> None:
        at_work.append([claim.words(repository.location) for claim in open_claims(repository, "orders")])
        lock(self, path, until)

    monkeypatch.setattr(Locks, "lock", noted)
    again = back_up(lockable, skip_if_unchanged=True, immutable_for=timedelta(days=1))
    assert (again.unchanged, again.backup_id) == (True, made.backup_id)
    assert packs_of(repository)[0] in Locks.locked
    assert all(len(who) == 1 for who in at_work), at_work
    assert open_claims(repository, "orders") == []


def test_a_planted_record_in_an_encrypted_repository_stops_no_backup(place: Location) -> None:
    plant(place / "orders", stream())
    repository = packed_repository(place, key=bytes(range(32)))
    create_backup(Checkpoint.at(place / "orders"), repository)
    (place / "backups").create("moved/orders/000007.json", b"not encrypted by anybody who has the key")
    plant(place / "orders", stream(6))
    made = create_backup(Checkpoint.at(place / "orders"), repository).manifest
    assert verify_backup(repository, made, read_data=ALL).ok
    assert "moved/orders/000007.json" in plan_prune(repository).findings[0]


@pytest.mark.parametrize("found_by", ["the old backup", "the new backup"])
def test_damage_is_known_by_every_name_of_a_content(place: Location, found_by: str) -> None:
    """The old backup lists a content where it was, the new one where it is now."""
    repository, old = moved_once(place)
    new = back_up(place, stream(7)).manifest
    moved = read_moved(repository.location, "orders").paths
    listed = {e.object for e in new.files}
    entry = next(e for e in old.files if moved.get(e.object) in listed and e.size)
    flip(repository, moved[entry.object])
    record_verification(
        repository, verify_backup(repository, old if found_by == "the old backup" else new, read_data=ALL)
    )
    assert {d.backup_id for d in check_repository(repository).damaged} == {old.backup_id, new.backup_id}
    known = read_damaged(repository.location, "orders")
    assert entry.path in known.of(old)
    assert entry.path in known.of(new)
    with pytest.raises(DamagedBackupError, match="all 2 backups of orders are damaged"):
        repository.manifest()
    flip(repository, moved[entry.object])  # its disk has come back
    record_verification(
        repository, verify_backup(repository, new if found_by == "the old backup" else old, read_data=ALL)
    )
    assert read_damaged(repository.location, "orders").objects == {}
    assert repository.manifest().backup_id == new.backup_id
