"""Packs that are copied, deleted, and packed anew where they are mostly garbage; killed before each write."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup import prune, repack
from airflow_ckpt_provider.backup.claims import in_use
from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.prune import MaxUnused, apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.backup.verify_repository import verify_repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import DamagedBackupError, StorageError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of, pack_size, part_of, read_moved
from airflow_ckpt_provider.storage.signatures import Signing, public_key
from airflow_ckpt_provider.units import format_size
from tests.support.backups import back_up, files_in, stream
from tests.support.checkpoints import contents, plant
from tests.support.packs import (
    expire_and_prune,
    flip,
    mostly_garbage,
    packed_repository,
    packs_of,
    restored,
    with_big_files,
)
from tests.support.watched_stores import Killed, Life, forget_all, in_memory, watched

ALL = ReadData()
GOLDEN = Path(__file__).parents[2] / "golden" / "stored"


class TestCopy:
    def test_killed_before_each_write_the_same_command_finishes(self) -> None:
        for writes in range(20):
            place = in_memory()
            source = packed_repository(place)
            made = back_up(place, with_big_files(stream())).manifest
            life = Life(writes)
            Repository.open_or_create(place / "second", format=2)
            with suppress(Killed):
                copy_backups(source, Repository.open(watched(place / "second", life.before)[0]), [made])
            target = Repository.open(place / "second")
            copy_backups(source, target, [made])
            assert verify_backup(target, target.manifest(), read_data=ALL).ok
            assert restored(target, target.manifest(), place / "target") == files_in(made, place)
            assert packs_of(target) == packs_of(source), "what was copied already is found"
            if not life.dead:
                return
        raise AssertionError("it never ended")

    @pytest.mark.parametrize("target_format", [1, 2])
    @pytest.mark.parametrize("source_format", [1, 2])
    def test_between_formats(self, place: Location, source_format: int, target_format: int) -> None:
        source = Repository.open_or_create(place / "backups", format=source_format)
        made = [back_up(place, stream(4)).manifest, back_up(place, stream(6)).manifest]
        target = Repository.open_or_create(place / "second", format=target_format)
        copied = copy_backups(source, target, made)
        assert [c.files for c in copied] == [len(m.files) for m in made]
        for number, manifest in enumerate(target.backups("orders")):
            assert {e.is_packed for e in manifest.files} == {target_format == 2}
            assert verify_backup(target, manifest, read_data=ALL).ok
            assert restored(target, manifest, place / f"target{number}") == files_in(made[number], place)
        assert copy_backups(source, target, made)[1].already_there

    def test_packs_are_moved_whole(self, place: Location) -> None:
        source = packed_repository(place)
        made = [back_up(place, stream(4)).manifest, back_up(place, stream(6)).manifest]
        read, _ = watched(place / "backups")
        write, store = watched(place / "second")
        target = Repository.open_or_create(write, format=2)
        copy_backups(Repository.open(read), target, made)
        assert sum("/objects/" in path for path in store.paths("create")) == 2
        assert packs_of(target) == packs_of(source)
        assert [source.location.read(p) for p in packs_of(source)] == [
            target.location.read(p) for p in packs_of(target)
        ]

    def test_a_pack_that_is_damaged_where_nobody_needs_it(self, place: Location) -> None:
        source = packed_repository(place)
        made = back_up(place, stream()).manifest
        (pack,) = packs_of(source)
        content = source.location.read(pack)
        source.location.replace(pack, flip(content, len(content) - 60))  # in the index
        target = Repository.open_or_create(place / "second", format=2)
        copy_backups(source, target, [made])
        assert verify_backup(target, target.manifest(), read_data=ALL).ok

    def test_a_damaged_content_is_not_copied(self, place: Location) -> None:
        source = packed_repository(place)
        made = back_up(place, stream()).manifest
        (pack,) = packs_of(source)
        source.location.replace(pack, flip(source.location.read(pack), 20))
        with pytest.raises(DamagedBackupError, match="has another content than was backed up"):
            copy_backups(source, Repository.open_or_create(place / "second", format=2), [made])


class TestPrune:
    def test_a_pack_of_which_nothing_is_needed_goes(self, place: Location) -> None:
        repository = packed_repository(place)
        back_up(place, stream(4))
        for path in list((place / "orders").walk()):
            (place / "orders").delete(path)
        other = {path: data + b" " if path.startswith("sources/") else data for path, data in stream(9).items()}
        made = back_up(place, other, new_life=True, name="orders").manifest
        before = packs_of(repository)
        expire_and_prune(repository)
        assert set(packs_of(repository)) <= set(before) | {file_of(e.object) for e in made.files}
        assert verify_backup(repository, repository.manifest(), read_data=ALL).ok

    def test_one_that_is_mostly_garbage_is_packed_anew(self, place: Location) -> None:
        repository, made = mostly_garbage(place)
        before, right = packs_of(repository), files_in(made, place)
        plan = plan_prune(repository)
        (stream_plan,) = plan.streams
        shown = stream_plan.to_json()
        assert shown["repacked_packs"] == 1
        assert shown["repack_frees"] > 40_000 > shown["repacked_bytes"]
        assert f"repack {format_size(shown['repacked_bytes'])} of 1 packs" in plan.steps[0]
        assert f"about {shown['repack_requests']} requests" in plan.steps[0]
        outcome = apply_prune(repository, plan)
        assert outcome.bytes > 40_000
        assert set(stream_plan.repacked).isdisjoint(packs_of(repository))
        assert sum(pack_size(p) or 0 for p in packs_of(repository)) < sum(pack_size(p) or 0 for p in before) / 2
        assert repository.manifest() == made  # manifests never change
        assert verify_backup(repository, made, read_data=ALL).ok
        assert verify_repository(repository, read_data=ALL).ok
        assert check_repository(repository).streams[0].unused_objects == 0
        assert restored(repository, made, place / "target") == right
        assert plan_prune(repository, max_unused=MaxUnused(0)).steps == ()
        # The next backup lists contents where they are now, and takes none of them again.
        after = back_up(place, stream(7))
        assert {file_of(e.object) for e in after.manifest.files} <= set(packs_of(repository))
        assert after.copied_files < len(after.manifest.files) / 2

    def test_what_may_stay_stays(self, place: Location) -> None:
        repository, _ = mostly_garbage(place)
        assert plan_prune(repository, max_unused=MaxUnused.parse("unlimited")).steps == ()
        assert plan_prune(repository, max_unused=MaxUnused(10_000_000)).steps == ()
        assert plan_prune(repository, max_unused=MaxUnused(0)).streams[0].repacked

    def test_a_restore_that_reads_a_pack_is_waited_for(self, place: Location) -> None:
        repository, made = mostly_garbage(place)
        before = packs_of(repository)
        with in_use(repository, made, what="restore", made_by="somebody"):
            outcome = apply_prune(repository, plan_prune(repository))
            assert outcome.objects == 0
            assert "restore by somebody" in outcome.waits_for["orders"][0]
            assert set(before) <= set(packs_of(repository))
            assert files_in(made, place) == {e.path: (place / "orders").read(e.path) for e in made.files}
        apply_prune(repository, plan_prune(repository))
        assert not set(before) <= set(packs_of(repository))
        assert files_in(made, place) == {e.path: (place / "orders").read(e.path) for e in made.files}

    def test_a_restore_that_was_planned_before_reads_what_is_elsewhere_now(self, place: Location) -> None:
        repository, made = mostly_garbage(place)
        right = files_in(made, place)
        plan = plan_restore(repository, made, place / "target")
        apply_prune(repository, plan_prune(repository))
        apply_restore(plan)
        assert contents(place / "target") == right

    def test_a_damaged_content_is_not_packed_anew_and_its_pack_stays(self, place: Location) -> None:
        repository, made = mostly_garbage(place)
        (pack,) = plan_prune(repository).streams[0].repacked
        entry = next(e for e in made.files if file_of(e.object) == pack and e.size)
        part = part_of(entry.object)
        assert part is not None
        repository.location.replace(pack, flip(repository.location.read(pack), part.start))
        apply_prune(repository, plan_prune(repository))
        assert pack in packs_of(repository)
        assert {f.path for f in verify_backup(repository, made, read_data=ALL).findings} >= {entry.path}

    def test_a_second_time_follows_the_first(self, place: Location) -> None:
        """What was moved is moved again; the oldest manifest is read all the same."""
        repository, made = mostly_garbage(place)
        right = files_in(made, place)
        apply_prune(repository, plan_prune(repository))
        (moved,) = {file_of(path) for path in read_moved(repository.location, "orders").paths.values()}
        packs, *_ = repack.repack(repository, "orders", [moved], made_by="a test")
        assert packs == {moved}
        apply_prune(repository, plan_prune(repository))
        assert moved not in packs_of(repository)
        assert files_in(made, place) == right
        assert verify_backup(repository, made, read_data=ALL).ok

    def test_without_the_right_to_write_objects_it_still_deletes(
        self, place: Location, caplog: pytest.LogCaptureFixture
    ) -> None:
        repository, made = mostly_garbage(place)
        repository.location.create("objects/orders/aa/left", b"by a backup that was killed")

        def refuse(operation: str, path: str) -> None:
            if operation == "create" and "/objects/" in path:
                raise StorageError(f"could not write {path}", hint="ask for the right")

        seen = repository.at(watched(place / "backups", refuse)[0])
        assert apply_prune(seen, plan_prune(seen)).objects == 1
        assert "packs of orders that are mostly garbage or small stay: could not write" in caplog.text
        assert verify_backup(repository, made, read_data=ALL).ok

    def test_records_are_signed_and_an_unsigned_one_is_ignored(self, place: Location) -> None:
        signing = Signing(b"\x01" * 32, (public_key(b"\x01" * 32),))
        repository = Repository.open_or_create(replace(place / "backups", signing=signing), format=2)
        plant(place / "orders", {**stream(4), **{f"_schema/{n}": bytes([n]) * 5000 for n in range(8)}})
        create_backup(Checkpoint.at(place / "orders"), repository)
        for n in range(8):
            (place / "orders").delete(f"_schema/{n}")
        plant(place / "orders", stream(6))
        made = create_backup(Checkpoint.at(place / "orders"), repository).manifest
        names = {file_of(e.object): e.object.rpartition("/")[2] for e in made.files}
        pack, content = next(iter(names.items()))
        forged_ = {"format": "airflow-ckpt-moved", "version": 1, "moved": {pack: {pack: {content: 8}}}}
        (place / "backups").create("moved/orders/000001.json", json.dumps(forged_).encode())
        assert read_moved(repository.location, "orders").paths == {}
        apply_expire(repository, plan_expire(repository, Policy(last=1)))
        apply_prune(repository, plan_prune(repository))
        moved = read_moved(repository.location, "orders")
        assert list(moved.records) == ["moved/orders/000002.json"]
        assert moved.paths
        assert verify_backup(repository, made, read_data=ALL).ok
        assert restored(repository, made, place / "target") == {
            e.path: (place / "orders").read(e.path) for e in made.files
        }

    def test_records_go_when_no_manifest_needs_them(self, place: Location) -> None:
        """But for the newest: its number must not come back."""
        repository, made = mostly_garbage(place)
        apply_prune(repository, plan_prune(repository))
        (moved,) = {file_of(path) for path in read_moved(repository.location, "orders").paths.values()}
        assert repack.repack(repository, "orders", [moved], made_by="a test")[0] == {moved}
        apply_prune(repository, plan_prune(repository))
        assert len(read_moved(repository.location, "orders").records) == 2, (
            "the manifest lists what the first one moved"
        )
        assert verify_backup(repository, made, read_data=ALL).ok
        after = back_up(place, stream(7)).manifest
        expire_and_prune(repository)
        assert list(read_moved(repository.location, "orders").records) == ["moved/orders/000002.json"]
        assert verify_backup(repository, after, read_data=ALL).ok
        assert restored(repository, after, place / "target") == files_in(after, place)

    def test_killed_before_each_write_nothing_is_lost_and_the_next_one_finishes(self) -> None:
        killed = 0
        while True:
            place = in_memory()
            repository, made = mostly_garbage(place)
            right = files_in(made, place)
            life = Life(killed)
            seen = Repository.open(watched(place / "backups", life.before)[0])
            with suppress(Killed):
                apply_prune(seen, plan_prune(seen))
            assert files_in(made, place) == right
            assert verify_backup(repository, made, read_data=ALL).ok
            apply_prune(repository, plan_prune(repository), abandoned_after=prune.timedelta(0))
            apply_prune(repository, plan_prune(repository), abandoned_after=prune.timedelta(0))
            assert plan_prune(repository).steps == ()
            assert files_in(made, place) == right
            assert restored(repository, made, place / "target") == right
            forget_all()
            if not life.dead:
                break
            killed += 1
        assert killed > 8
