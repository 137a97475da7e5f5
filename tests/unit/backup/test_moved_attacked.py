"""What was moved to other packs stays readable, whatever becomes of the records and of the places where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_ckpt_provider.backup import repack
from airflow_ckpt_provider.backup.claims import in_use
from airflow_ckpt_provider.backup.content_checks import read_content
from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.damaged import learn_damaged, read_damaged
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.kept_contents import KeptContents
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.migrate import apply_migrate, plan_migrate
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.prune import MaxUnused, apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import DamagedBackupError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of, moved_document, pack_size, read_moved
from airflow_ckpt_provider.storage.signatures import Signing, public_key
from tests.support.backups import back_up, files_in, stream
from tests.support.checkpoints import Files, contents, plant
from tests.support.locked_objects import lockable as lockable
from tests.support.moved_packs import flip, moved_once, moved_twice, prune, repacked
from tests.support.packs import packs_of, plant_beside, restorable
from tests.support.watched_stores import forget_all, in_memory

ALL = ReadData()


@pytest.fixture
def place() -> Iterator[Location]:
    yield in_memory()
    forget_all()


RECORD = "moved/orders/000001.json"


def migrated(place: Location, signing: Signing | None = None) -> tuple[Repository, Manifest, Files]:
    """A repository whose objects were put into packs and deleted: its newest backup, and what that holds."""
    backups = replace(place / "backups", signing=signing)
    for newest in (4, 6):
        plant(place / "orders", stream(newest))
        made = create_backup(Checkpoint.at(place / "orders"), Repository.open_or_create(backups, format=1)).manifest
    right = files_in(made, place)
    apply_migrate(backups, plan_migrate(Repository.open(backups)), abandoned_after=timedelta(0))
    repository = Repository.open(backups)
    assert {pack_size(path) is None for path in repository.location.walk("objects/orders")} == {False}
    assert restorable(repository, made) == right
    return repository, made, right


def etag_of_one(place: Location, content: bytes) -> tuple[Repository, Manifest, str]:
    """A repository of format 1 with a backup that lists an object by the ETag of its store, and has no SHA-256 of it."""
    made = back_up(place, stream(4)).manifest
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    path = f"objects/orders/aa/etag-{md5}-{len(content)}"
    (place / "backups").create(path, content)
    entry = FileEntry("_schema/copied", len(content), path, checksum=f"etag:{md5}")
    lists = replace(made, files=(*made.files, entry))
    (place / "backups").replace(made.path, lists.to_document())
    return Repository.open(place / "backups"), lists, path


class TestMigrated:
    """The manifest names an object that is gone, and no pack."""

    pytestmark = pytest.mark.format_1("what is migrated is a repository of format 1")

    @pytest.mark.parametrize("how", ["missing", "moved out as the hint says", "overruled"])
    def test_without_its_record_the_packs_stay(self, place: Location, how: str) -> None:
        repository, made, right = migrated(place)
        location, before = repository.location, packs_of(repository)
        record = location.read(RECORD)
        if how == "moved out as the hint says":
            location.replace(RECORD, record[:-1])
            assert "move it out of the repository and keep it" in plan_prune(repository).findings[0]
        if how == "overruled":
            moved = read_moved(location, "orders").paths
            new = {old: f"objects/orders/aa/{'1' * 64}-99999.pack/{to.rpartition('/')[2]}" for old, to in moved.items()}
            location.create("moved/orders/000000.json", json.dumps(moved_document(new)).encode())
        else:
            location.delete(RECORD)
        for _ in range(2):
            plan = plan_prune(repository, max_unused=MaxUnused(0))
            outcome = apply_prune(repository, plan, abandoned_after=timedelta(0))
            assert (outcome.objects, [words.split(",")[0] for words in outcome.waits_for["orders"]]) == (0, before)
        assert packs_of(repository) == before
        if how == "overruled":
            location.delete("moved/orders/000000.json")
        else:
            location.replace(RECORD, record)
        assert restorable(repository, made) == right
        assert plan_prune(repository, max_unused=MaxUnused(0)).steps == ()

    def test_with_a_record_whose_signature_is_lost_the_packs_stay(self, place: Location) -> None:
        key = b"\x01" * 32
        repository, made, right = migrated(place, Signing(key, (public_key(key),)))
        plain, before = place / "backups", packs_of(repository)
        (path,) = plain.walk("signatures/moved")
        signature = plain.read(path)
        plain.delete(path)
        assert len(restorable(repository, made)) < len(right)
        prune(repository)
        assert packs_of(repository) == before
        plain.create(path, signature)
        assert restorable(repository, made) == right

    def test_what_was_packed_again_is_read_before_its_last_good_copy_is_deleted(self, place: Location) -> None:
        repository, made, right = migrated(place)
        first = set(packs_of(repository))
        assert repack.repack(repository, "orders", first, made_by="a test")[0] == first
        moved = read_moved(repository.location, "orders")
        entry = next(e for e in made.files if e.object in moved.paths and e.size)
        flip(repository, moved.now(entry.object))
        prune(repository)
        assert first <= set(packs_of(repository))
        assert moved.now(entry.object) in read_damaged(repository.location, "orders").objects
        assert restorable(repository, made) == right
        prune(repository)
        assert restorable(repository, made) == right

    def test_what_was_packed_again_and_is_whole_leaves_its_pack(self, place: Location) -> None:
        repository, made, right = migrated(place)
        first = set(packs_of(repository))
        assert repack.repack(repository, "orders", first, made_by="a test")[0] == first
        prune(repository)
        assert first.isdisjoint(packs_of(repository))
        assert restorable(repository, made) == right

    def test_what_backups_say_different_things_of_stays_in_its_packs(self, place: Location) -> None:
        repository, made, right = migrated(place)
        entry = next(e for e in made.files if e.size)
        others = tuple(e for e in made.files if e != entry)
        forged = replace(made, backup_id="20300101T000000Z-b000006", files=(*others, entry._replace(sha256="1" * 64)))
        repository.location.create(forged.path, forged.to_document())
        first = set(packs_of(repository))
        assert repack.repack(repository, "orders", first, made_by="a test")[0] == first
        prune(repository)
        assert first <= set(packs_of(repository))
        assert restorable(repository, made) == right

    def test_what_has_no_sha256_may_be_in_any_pack_with_a_content_of_its_size(self, place: Location) -> None:
        repository, made, path = etag_of_one(place, b"copied by the store")
        assert is_migrated(repository, path)
        repository = Repository.open(place / "backups")
        record = repository.location.read(RECORD)
        right, before = files_in(made, place), packs_of(repository)
        # All others are listed by the SHA-256 in their names: a backup that has only this one keeps the pack as well.
        few = replace(made, files=made.files[-1:])
        repository.location.replace(made.path, few.to_document())
        repository.location.delete(RECORD)
        prune(repository)
        assert packs_of(repository) == before
        repository.location.replace(RECORD, record)
        repository.location.replace(made.path, made.to_document())
        assert restorable(repository, made) == right

    def test_a_lost_object_that_is_too_big_for_a_pack_keeps_none(self, place: Location) -> None:
        repository, _, path = etag_of_one(place, bytes(600_000))
        assert not is_migrated(repository, path)
        repository = Repository.open(place / "backups")
        repository.location.delete(path)
        first = set(packs_of(repository))
        assert repack.repack(repository, "orders", first, made_by="a test")[0] == first
        prune(repository)
        assert first.isdisjoint(packs_of(repository))


def is_migrated(repository: Repository, path: str) -> bool:
    """Migrate, and return whether an object lies in a pack after that."""
    apply_migrate(repository.location, plan_migrate(repository), abandoned_after=timedelta(0))
    return path in read_moved(repository.location, "orders").paths


def test_the_place_that_stays_is_the_one_that_is_read(place: Location) -> None:
    """The later place is known to be damaged, and its disk has come back; meanwhile the earlier one has rotted."""
    repository, made, entry, _ = moved_twice(place)
    right = files_in(made, place)
    moved = read_moved(repository.location, "orders")
    _, second, last = moved.chain(entry.object)
    damaged = {to: "content" for to in moved.paths.values() if file_of(to) == file_of(last)}
    learn_damaged(repository.location, "orders", damaged=damaged, whole=(), since=0)
    flip(repository, second)
    prune(repository)
    assert file_of(last) in packs_of(repository)
    assert restorable(repository, made) == right


@pytest.mark.parametrize("left", [100, 0])
def test_a_pack_that_is_cut_off_damages_nothing_that_was_moved_from_it(place: Location, left: int) -> None:
    repository, made, pack, _ = repacked(place)
    right = files_in(made, place)
    repository.location.replace(pack, repository.location.read(pack)[:left])
    report = verify_backup(repository, made, read_data=ALL)
    assert {finding.path for finding in report.findings} == {pack}, "only the pack as such"
    record_verification(repository, report)
    assert check_repository(repository).damaged == ()
    assert repository.manifest().backup_id == made.backup_id
    apply_restore(plan_restore(repository, made, place / "target"))
    assert contents(place / "target") == right
    copied = Repository.open_or_create(place / "second", format=2)
    copy_backups(repository, copied, [made])
    assert restorable(copied, copied.manifest()) == right
    prune(repository)
    assert pack not in packs_of(repository)
    assert verify_backup(repository, made, read_data=ALL).ok


@pytest.mark.parametrize("new", ["cut off", "missing"])
def test_a_content_whose_both_places_are_damaged_is_damaged(place: Location, new: str) -> None:
    repository, made, pack, entry = repacked(place)
    now = file_of(read_moved(repository.location, "orders").now(entry.object))
    repository.location.replace(pack, b"cut off")
    if new == "missing":
        repository.location.delete(now)
    else:
        repository.location.replace(now, b"cut off")
    report = verify_backup(repository, made)
    assert entry.path in {finding.path for finding in report.findings if finding.problem == "size"}
    with pytest.raises(DamagedBackupError):
        plan_restore(repository, made, place / "target")


def test_a_content_that_is_only_at_an_earlier_place_is_there(place: Location) -> None:
    """It was moved twice; where it was first is gone, and where it was last is missing."""
    repository, made, entry, _ = moved_twice(place)
    right = files_in(made, place)
    moved = read_moved(repository.location, "orders")
    repository.location.delete(file_of(moved.now(entry.object)))
    assert verify_backup(repository, made, read_data=ALL).ok
    apply_restore(plan_restore(repository, made, place / "target"))
    assert contents(place / "target") == right


@pytest.mark.format_1("what is migrated is a repository of format 1")
def test_an_object_that_is_cut_off_after_it_was_packed_damages_no_backup(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The migration was stopped before it deleted its objects."""
    back_up(place, stream(4))
    made = back_up(place, stream(6)).manifest
    right = files_in(made, place)
    with in_use(Repository.open(place / "backups"), made, what="restore", made_by="somebody"):
        apply_migrate(place / "backups", plan_migrate(Repository.open(place / "backups")))
    repository = Repository.open(place / "backups")
    for entry in made.files:
        repository.location.replace(entry.object, b"x")
    assert {entry.path: read_content(repository, entry) for entry in made.files} == right
    report = verify_backup(repository, made, read_data=ALL)
    assert report.ok
    record_verification(repository, report)
    monkeypatch.setattr(KeptContents, "get", lambda self, entry: None)  # as if it did not fit into memory
    apply_restore(plan_restore(repository, made, place / "target"))
    assert contents(place / "target") == right
    prune(repository)
    assert restorable(repository, made) == right
    assert verify_backup(repository, made, read_data=ALL).ok


def test_the_first_record_counts_whatever_number_of_digits_it_has(place: Location) -> None:
    repository, _ = moved_once(place)
    (old, new), *_ = read_moved(repository.location, "orders").paths.items()
    sha256, start, length = new.rpartition("/")[2].split("-")
    for number in (1_000_000, 999_999):
        to = f"objects/orders/aa/{'1' * 64}-{number}.pack/{sha256}-{start}-{length}"
        record = json.dumps(moved_document({"objects/orders/x": to}))
        repository.location.create(f"moved/orders/{number}.json", record.encode())
    found = read_moved(repository.location, "orders")
    assert (found.paths[old], found.number) == (new, 1_000_000)
    assert "-999999.pack" in found.paths["objects/orders/x"]


def test_a_planted_file_hides_no_damage_from_a_prune(place: Location) -> None:
    repository, made, pack, entry = repacked(place)
    right = restorable(repository, made)
    flip(repository, read_moved(repository.location, "orders").now(entry.object))
    plant_beside(repository, entry.object)
    prune(repository)
    assert pack in packs_of(repository)
    assert entry.object not in repository.location.walk("objects")
    assert restorable(repository, made) == right
