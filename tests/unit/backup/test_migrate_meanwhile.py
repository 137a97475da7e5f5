"""Migrating to packs while others work, with keys and signatures, and with forged records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Lock

import pytest

from airflow_ckpt_provider.backup.claims import entries_in_use, in_use, open_claims
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.migrate import MigrateOutcome, apply_migrate, plan_migrate
from airflow_ckpt_provider.backup.prune import MaxUnused, apply_prune, plan_prune
from airflow_ckpt_provider.backup.prune_marks import read_marks
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.cli.main import main
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import moved_document, part_of, read_moved, record_sha256
from airflow_ckpt_provider.storage.signatures import Signing, public_key
from tests.support.backups import back_up, files_in, stream
from tests.support.checkpoints import contents, plant
from tests.support.migrations import ALL, assert_whole, format_1, migrate, small_objects
from tests.support.migrations import place as place
from tests.support.packs import packs_of, plant_beside, restorable
from tests.support.watched_stores import Killed, Life, forget_all, in_memory, watched

pytestmark = pytest.mark.format_1("what is migrated is a repository of format 1")


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

    @pytest.mark.parametrize("late", [False, True], ids=["before the restore", "before its first copy"])
    def test_a_restore_planned_before_the_format_was_raised_is_done(self, place: Location, late: bool) -> None:
        """Its store copies objects to the target, and these were put into packs; a restore that is given up is not waited for."""
        done: list[MigrateOutcome] = []
        one = Lock()

        def meanwhile(operation: str, path: str) -> None:
            if late and operation == "copy_new" and path.startswith((place / "target").root):
                with one:  # many copies are under way at once
                    done.extend([] if done else [migrate(place)])

        seen, _ = watched(place, meanwhile, copies_within=True)
        plant(seen / "orders", stream(4))
        made = create_backup(
            Checkpoint.at(seen / "orders"), Repository.open_or_create(seen / "backups", format=1)
        ).manifest
        before = Repository.open(seen / "backups")
        plan = plan_restore(before, made, seen / "target")
        if not late:
            done.append(migrate(place))
        apply_restore(plan)
        assert done[0].deleted
        assert contents(place / "target") == {e.path: (place / "orders").read(e.path) for e in made.files}

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
