"""A manifest that lists the objects of good backups with other sizes or hashes: it damages nothing but itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_ckpt_provider.backup.content_checks import check_contents
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import Verified, note_damage, note_verification, verifications
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_repair import apply_objects_repair, plan_objects_repair
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.backup.verify_repository import verify_repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import back_up, stream
from tests.support.checkpoints import contents, plant
from tests.support.watched_stores import watched

EVIL = b"evil content of another length"
SHA256 = hashlib.sha256(EVIL).hexdigest()


def other_content(entry: FileEntry) -> FileEntry:
    return entry._replace(size=len(EVIL), sha256=SHA256, checksum=None)


def other_hash(entry: FileEntry) -> FileEntry:
    return entry._replace(sha256=SHA256, checksum=None)


def other_size(entry: FileEntry) -> FileEntry:
    return entry._replace(size=entry.size + 1)


def size_only(entry: FileEntry) -> FileEntry:
    return entry._replace(size=entry.size + 1, sha256=None, checksum=None)


def other_etag(entry: FileEntry) -> FileEntry:
    return entry._replace(checksum="etag:" + "0" * 32)


LIES = (other_content, other_hash, other_size, size_only, other_etag)


def opened(place: Location) -> Repository:
    return Repository.open(place / "backups")


def forge(place: Location, newest: Manifest, lie: Callable[[FileEntry], FileEntry]) -> Manifest:
    """By somebody who may create files: a manifest that lies about all objects, and an object with another content."""
    plant(place / "backups", {f"objects/orders/ee/{SHA256}": EVIL})
    extra = FileEntry("state/extra", len(EVIL), f"objects/orders/ee/{SHA256}", sha256=SHA256)
    forged = replace(newest, backup_id="20991231T000000Z-b000099", files=(*map(lie, newest.files), extra), sequence=99)
    (place / "backups").create(forged.path, forged.to_document())
    return forged


@pytest.fixture(params=["read", "copied by the store"])
def made(place: Location, request: pytest.FixtureRequest) -> list[Manifest]:
    if request.param == "read":
        return [back_up(place, stream(newest)).manifest for newest in (4, 6)]
    seen, _ = watched(place, copies_within=True)
    found = []
    for newest in (4, 6):
        plant(place / "orders", stream(newest))
        target = Repository.open_or_create(seen / "backups")
        found.append(create_backup(Checkpoint.at(seen / "orders"), target).manifest)
    return found


@pytest.mark.format_1(
    "a content in a pack has its hash and length in its path; of packs: TestForged in test_packs_damaged.py"
)
@pytest.mark.parametrize("lie", LIES)
class TestForged:
    def test_repair_writes_over_nothing(
        self, place: Location, made: list[Manifest], lie: Callable[[FileEntry], FileEntry]
    ) -> None:
        forged = forge(place, made[1], lie)
        before = contents(place / "backups")
        for _ in range(2):
            plan = plan_objects_repair(opened(place), place / "orders")
            apply_objects_repair(opened(place), place / "orders", plan)
            assert not {r.entry.object for r in plan.rebuilt} & {e.object for e in made[1].files}
            after = contents(place / "backups")
            assert {path: after[path] for path in before} == before
            verify_repository(opened(place), read_data=ReadData())
        if plan.disputed:
            assert plan.verdict is Verdict.WILL_LOSE
            assert {backups for _, backups in plan.disputed} == {(forged.backup_id,)}
            assert f"Find out who wrote those of {forged.backup_id}" in plan.to_markdown()
            assert json.loads(json.dumps(plan.to_json())) == plan.to_json()

    def test_no_good_backup_becomes_a_damaged_one(
        self, place: Location, made: list[Manifest], lie: Callable[[FileEntry], FileEntry]
    ) -> None:
        forged = forge(place, made[1], lie)
        for _ in range(2):
            found = verify_repository(opened(place), read_data=ReadData())
            assert {damaged.backup_id for damaged in found.damaged} == {forged.backup_id}
            assert read_damaged(place / "backups", "orders").objects.keys() == {forged.path}
            assert opened(place).manifest() == made[1]
        known = verifications(opened(place), "orders")
        assert known[made[1].backup_id] is Verified.CONTENTS
        assert known[forged.backup_id] is Verified.DAMAGED
        (place / "backups").delete(forged.path)
        assert verify_repository(opened(place), read_data=ReadData()).ok

    def test_nor_when_only_the_forged_one_is_read(
        self, place: Location, made: list[Manifest], lie: Callable[[FileEntry], FileEntry]
    ) -> None:
        forged = forge(place, made[1], lie)
        report = verify_backup(opened(place), forged, read_data=ReadData())
        assert report.damaged
        assert note_verification(opened(place), report)
        if lie is not other_etag:  # contents alone do not show that
            note_damage(opened(place), forged, check_contents(opened(place), forged.files))
        assert read_damaged(place / "backups", "orders").objects.keys() == {forged.path}
        assert opened(place).manifest() == made[1]


@pytest.mark.format_1("an object that was written over by a longer one")
class TestOverwritten:
    """With an object that was written over, a manifest that agrees with what it holds now clears nothing."""

    def test_the_object_is_damaged(self, place: Location) -> None:
        good = [back_up(place, stream(newest)).manifest for newest in (4, 6)][1]
        forge(place, good, other_content)
        victim = next(e for e in good.files if e.path == "offsets/6")
        (place / "backups").replace(victim.object, EVIL)
        note_verification(opened(place), verify_backup(opened(place), good, read_data=ReadData()))
        assert victim.object in read_damaged(place / "backups", "orders").objects
        for _ in range(2):
            verify_repository(opened(place), read_data=ReadData())
            plan = plan_objects_repair(opened(place), place / "orders")
            apply_objects_repair(opened(place), place / "orders", plan)
            assert victim.object in read_damaged(place / "backups", "orders").objects

    def test_without_the_forged_manifest_it_is_rebuilt(self, place: Location) -> None:
        good = [back_up(place, stream(newest)).manifest for newest in (4, 6)][1]
        forged = forge(place, good, other_content)
        victim = next(e for e in good.files if e.path == "offsets/6")
        (place / "backups").replace(victim.object, EVIL)
        (place / "backups").delete(forged.path)
        plan = plan_objects_repair(opened(place), place / "orders")
        apply_objects_repair(opened(place), place / "orders", plan)
        assert verify_backup(opened(place), good, read_data=ReadData()).ok
