"""A repository of format 1 whose small objects are put into packs, whatever happens meanwhile."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup import repack
from airflow_ckpt_provider.backup.claims import entries_in_use, in_use, open_claims
from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.immutability import Immutability
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.migrate import MigrateOutcome, apply_migrate, plan_migrate
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.packing import PACKED_BELOW
from airflow_ckpt_provider.backup.prune import MaxUnused, apply_prune, plan_prune
from airflow_ckpt_provider.backup.prune_marks import Marks, read_marks, write_mark
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.repository_repair import apply_objects_repair, plan_objects_repair
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.backup.verify_repository import verify_repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.cli.main import main
from airflow_ckpt_provider.errors import DamagedBackupError, StorageError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.plan import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import moved_document, pack_size, part_of, read_moved, record_sha256
from airflow_ckpt_provider.storage.signatures import Signing, public_key
from tests.support.backups import back_up, files_in, stream
from tests.support.checkpoints import Files, contents, plant
from tests.support.locked_objects import Locks, lockable
from tests.support.packs import packs_of, plant_beside, restorable, with_big_files
from tests.support.watched_stores import Killed, Life, forget_all, in_memory, watched

ALL = ReadData()
__all__ = ["lockable"]

pytestmark = pytest.mark.format_1("what is migrated is a repository of format 1")


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


class TestMeanwhile:
    def test_a_restore_that_runs_is_waited_for(self, place: Location) -> None:
        repository, made, right = format_1(place)
        before = small_objects(place)
        with in_use(repository, made[0], what="restore", made_by="somebody"):
            outcome = migrate(place, after=timedelta(days=1))
            assert (outcome.objects, outcome.deleted) == (len(before), 0)
            assert "restore by somebody" in outcome.waits_for["orders"][0]
            assert small_objects(place) == before
            assert_whole(place, made, right)
        plan = plan_migrate(Repository.open(place / "backups"))
        assert (plan.objects, plan.to_json()["streams"][0]["left_objects"]) == (0, len(before))
        assert migrate(place).deleted == len(before)
        assert small_objects(place) == []
        assert_whole(place, made, right)

    def test_a_rewind_uses_what_a_migration_that_waits_has_packed(self, place: Location) -> None:
        """Its mark stays, and names the objects that lie in packs too."""
        repository, made, right = format_1(place)
        with in_use(repository, made[0], what="restore", made_by="somebody"):
            migrate(place, after=timedelta(days=1))
            assert {e.object for e in made[1].files} & read_marks(place / "backups", "orders").condemned
            with entries_in_use(repository, made[1].files, what="rewind", made_by="somebody else"):
                assert restorable(repository, made[1]) == right[1]

    def test_a_backup_copies_nothing_again_that_a_migration_that_waits_has_packed(self, place: Location) -> None:
        repository, made, _ = format_1(place)
        with in_use(repository, made[0], what="restore", made_by="somebody"):
            migrate(place, after=timedelta(days=1))
            result = back_up(place, stream(7))
        before = {entry.path for entry in made[1].files}
        assert result.copied_files <= len([e for e in result.manifest.files if e.path not in before])
        lists = {entry.object for entry in result.manifest.files}
        assert lists.isdisjoint(read_marks(place / "backups", "orders").condemned)
        right = files_in(result.manifest, place)
        migrate(place)
        assert_whole(place, [*made, result.manifest], [files_in(each, place) for each in made] + [right])

    def test_a_restore_that_was_planned_before_goes_on(self, place: Location) -> None:
        repository, made, right = format_1(place)
        plan = plan_restore(repository, made[0], place / "target")
        migrate(place)
        apply_restore(plan)
        assert contents(place / "target") == right[0]

    def test_a_prune_finishes_what_a_migration_has_left(self, place: Location) -> None:
        repository, made, right = format_1(place)
        with in_use(repository, made[0], what="restore", made_by="somebody"):
            migrate(place, after=timedelta(days=1))
        repository = Repository.open(place / "backups")
        apply_prune(repository, plan_prune(repository))
        assert small_objects(place) == []
        assert_whole(place, made, right)

    @pytest.mark.parametrize("every", [25, pytest.param(1, marks=pytest.mark.slow)])
    @pytest.mark.parametrize("opened", [1, 2])
    def test_a_backup_at_any_moment(self, opened: int, every: int) -> None:
        """Before each request of a migration one is taken, by a process that had opened the repository before, or just now."""
        at = 0
        while True:
            place = in_memory()
            _, made, right = format_1(place)
            before = Repository.open(place / "backups")
            taken: list[Manifest] = []
            requests = 0

            def back_up_now(operation: str, path: str) -> None:
                nonlocal requests
                requests += 1
                if requests == at + 1:  # noqa: B023
                    plant(place / "orders", stream(7))  # noqa: B023
                    repository = before if opened == 1 else Repository.open(place / "backups")  # noqa: B023
                    taken.append(create_backup(Checkpoint.at(place / "orders"), repository).manifest)  # noqa: B023

            seen = watched(place / "backups", back_up_now)[0]
            apply_migrate(seen, plan_migrate(before))
            migrate(place)
            if not taken:
                assert at >= 50
                return
            assert small_objects(place) == []
            assert_whole(place, [*made, *taken], [*right, files_in(taken[0], place)])
            assert len(files_in(taken[0], place)) == len(taken[0].files)
            forget_all()
            at += every

    def test_another_migration_at_the_same_moment(self, place: Location) -> None:
        repository, made, right = format_1(place)
        plan = plan_migrate(repository)
        others: list[MigrateOutcome] = []

        def be_faster(operation: str, path: str) -> None:
            if operation == "create" and "/moved/" in path and not others:
                others.append(apply_migrate(place / "backups", plan))

        outcome = apply_migrate(watched(place / "backups", be_faster)[0], plan)
        assert outcome.objects == 0
        assert "another migration or prune, which writes packs at this moment" in outcome.waits_for["orders"][0]
        assert others[0].objects == plan.objects
        assert others[0].waits_for == {}, "the other one can write no record any more"
        assert small_objects(place) == []
        assert_whole(place, made, right)

    @pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
    def test_killed_before_each_write_nothing_is_lost_and_the_same_command_finishes(self, every: int) -> None:
        killed = 0
        while True:
            place = in_memory()
            _, made, right = format_1(place)
            life = Life(killed)
            seen = watched(place / "backups", life.before)[0]
            with suppress(Killed):
                apply_migrate(seen, plan_migrate(Repository.open(seen)))
            assert_whole(place, made, right)
            migrate(place)
            assert small_objects(place) == []
            assert_whole(place, made, right)
            repository = Repository.open(place / "backups")
            apply_prune(repository, plan_prune(repository), abandoned_after=timedelta(0))
            assert len(packs_of(repository)) == 1, "what a killed migration has packed is garbage for the next prune"
            assert plan_prune(repository).steps == ()
            assert_whole(place, made, right)
            forget_all()
            if not life.dead:
                break
            killed += 1 if 3 < killed < 10 else every  # about the record all of them
        assert killed > 30

    def test_without_the_right_to_delete_the_next_one_does_it(self, place: Location) -> None:
        _, made, right = format_1(place)

        def refuse(operation: str, path: str) -> None:
            if operation == "delete" and "/objects/" in path:
                raise StorageError(f"could not delete {path}", hint="ask for the right")

        seen = watched(place / "backups", refuse)[0]
        with pytest.raises(StorageError, match="could not delete"):
            apply_migrate(seen, plan_migrate(Repository.open(seen)))
        assert_whole(place, made, right)
        after = back_up(place, stream(7)).manifest
        assert not {e.object for e in after.files} & set(small_objects(place))
        migrate(place)
        assert small_objects(place) == []
        assert_whole(place, [*made, after], [*right, files_in(after, place)])


class TestProtected:
    def test_encrypted_and_signed(self, place: Location) -> None:
        signing = Signing(b"\x01" * 32, (public_key(b"\x01" * 32),))
        backups = replace(place / "backups", key=bytes(range(32)), signing=signing)
        repository = Repository.open_or_create(backups)
        plant(place / "orders", stream())
        made = create_backup(Checkpoint.at(place / "orders"), repository).manifest
        right = {e.path: repository.location.read(e.object) for e in made.files}
        apply_migrate(backups, plan_migrate(repository))
        repository = Repository.open(backups)
        assert (repository.format, len(packs_of(repository))) == (2, 1)
        assert small_objects(place) == []
        assert restorable(repository, made) == right
        assert verify_backup(repository, made, read_data=ALL).ok
        unsigned = replace(backups, signing=Signing(None, signing.trusted))
        assert len(read_moved(Repository.open(unsigned).location, "orders").paths) == len(made.files)

    @pytest.mark.parametrize(
        "to", ["another content", "nothing", "a content of another length"], ids=lambda to: to.replace(" ", "-")
    )
    def test_a_forged_record_deletes_no_object(self, place: Location, to: str) -> None:
        format_1(place)
        migrate(place)
        after = back_up(place, stream(7)).manifest
        repository = Repository.open(place / "backups")
        # An object by itself, as executors of Spark may write it, and a record that says that it is something that is packed.
        entry = next(e for e in after.files if e.is_packed and e.size > 40)
        sha256 = hashlib.sha256(b"the last copy").hexdigest()
        path = f"objects/orders/aa/etag-{'0' * 32}-13"
        repository.location.create(path, b"the last copy")
        lists = entry._replace(path="_schema/alone", size=13, object=path, sha256=sha256)
        manifest = replace(after, backup_id="20300101T000000Z-b000007", files=(*after.files, lists))
        repository.location.create(manifest.path, manifest.to_document())
        part = part_of(entry.object)
        assert part is not None
        new = entry.object if to != "nothing" else f"objects/orders/aa/{'1' * 64}-99.pack/{sha256}-8-13"
        if to == "a content of another length":
            new = f"{part.pack}/{sha256}-{part.start}-13"
        document = {**moved_document({path: new})}
        repository.location.create("moved/orders/000009.json", json.dumps(document).encode())
        for _ in range(2):
            apply_prune(repository, plan_prune(repository, max_unused=MaxUnused(0)), abandoned_after=timedelta(0))
            migrate(place)
        assert (place / "backups").read(path) == b"the last copy"
        assert restorable(repository, manifest)["_schema/alone"] == b"the last copy"
        assert verify_backup(repository, manifest, read_data=ALL).ok

    @pytest.mark.parametrize("name", [f"aa/{'0' * 64}", "aa/notes.packet", "aa/x.pack"])
    def test_an_object_that_no_record_can_name_stays_and_the_others_are_found(self, place: Location, name: str) -> None:
        repository, (*_, made), (*_, right) = format_1(place)
        content, path = b"listed by a forged manifest", f"objects/orders/{name}"
        repository.location.create(path, content)
        lists = FileEntry("_schema/alone", len(content), path, hashlib.sha256(content).hexdigest())
        forged = replace(made, backup_id="20300101T000000Z-b000007", files=(*made.files, lists))
        repository.location.create(forged.path, forged.to_document())
        for _ in range(2):
            migrate(place)
        moved = read_moved(repository.location, "orders")
        assert moved.paths
        assert not moved.unreadable
        assert repository.location.read(path) == content
        assert restorable(repository, made) == right

    @pytest.mark.parametrize(
        "change",
        [
            lambda packed: {
                pack: {f"../../{key}": c for key, c in objects.items()} for pack, objects in packed.items()
            },
            lambda packed: {f"/etc/{pack}": objects for pack, objects in packed.items()},
            lambda packed: {pack: dict.fromkeys(objects, "0-0-0") for pack, objects in packed.items()},
            lambda packed: {pack: {f"aa/{'1' * 64}": c for c in objects.values()} for pack, objects in packed.items()},
            lambda packed: {
                pack: {f"{pack}/{key}": c for key, c in objects.items()} for pack, objects in packed.items()
            },
            lambda packed: [1],
        ],
    )
    def test_a_record_with_other_paths_is_refused(
        self, place: Location, change: Callable[[dict[str, dict[str, str]]], object]
    ) -> None:
        _, made, _ = format_1(place)
        migrate(place)
        record = json.loads((place / "backups").read("moved/orders/000001.json"))
        assert record["version"] == 2
        forged = {**record, "packed": change(record["packed"])}
        forged["sha256"] = record_sha256(forged)
        (place / "backups").create("moved/orders/000002.json", json.dumps(forged).encode())
        moved = read_moved(place / "backups", "orders")
        assert "moved/orders/000002.json cannot be read" in moved.unreadable[0]
        assert list(moved.records) == ["moved/orders/000001.json"]
        assert len(restorable(Repository.open(place / "backups"), made[0])) == len(made[0].files)

    def test_a_planted_file_that_has_the_path_of_a_content_in_a_pack(self, place: Location) -> None:
        """Object stores have it beside the pack. Nobody reads it."""
        format_1(place)
        migrate(place)
        after = back_up(place, stream(8)).manifest
        repository = Repository.open(place / "backups")
        right = restorable(repository, after)
        entry = next(e for e in after.files if e.is_packed and e.size > 10)
        plant_beside(repository, entry.object)
        assert plan_migrate(repository).steps == ()
        assert apply_prune(repository, plan_prune(repository)).waits_for == {}
        assert entry.object not in repository.location.walk("objects")
        assert restorable(repository, after) == right

    def test_an_earlier_release_that_had_opened_it_deletes_nothing(self, place: Location) -> None:
        """It takes packs for objects that no backup lists. What stops it: the end of a claim that names no manifest."""
        _, made, right = format_1(place)
        migrate(place)
        repository = Repository.open(place / "backups")
        for _ in range(2):
            apply_prune(repository, plan_prune(repository))
            ends = [p for p in (place / "backups").walk("claims/orders") if p.endswith(".end.json")]
            named = [json.loads((place / "backups").read(path))["manifest"] for path in ends]
            assert named == ["moved/orders/000001.json"]
            assert {p.removesuffix(".end.json") + ".json" for p in ends} <= set(
                (place / "backups").walk("claims/orders")
            )
        assert open_claims(repository, "orders") == []
        assert_whole(place, made, right)


def test_from_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from airflow_ckpt_provider.storage.local_store import LocalStore

    place = Location(LocalStore(), str(tmp_path))
    _, made, right = format_1(place)

    def run(*options: str) -> tuple[int, dict[str, dict[str, object]]]:
        code = main(["migrate", str(tmp_path / "backups"), "--json", *options])
        return code, json.loads(capsys.readouterr().out)

    code, planned = run()
    assert (code, planned["outcome"]) == (0, None)
    assert planned["plan"]["objects"] == len(small_objects(place)) > 0
    code, done = run("--apply")
    assert (code, done["outcome"]["objects"], done["outcome"]["waits_for"]) == (0, planned["plan"]["objects"], {})
    code, again = run("--apply")
    assert (code, again["plan"]["steps"]) == (0, [])
    assert_whole(place, made, right)
