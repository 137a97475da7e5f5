"""Damage that is found is remembered: what one verb has found, all others go by, until that very object was read whole.

On local disk, in memory, in an encrypted repository and on a real S3 server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.create import BackupResult, create_backup
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import ExpirePlan, plan_expire
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import note_verification
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.repository_repair import apply_objects_repair, plan_objects_repair
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, VerifyReport, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import DamagedBackupError, RefusedError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.packs import file_of
from tests.support.backups import entry_of, stream
from tests.support.checkpoints import Files, plant
from tests.support.packs import rot
from tests.support.s3_server import S3Server
from tests.support.spoiled import lose, lying_with
from tests.support.watched_stores import forget_all, in_memory

STATE = "state/0/1/5.changelog"


@dataclass
class Ground:
    """A checkpoint and its repository.

    :param place: where both are.
    :param key: of an encrypted repository.
    :param rots: the file whose object rots, of batch 4, and the same of batch 5. The rot of an object that S3 has copied by
        itself would show in its ETag as soon as it is listed, but for the real one, which no test can bring about.
    """

    place: Location
    key: bytes | None = None
    rots: tuple[str, str] = (STATE, "state/0/1/6.changelog")

    @property
    def repository(self) -> Repository:
        return Repository.open_or_create(replace(self.place / "backups", key=self.key))

    @property
    def files(self) -> Location:
        """The files of the repository as they are in the store."""
        return self.place / "backups"

    def back_up(self, files: Files | None = None, **options: Any) -> BackupResult:
        plant(self.place / "orders", files or {})
        return create_backup(Checkpoint.at(self.place / "orders"), self.repository, **options)

    def rot(self, entry: FileEntry) -> None:
        """Change a bit of an object, or of a content in a pack; neither its size nor what a listing says of it shows."""
        rot(self.files, entry.object, encrypted=self.key is not None)

    def rotten_with(self, manifest: Manifest, path: str) -> list[FileEntry]:
        """The files of a backup that are damaged once the content of one has rotted: an encrypted pack is one message."""
        entry = entry_of(manifest, path)
        return [entry] if self.key is None else lying_with(manifest.files, entry.object)

    def stored_anew(self, manifest: Manifest, path: str) -> int:
        """How many files the next backup stores again once the content of one has rotted: it takes none from a damaged pack."""
        return len(lying_with(manifest.files, entry_of(manifest, path).object))

    def verify(self, manifest: Manifest, read_data: ReadData | None = ReadData()) -> VerifyReport:  # noqa: B008
        report = verify_backup(self.repository, manifest, read_data=read_data)
        assert note_verification(self.repository, report)
        return report

    def restored(self, manifest: Manifest) -> Files:
        target = self.place / f"target-{os.urandom(4).hex()}"
        apply_restore(plan_restore(self.repository, manifest, target))
        return {path: target.read(path) for path in target.walk() if "/." not in f"/{path}"}

    def expire(self, **rules: int) -> ExpirePlan:
        plan = plan_expire(self.repository, Policy(**rules))
        apply_expire(self.repository, plan)
        return plan

    @property
    def ids(self) -> tuple[str, ...]:
        return self.repository.backup_ids("orders")


def needed(manifest: Manifest, files: Files) -> Files:
    return {entry.path: files[entry.path] for entry in manifest.files}


def of_files(report: VerifyReport) -> list[str]:
    """The files that a verify names, without packs as such."""
    return [f.path for f in report.findings if f.path != f.object]


@pytest.fixture(params=["memory", "local", "encrypted", "s3"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        yield Ground(
            open_location(f"s3://{server.make_bucket()}/ground", storage_options=server.options()),
            rots=("offsets/4", "offsets/5"),
        )
    elif request.param == "memory":
        yield Ground(in_memory())
        forget_all()
    else:
        key = os.urandom(32) if request.param == "encrypted" else None
        yield Ground(open_location(str(tmp_path)), key)


@pytest.fixture
def rotten(ground: Ground) -> Manifest:
    """A backup whose damage was found by reading it."""
    manifest = ground.back_up(stream()).manifest
    ground.rot(entry_of(manifest, ground.rots[0]))
    report = ground.verify(manifest)
    entry = entry_of(manifest, ground.rots[0])
    assert of_files(report) == [e.path for e in ground.rotten_with(manifest, entry.path)]
    # What is wrong with a pack as such is named too, unless it cannot be decrypted.
    packs = [file_of(entry.object)] if entry.is_packed and ground.key is None else []
    assert [f.path for f in report.findings if f.path == f.object] == packs
    return manifest


class TestRot:
    def test_the_next_backup_stores_the_content_anew(self, ground: Ground, rotten: Manifest) -> None:
        again = ground.back_up()
        assert again.copied_files == ground.stored_anew(rotten, ground.rots[0])
        assert entry_of(again.manifest, ground.rots[0]).object != entry_of(rotten, ground.rots[0]).object
        assert ground.verify(again.manifest).ok
        assert ground.restored(again.manifest) == needed(again.manifest, stream())

    def test_and_the_one_after_that_uses_it(self, ground: Ground, rotten: Manifest) -> None:
        again = ground.back_up().manifest
        third = ground.back_up()
        assert third.copied_files == 0
        assert [e.object for e in third.manifest.files] == [e.object for e in again.files]

    def test_a_lost_object_that_was_found_lost(self, ground: Ground) -> None:
        manifest = ground.back_up(stream()).manifest
        lost = entry_of(manifest, ground.rots[0])
        lose(ground.files, lost.object)
        assert not ground.verify(manifest, None).ok
        again = ground.back_up().manifest
        assert entry_of(again, ground.rots[0]).object != lost.object
        assert ground.restored(again) == needed(again, stream())
        assert [d.backup_id for d in check_repository(ground.repository).damaged] == [manifest.backup_id]

    def test_a_copy_does_not_take_the_rotten_object_of_its_target(self, ground: Ground, rotten: Manifest) -> None:
        other = Repository.open_or_create(ground.place / "other")
        original = create_backup(Checkpoint.at(ground.place / "orders"), other).manifest
        if original.backup_id in ground.ids:  # of the same second: the target has it
            ground.files.delete(original.path)
        copy_backups(other, ground.repository, [original])
        copied = ground.repository.read_manifest("orders", original.backup_id)
        assert entry_of(copied, ground.rots[0]).object != entry_of(rotten, ground.rots[0]).object
        assert ground.restored(copied) == needed(copied, stream())

    def test_check_names_it(self, ground: Ground, rotten: Manifest) -> None:
        (damaged,) = check_repository(ground.repository).damaged
        assert damaged.backup_id == rotten.backup_id
        entries = ground.rotten_with(rotten, ground.rots[0])
        assert len(damaged.problems) == len(entries)
        for problem, entry in zip(damaged.problems, entries, strict=True):
            assert problem.startswith(f"{entry.path}: its object {entry.object} was found damaged on ")
            assert problem.endswith(" (content), and was not read whole since")

    def test_repair_rebuilds_it_from_the_checkpoint(self, ground: Ground, rotten: Manifest) -> None:
        plan = plan_objects_repair(ground.repository, ground.place / "orders")
        objects = {e.object for e in ground.rotten_with(rotten, ground.rots[0])}
        assert sorted(r.entry.object for r in plan.rebuilt) == sorted(objects)
        apply_objects_repair(ground.repository, ground.place / "orders", plan)
        assert check_repository(ground.repository).ok
        assert ground.verify(rotten).ok
        assert ground.restored(rotten) == needed(rotten, stream())

    def test_repair_rebuilds_it_from_what_a_later_backup_stored_anew(self, ground: Ground, rotten: Manifest) -> None:
        ground.back_up()
        plan = plan_objects_repair(ground.repository, ground.place / "nowhere")
        if not plan.rebuilt:  # copied by the store: no hash is known but the ETag, and the checkpoint is gone
            pytest.fail(f"{plan.lost}")
        apply_objects_repair(ground.repository, ground.place / "nowhere", plan)
        assert check_repository(ground.repository).ok
        assert ground.restored(rotten) == needed(rotten, stream())

    def test_repair_rebuilds_it_from_a_second_repository(self, ground: Ground) -> None:
        manifest = ground.back_up(stream()).manifest
        second = Repository.open_or_create(ground.place / "second")
        copy_backups(ground.repository, second, [manifest])
        ground.rot(entry_of(manifest, ground.rots[0]))
        ground.verify(manifest)
        plan = plan_objects_repair(ground.repository, ground.place / "nowhere", second=second)
        objects = {e.object for e in ground.rotten_with(manifest, ground.rots[0])}
        assert sorted(r.entry.object for r in plan.rebuilt) == sorted(objects)
        apply_objects_repair(ground.repository, ground.place / "nowhere", plan, second=second)
        assert check_repository(ground.repository).ok
        assert ground.restored(manifest) == needed(manifest, stream())

    def test_what_reads_whole_again_is_not_written_over(self, ground: Ground) -> None:
        """A disk that was back after an hour."""
        manifest = ground.back_up(stream()).manifest
        file = file_of(entry_of(manifest, ground.rots[0]).object)
        content = ground.files.read(file)
        ground.files.delete(file)
        ground.verify(manifest)
        ground.files.replace(file, content)
        listed = ground.files.find(file)
        assert not check_repository(ground.repository).ok, "nobody has read it"
        plan = plan_objects_repair(ground.repository, ground.place / "nowhere")
        assert (plan.rebuilt, plan.lost) == ((), ())
        apply_objects_repair(ground.repository, ground.place / "nowhere", plan)
        assert check_repository(ground.repository).ok
        assert ground.files.find(file) == listed

    def test_a_prune_deletes_it_once_no_backup_lists_it(self, ground: Ground, rotten: Manifest) -> None:
        path = file_of(entry_of(rotten, ground.rots[0]).object)
        ground.back_up()
        plan = plan_prune(ground.repository, without={"orders": [rotten.backup_id]})
        assert path in plan.streams[0].objects
        ground.expire(last=1)
        assert len(ground.ids) == 1
        assert apply_prune(ground.repository, plan_prune(ground.repository)).objects == 1
        assert path not in ground.files.walk("objects")
        assert check_repository(ground.repository).ok
        third = ground.back_up()
        assert third.copied_files == 0
        assert ground.restored(third.manifest) == needed(third.manifest, stream())


class TestWhatIsKnownStaysKnown:
    @pytest.mark.parametrize("read_data", [None, ReadData(percent=1)], ids=["structure", "1%"])
    def test_verifying_other_objects_changes_nothing(
        self, ground: Ground, rotten: Manifest, read_data: ReadData | None
    ) -> None:
        report = ground.verify(rotten, read_data)
        assert not report.ok
        assert of_files(report) == [e.path for e in ground.rotten_with(rotten, ground.rots[0])]
        assert not check_repository(ground.repository).ok

    def test_every_part_reads_what_is_known_to_be_damaged(self, ground: Ground, rotten: Manifest) -> None:
        reports = [ground.verify(rotten, ReadData(n, 7)) for n in range(1, 8)]
        assert not any(report.ok for report in reports)
        ground.rot(entry_of(rotten, ground.rots[0]))  # the same bit again, so it is as it was
        assert ground.verify(rotten, ReadData(3, 7)).ok
        assert check_repository(ground.repository).ok

    def test_it_fills_no_slot_and_is_not_the_newest_verified(self, ground: Ground) -> None:
        good = ground.back_up(stream()).manifest
        assert ground.verify(good).ok
        bad = ground.back_up(stream(5)).manifest
        ground.rot(entry_of(bad, ground.rots[1]))
        assert not ground.verify(bad).ok
        for part in range(1, 8):  # with one of these the note of the damage went
            ground.verify(bad, ReadData(part, 7))
        plan = ground.expire(last=1)
        assert good.backup_id in ground.ids
        reasons = {d.backup.backup_id: d.reasons for d in plan.decisions}
        assert "newest verified" in reasons[good.backup_id]
        assert "last backup" in reasons[good.backup_id]
        assert not {"newest verified", "last backup"} & set(reasons[bad.backup_id])

    def test_an_expire_that_would_leave_no_whole_one_is_refused(self, ground: Ground, rotten: Manifest) -> None:
        other = ground.back_up(stream(5), tags={"kind": "release"}).manifest
        ground.rot(entry_of(other, ground.rots[1]))
        ground.verify(other)
        with pytest.raises(RefusedError, match="no backup of orders is known to be whole") as error:
            plan_expire(ground.repository, Policy(last=1))
        assert "repair" in str(error.value.hint)
        assert len(ground.ids) == 2

    def test_damage_that_is_found_after_the_plan(self, ground: Ground) -> None:
        older = ground.back_up(stream()).manifest
        newer = ground.back_up(stream(5)).manifest
        plan = plan_expire(ground.repository, Policy(last=1))
        assert [d.backup.backup_id for d in plan.going] == [older.backup_id]
        ground.rot(entry_of(newer, ground.rots[1]))
        ground.verify(newer)
        with pytest.raises(RefusedError, match="found damaged since the plan was made"):
            apply_expire(ground.repository, plan)
        assert older.backup_id in ground.ids

    def test_it_is_not_the_current_one(self, ground: Ground, rotten: Manifest) -> None:
        for part in range(1, 8):
            ground.verify(rotten, ReadData(part, 7))
        again = ground.back_up(skip_if_unchanged=True)
        assert not again.unchanged
        assert ground.restored(again.manifest) == needed(again.manifest, stream())

    def test_latest_passes_over_it_and_says_so(self, ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
        good = ground.back_up(stream()).manifest
        bad = ground.back_up(stream(5)).manifest
        ground.rot(entry_of(bad, ground.rots[1]))
        ground.verify(bad)
        first = ground.rotten_with(bad, ground.rots[1])[0].path
        with caplog.at_level("WARNING"):
            assert ground.repository.manifest().backup_id == good.backup_id
        assert f"backup {bad.backup_id} of orders is passed over: it is damaged: {first}" in caplog.text
        assert ground.repository.manifest(bad.backup_id).backup_id == bad.backup_id, "who names it gets it"

    def test_latest_of_none_that_is_whole(self, ground: Ground, rotten: Manifest) -> None:
        with pytest.raises(DamagedBackupError, match="the only backup of orders is damaged") as error:
            ground.repository.manifest()
        assert ground.rotten_with(rotten, ground.rots[0])[0].path in error.value.findings[0]

    def test_a_restore_that_finds_it_remembers_it(self, ground: Ground) -> None:
        good = ground.back_up(stream()).manifest
        bad = ground.back_up(stream(5)).manifest
        ground.rot(entry_of(bad, ground.rots[1]))
        try:
            apply_restore(plan_restore(ground.repository, bad, ground.place / "restored"))
        except DamagedBackupError:
            assert ground.repository.manifest().backup_id == good.backup_id
            assert not check_repository(ground.repository).ok
        else:
            pytest.fail("it restored what is damaged")


class TestReplay:
    def test_the_batch_ran_again_and_only_its_state_differs(self, ground: Ground) -> None:
        """The corrected code: offsets and commit are the same, byte for byte."""
        first = ground.back_up(stream())
        corrected = {path: data.replace(b"changelog", b"CHANGELOG") for path, data in stream().items() if path == STATE}
        plant(ground.place / "orders", {**corrected, "commits/4": stream()["commits/4"]})
        second = ground.back_up(skip_if_unchanged=True)
        assert not second.unchanged
        assert second.backup_id != first.backup_id
        assert ground.restored(second.manifest)[STATE] == corrected[STATE]

    def test_nothing_ran_again(self, ground: Ground) -> None:
        first = ground.back_up(stream())
        assert ground.back_up(skip_if_unchanged=True).backup_id == first.backup_id
