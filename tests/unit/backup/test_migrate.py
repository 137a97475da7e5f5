"""A repository of format 1 whose small objects are put into packs, whatever happens meanwhile."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_ckpt_provider.backup import repack
from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.immutability import Immutability
from airflow_ckpt_provider.backup.migrate import apply_migrate, plan_migrate
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.packing import PACKED_BELOW
from airflow_ckpt_provider.backup.prune import MaxUnused, apply_prune, plan_prune
from airflow_ckpt_provider.backup.prune_marks import Marks, read_marks, write_mark
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.repository_repair import apply_objects_repair, plan_objects_repair
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import verify_backup
from airflow_ckpt_provider.backup.verify_repository import verify_repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import DamagedBackupError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import part_of, read_moved
from tests.support.backups import back_up, files_in, stream
from tests.support.checkpoints import contents, plant
from tests.support.locked_objects import Locks
from tests.support.locked_objects import lockable as lockable
from tests.support.migrations import ALL, assert_whole, format_1, migrate, small_objects
from tests.support.migrations import place as place
from tests.support.packs import packs_of, restorable
from tests.support.watched_stores import watched

pytestmark = pytest.mark.format_1("what is migrated is a repository of format 1")


class TestMigrate:
    def test_small_objects_lie_in_packs_and_the_same_is_restored(self, place: Location) -> None:
        repository, made, right = format_1(place)
        before = small_objects(place)
        plan = plan_migrate(repository)
        assert plan.steps[0].startswith("make it a repository of format 2")
        assert plan.objects == len(before)
        (shown,) = plan.to_json()["streams"]
        assert (shown["objects"], shown["packs"], shown["left_objects"], shown["stay"]) == (len(before), 1, 0, {})
        outcome = apply_migrate(place / "backups", plan)
        assert (outcome.objects, outcome.deleted, outcome.packs, outcome.waits_for) == (len(before), len(before), 1, {})
        repository = Repository.open(place / "backups")
        assert repository.format == 2
        assert small_objects(place) == []
        assert len(packs_of(repository)) == 1
        assert_whole(place, made, right)
        assert verify_repository(repository, read_data=ALL).ok
        report = check_repository(repository)
        assert (report.ok, report.streams[0].unused_objects, report.streams[0].unfinished_prunes) == (True, 0, 0)
        assert plan_prune(repository).steps == ()
        record = next(each for each in repository.records() if each["kind"] == "migrate")
        assert record["objects"] == len(before)

    def test_once_more_there_is_nothing_to_do(self, place: Location) -> None:
        _, made, right = format_1(place)
        migrate(place)
        there = contents(place / "backups")
        plan = plan_migrate(Repository.open(place / "backups"))
        assert (plan.steps, plan.findings, plan.remarks) == ((), (), ())
        outcome = apply_migrate(place / "backups", plan)
        assert (outcome.objects, outcome.deleted) == (0, 0)
        assert contents(place / "backups") == there
        assert_whole(place, made, right)

    def test_a_plan_changes_nothing(self, place: Location) -> None:
        format_1(place)
        there = contents(place / "backups")
        plan_migrate(Repository.open(place / "backups"))
        assert contents(place / "backups") == there

    def test_an_empty_repository_stays_one_of_format_1(self, place: Location) -> None:
        Repository.open_or_create(place / "backups")
        migrate(place)
        assert Repository.open(place / "backups").format == 1

    def test_the_next_backup_lists_packs_and_copies_only_what_is_new(self, place: Location) -> None:
        format_1(place)
        migrate(place)
        after = back_up(place, stream(7))
        assert 0 < after.copied_files < len(after.manifest.files) / 2
        assert {e.is_packed for e in after.manifest.files} == {True, False}
        assert all(e.size >= PACKED_BELOW for e in after.manifest.files if not e.is_packed)
        repository = Repository.open(place / "backups")
        apply_expire(repository, plan_expire(repository, Policy(last=1)))
        apply_prune(repository, plan_prune(repository, max_unused=MaxUnused(0)))
        assert restorable(repository, after.manifest) == files_in(after.manifest, place)
        assert len(restorable(repository, after.manifest)) == after.files
        assert verify_backup(repository, after.manifest, read_data=ALL).ok

    def test_what_no_backup_needs_is_not_packed(self, place: Location) -> None:
        _, made, _ = format_1(place)
        (place / "backups").create("objects/orders/aa/left", b"by a backup that was killed")
        repository = Repository.open(place / "backups")
        apply_expire(repository, plan_expire(repository, Policy(last=1)))
        needed = {e.object for e in made[1].files if e.size < PACKED_BELOW}
        assert migrate(place).objects == len(needed)
        assert "objects/orders/aa/left" in small_objects(place)
        apply_prune(repository, plan_prune(Repository.open(place / "backups")))
        assert small_objects(place) == []

    def test_many_objects_take_several_records(self, place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(repack, "MOVED_AT_ONCE", 7)
        _, made, right = format_1(place)
        count = len(small_objects(place))
        assert migrate(place).objects == count
        moved = read_moved((place / "backups"), "orders")
        assert len(moved.records) == -(-count // 7)
        assert all(len(says) <= 7 for says in moved.records.values())
        assert small_objects(place) == []
        assert_whole(place, made, right)

    def test_only_one_stream(self, place: Location) -> None:
        format_1(place)
        other = plant(place / "payments", stream(5))
        create_backup(Checkpoint.at(other), Repository.open(place / "backups"), new_life=True)
        plan = plan_migrate(Repository.open(place / "backups"), name="payments")
        apply_migrate(place / "backups", plan)
        repository = Repository.open(place / "backups")
        assert packs_of(repository, "payments")
        assert not packs_of(repository, "orders")
        assert verify_repository(repository, read_data=ALL).ok

    def test_a_pack_of_migrated_contents_is_packed_anew_when_it_is_mostly_garbage(self, place: Location) -> None:
        files = {**stream(4), **{f"_schema/{n}": bytes([n]) * 5000 for n in range(8)}}
        back_up(place, files)
        for n in range(8):
            (place / "orders").delete(f"_schema/{n}")
        made = back_up(place, stream(6)).manifest
        right = files_in(made, place)
        migrate(place)
        repository = Repository.open(place / "backups")
        before = packs_of(repository)
        apply_expire(repository, plan_expire(repository, Policy(last=1)))
        apply_prune(repository, plan_prune(repository, max_unused=MaxUnused(0)))
        assert set(before).isdisjoint(packs_of(repository))
        assert_whole(place, [made], [right])
        # The manifest still lists the objects: both records are needed.
        assert len(read_moved(repository.location, "orders").records) == 2

    @pytest.mark.parametrize("target_format", [1, 2])
    def test_copies_of_migrated_backups(self, place: Location, target_format: int) -> None:
        _, made, right = format_1(place)
        migrate(place)
        source = Repository.open(place / "backups")
        target = Repository.open_or_create(place / "second", format=target_format)
        copy_backups(source, target, made)
        for number, manifest in enumerate(target.backups("orders")):
            assert restorable(target, manifest) == right[number]
            assert verify_backup(target, manifest, read_data=ALL).ok
        if target_format == 2:
            assert packs_of(target) == packs_of(source), "packs are moved whole"

    def test_what_was_migrated_is_read_by_few_requests(self, place: Location) -> None:
        _, made, _ = format_1(place)
        migrate(place)
        seen, store = watched(place / "backups")
        repository = Repository.open(seen)
        assert verify_backup(repository, made[1], read_data=ALL).ok
        apply_restore(plan_restore(repository, made[1], place / "target"))
        copy_backups(repository, Repository.open_or_create(place / "second", format=2), made[1:])
        reads = store.paths("read", "read_part")
        assert sum(path.endswith(".pack") for path in reads) <= 5
        objects = [path for path in reads if "/objects/" in path and not path.endswith(".pack")]
        assert len(objects) == 2 * 4, "big files: verified, checked, restored and copied"

    def test_damage_is_found_named_and_rebuilt(self, place: Location) -> None:
        repository, made, right = format_1(place)
        migrate(place)
        repository = Repository.open(place / "backups")
        moved = read_moved(repository.location, "orders").paths
        entry = next(e for e in made[0].files if e.object in moved and e in made[1].files and e.size > 20)
        part = part_of(moved[entry.object])
        assert part is not None
        data = bytearray(repository.location.read(part.pack))
        data[part.start] ^= 1
        repository.location.replace(part.pack, bytes(data))
        report = verify_backup(repository, made[1], read_data=ALL)
        assert {f.path for f in report.findings} == {entry.path, part.pack}
        record_verification(repository, report)
        assert {d.backup_id for d in check_repository(repository).damaged} == {m.backup_id for m in made}
        assert restorable(repository, made[0]) == {p: d for p, d in right[0].items() if p != entry.path}
        restore = plan_restore(repository, made[0], place / "target")
        with pytest.raises(DamagedBackupError):
            apply_restore(restore)
        after = back_up(place, stream(7)).manifest
        assert verify_backup(repository, after, read_data=ALL).ok
        plan = plan_objects_repair(repository, place / "orders")
        assert [each.entry.path for each in plan.rebuilt] == [entry.path]
        apply_objects_repair(repository, place / "orders", plan)
        for number, manifest in enumerate(made):
            assert restorable(repository, manifest) == right[number]
        apply_prune(repository, plan_prune(repository, max_unused=MaxUnused(0)))
        for number, manifest in enumerate(made):
            assert restorable(repository, manifest) == right[number]
        assert restorable(repository, after) == files_in(after, place)


class TestStays:
    def test_what_is_known_to_be_damaged(self, place: Location) -> None:
        repository, made, right = format_1(place)
        entry = next(e for e in made[1].files if 20 < e.size < PACKED_BELOW)
        (place / "backups").replace(entry.object, b"x" * entry.size)
        record_verification(repository, verify_backup(repository, made[1], read_data=ALL))
        plan = plan_migrate(repository)
        assert plan.remarks == ("orders: 1 objects are known to be damaged: they stay",)
        apply_migrate(place / "backups", plan)
        assert small_objects(place) == [entry.object]
        (place / "backups").replace(entry.object, right[1][entry.path])
        record_verification(repository, verify_backup(Repository.open(place / "backups"), made[1], read_data=ALL))
        migrate(place)
        assert small_objects(place) == []
        assert_whole(place, made, right)

    def test_what_rots_before_it_is_read(self, place: Location, caplog: pytest.LogCaptureFixture) -> None:
        repository, made, _ = format_1(place)
        entry = next(e for e in made[1].files if 20 < e.size < PACKED_BELOW)
        plan = plan_migrate(repository)
        (place / "backups").replace(entry.object, b"x" * entry.size)
        outcome = apply_migrate(place / "backups", plan)
        assert outcome.objects == plan.objects - 1
        assert small_objects(place) == [entry.object]
        assert f"{entry.object} is not packed" in caplog.text

    def test_what_backups_say_different_things_of(self, place: Location) -> None:
        repository, made, _ = format_1(place)
        entry = next(e for e in made[1].files if 20 < e.size < PACKED_BELOW)
        wrong = entry._replace(sha256="1" * 64)
        others = tuple(e for e in made[1].files if e != entry)
        forged = replace(made[1], backup_id="20300101T000000Z-b000006", files=(*others, wrong))
        repository.location.create(forged.path, forged.to_document())
        plan = plan_migrate(repository)
        assert "backups say different things of them: they stay" in plan.remarks[0]
        apply_migrate(place / "backups", plan)
        assert small_objects(place) == [entry.object]

    def test_what_no_hash_proves(self, place: Location) -> None:
        """As the store copied it, with an ETag of a key service."""
        repository, made, _ = format_1(place)
        entry = next(e for e in made[1].files if 20 < e.size < PACKED_BELOW)
        opaque = entry._replace(sha256=None, checksum="etag:abc-2")
        for manifest in made:
            files = tuple(opaque if e.object == entry.object else e for e in manifest.files)
            repository.location.replace(manifest.path, replace(manifest, files=files).to_document())
        plan = plan_migrate(repository)
        assert plan.remarks == (
            "orders: 1 objects have no hash that can be computed here, or backups say different things of them: they stay",
        )
        apply_migrate(place / "backups", plan)
        assert small_objects(place) == [entry.object]

    def test_a_stream_with_a_manifest_that_cannot_be_read(self, place: Location) -> None:
        repository, made, _ = format_1(place)
        repository.location.replace(made[0].path, b"cut off")
        there = contents(place / "backups")
        plan = plan_migrate(repository)
        assert "what its backups need is not known" in plan.findings[0]
        assert plan.steps == ()
        apply_migrate(place / "backups", plan)
        assert contents(place / "backups") == there

    def test_what_a_prune_may_be_deleting(self, place: Location) -> None:
        """Its mark stands, and is carried to its end by the first deletion."""
        repository, made, right = format_1(place)
        entry = next(e for e in made[1].files if 20 < e.size < PACKED_BELOW)
        write_mark(repository.location, "orders", Marks(), {entry.object}, made_by="a prune")
        plan = plan_migrate(repository)
        apply_migrate(place / "backups", plan)
        assert read_marks(repository.location, "orders").unfinished == ()
        assert small_objects(place) == []
        records = read_moved(repository.location, "orders").records
        assert [entry.object in says for _, says in sorted(records.items())] == [False, True]
        assert_whole(place, made, right)

    @pytest.mark.parametrize("when", ["before", "since the plan", "since it was packed"])
    def test_what_is_locked(self, lockable: Location, when: str) -> None:
        repository, made, right = format_1(lockable)
        lock = Immutability(repository, timedelta(days=1)).lock_objects
        if when == "before":
            lock(made[0])
        plan = plan_migrate(repository)
        locked = {e.object for e in made[0].files}
        if when == "before":
            assert f"{len([p for p in small_objects(lockable) if p in locked])} objects are locked" in plan.remarks[-1]
        if when == "since the plan":
            lock(made[0])
        if when == "since it was packed":
            raised = apply_migrate(lockable / "backups", replace(plan, streams=()))
            assert raised.objects == 0
            packed = repack.pack_anew(Repository.open(lockable / "backups"), "orders", locked, made_by="")
            Immutability(Repository.open(lockable / "backups"), timedelta(days=1)).lock_objects(made[0])
            assert packed.going
        apply_migrate(lockable / "backups", plan)
        assert locked <= set((lockable / "backups").walk("objects"))
        assert_whole(lockable, made, right)

    def test_where_it_is_not_known_what_is_locked(self, lockable: Location) -> None:
        repository, _, _ = format_1(lockable)
        Locks.fails = True
        plan = plan_migrate(repository)
        assert plan.objects == 0
        assert "whether Object Lock protects what is removed is not known" in plan.findings[0]
