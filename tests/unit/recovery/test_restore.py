"""restore: carried out whole, in an order that fails closed, and only what differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_ckpt_provider.backup.copy_progress import CopyProgress
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import DamagedBackupError, StorageError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.memory_store import MemoryStore
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.packs import file_of
from tests.support.backups import back_up, entry_of, repository, stream
from tests.support.checkpoints import contents, plant
from tests.support.restores import loud_seal, module_create, restore, wanted
from tests.support.stopped import STOPPED
from tests.support.watched_stores import WRITES, watched

#: Requests that change a file.
CHANGES = WRITES - {"remove_empty_directories"}


class Generations(MemoryStore):
    """A store that copies by itself, and shows versions of a file apart by something else than its checksum."""

    copies_within = True

    def __init__(self, fs: MemoryFileSystem) -> None:
        super().__init__(fs)
        self.copied: list[str] = []

    def _identity(self, entry: dict[str, Any]) -> str | None:
        return f"generation:{self._checksum(entry)}"

    def copy(self, source: str, target: str, size: int) -> None:
        self.copied.append(target)
        super().copy(source, target, size)


class TestIntoAnEmptyPlace:
    def test_exactly_the_closure(self, place: Location, manifest: Manifest) -> None:
        outcome = restore(place, manifest)
        assert contents(place / "target") == wanted(place, manifest)
        assert (outcome.batch_id, outcome.kept, outcome.already_done) == (4, None, False)
        assert (outcome.files, outcome.bytes) == (
            len(wanted(place, manifest)),
            sum(map(len, wanted(place, manifest).values())),
        )
        resume = Checkpoint.at(place / "target").resume_point()
        assert (resume.batch_id, resume.replay, resume.verdict) == (5, False, "SAFE")

    def test_an_older_batch(self, place: Location, manifest: Manifest) -> None:
        restore(place, manifest, batch=3)
        assert contents(place / "target") == wanted(place, manifest, 3)
        assert Checkpoint.at(place / "target").resume_point().batch_id == 4

    def test_the_first_batch(self, place: Location) -> None:
        manifest = back_up(place, stream(0)).manifest
        restore(place, manifest)
        assert contents(place / "target") == wanted(place, manifest)

    def test_again_it_is_done_already(self, place: Location, manifest: Manifest) -> None:
        restore(place, manifest)
        before = contents(place)
        again = restore(place, manifest)
        assert (again.already_done, again.kept) == (True, None)
        assert contents(place) == before

    def test_audit_record(self, place: Location, manifest: Manifest) -> None:
        outcome = restore(place, manifest)
        (record,) = repository(place).records()
        assert (record["kind"], record["plan_id"], record["made_by"], record["reason"]) == (
            "restore", outcome.plan_id, "me", "a test",
        )  # fmt: skip
        assert record["kept"] is None
        assert record["plan"]["backup_id"] == manifest.backup_id
        assert record["plan"]["target"] == (place / "target").uri

    def test_the_outcome_as_json(self, place: Location, manifest: Manifest) -> None:
        outcome = restore(place, manifest)
        report = json.loads(json.dumps(outcome.to_json()))
        assert report == {
            "plan_id": outcome.plan_id, "backup_id": manifest.backup_id, "target": (place / "target").uri, "batch_id": 4,
            "files": outcome.files, "bytes": outcome.bytes, "seconds": round(outcome.seconds, 3), "kept": None,
            "unchanged": 0, "already_done": False,
        }  # fmt: skip

    def test_progress(self, place: Location, manifest: Manifest) -> None:
        seen: list[CopyProgress] = []
        plan = plan_restore(repository(place), manifest, place / "target")
        outcome = apply_restore(plan, rest=STOPPED, on_progress=seen.append)
        assert [p.files_done for p in seen] == list(range(1, outcome.files + 1))
        assert seen[-1] == CopyProgress(outcome.files, outcome.files, outcome.bytes, outcome.bytes)

    def test_hidden_debris_is_swept(self, place: Location, manifest: Manifest) -> None:
        """Hadoop's checksums of files that were there would not fit the new ones."""
        plant(place / "target", {"offsets/.4.crc": b"old", ".metadata.crc": b"old", "state/0/0/.x.tmp": b"old"})
        restore(place, manifest)
        assert contents(place / "target") == wanted(place, manifest)

    @pytest.mark.format_1("the store copies the small files of this test")
    def test_a_store_that_copies_by_itself(self, place: Location) -> None:
        plant(place / "orders", stream())
        checkpoint, _ = watched(place / "orders", copies_within=True)
        repository(place)
        backups, asked = watched(place / "backups", copies_within=True)
        repo = Repository.open(backups)
        made = module_create(Checkpoint.at(checkpoint), repo).manifest
        target, store = watched(place / "target", copies_within=True)
        asked.requests.clear()
        apply_restore(plan_restore(repo, made, target))
        assert contents(place / "target") == wanted(place, made)
        assert store.count("copy_new") > 0
        # The store vouches for its checksum, before anything is changed and for what came out of the copy.
        assert not [p for p in asked.paths("read") if entry_of(made, "state/0/1/5.changelog").object in p]

    @pytest.mark.format_1("the store copies the small files of this test")
    def test_a_store_whose_checksums_are_no_identities(self, place: Location) -> None:
        """Google's: an object has a generation as well as the MD5 of its content. A manifest has the checksum alone."""
        place = Location(Generations(MemoryFileSystem()), place.root)
        made = back_up(place, stream(4)).manifest
        entry = entry_of(made, "state/0/1/5.changelog")
        assert entry.checksum is not None
        plan = plan_restore(repository(place), made, place / "target")
        apply_restore(plan, rest=STOPPED)
        assert contents(place / "target") == wanted(place, made)
        assert any("/target/state/" in path for path in place.store.copied)

    @pytest.mark.format_1("the store copies the small files of this test")
    def test_what_a_store_does_not_vouch_for_any_more_is_not_copied(self, place: Location) -> None:
        plant(place / "orders", stream())
        checkpoint, _ = watched(place / "orders", copies_within=True)
        repository(place)
        repo = Repository.open(watched(place / "backups", copies_within=True)[0])
        made = module_create(Checkpoint.at(checkpoint), repo).manifest
        target, store = watched(place / "target", copies_within=True)
        plan = plan_restore(repo, made, target)
        entry = entry_of(made, "state/0/1/5.changelog")
        plant(place / "backups", {entry.object: b"x" * entry.size})
        with pytest.raises(DamagedBackupError, match=r"state/0/1/5\.changelog.*nothing was changed"):
            apply_restore(plan, rest=STOPPED)
        assert contents(place / "target") == {}
        assert store.count(*WRITES) == 0


def test_a_file_name_that_is_no_utf_8(tmp_path: Path) -> None:
    files = stream() | {"extra/x\udcff": b"x"}
    place = open_location(str(tmp_path))
    manifest = back_up(place, files).manifest
    restore(place, manifest, place / "new")
    assert (place / "new").read("extra/x\udcff") == b"x"
    assert (place / "new").read("metadata") == files["metadata"]


class TestOrder:
    """The order that is loud by itself, should the seal ever be overlooked."""

    def writes(self, place: Location, manifest: Manifest, **options: Any) -> list[tuple[str, str]]:
        target, store = watched(place / "target")
        apply_restore(plan_restore(repository(place), manifest, target, **options), rest=STOPPED, workers=8)
        return [
            (operation, path.removeprefix(f"{target.root}/"))
            for operation, path in store.requests
            if operation in CHANGES
        ]

    def test_into_an_empty_place(self, place: Location, manifest: Manifest) -> None:
        writes = self.writes(place, manifest)
        assert writes[:4] == [
            ("create", "offsets/5"), ("create", "offsets/4"), ("create", "metadata"), ("create", "commits/4"),
        ]  # fmt: skip
        assert writes[-2:] == [("create", "offsets/3"), ("delete_listed", "offsets/5")]
        assert {p.partition("/")[0] for _, p in writes[4:-2]} == {"sources", "state"}

    def test_replacing(self, place: Location, manifest: Manifest) -> None:
        plant(place / "target", stream(6) | {"offsets/.6.crc": b"h"})
        writes = self.writes(place, manifest, replace=True)
        assert writes[0] == ("create", "offsets/7")
        deletes = [p for operation, p in writes[:-1] if operation == "delete_listed"]
        assert deletes[:6] == [f"offsets/{batch}" for batch in (5, 4, 3, 2, 1, 0)]
        assert deletes[6].startswith("state/")
        assert deletes[-1] == "offsets/6"
        stay = {
            path for path in stream(6) if path.startswith(("state/", "sources/")) and path in wanted(place, manifest)
        }
        assert set(deletes) == {*stream(6), "offsets/.6.crc"} - stay
        assert not stay & {path for _, path in writes}
        first_write = next(i for i, (operation, _) in enumerate(writes[1:], 1) if operation != "delete_listed")
        assert {operation for operation, _ in writes[first_write:-1]} == {"create"}
        assert writes[first_write] == ("create", "offsets/4")
        assert writes[-2:] == [("create", "offsets/3"), ("delete_listed", "offsets/7")]

    def test_everything_is_read_before_anything_is_changed(self, place: Location, manifest: Manifest) -> None:
        target, store = watched(place / "target")
        read: set[str] = set()
        at_first_write: list[int] = []

        def note(operation: str, path: str) -> None:
            if operation == "read":
                read.add(path)

        store.before = lambda operation, path: (
            at_first_write.append(len(read)) if operation == "create" and not at_first_write else None
        )
        backups, _ = watched(place / "backups", note)
        apply_restore(plan_restore(Repository.open(backups), manifest, target))
        assert at_first_write[0] >= len({file_of(e.object) for e in manifest.files_of(4)})


class TestOnlyWhatDiffers:
    """In place only what differs is deleted and written; that a file is the same is not believed but read."""

    def test_content_counts_and_not_the_name(self, place: Location, manifest: Manifest) -> None:
        there = stream(6)
        rotten = "state/0/1/5.changelog"
        plant(place / "target", there | {rotten: bytes(reversed(there[rotten]))})
        target, store = watched(place / "target")
        outcome = apply_restore(plan_restore(repository(place), manifest, target, replace=True), rest=STOPPED)
        assert contents(place / "target") == wanted(place, manifest)
        written = {path.removeprefix(f"{target.root}/") for path in store.paths("create")} - {"offsets/7"}
        files = {e.path for e in manifest.files_of(4)}
        assert written == {rotten, *(p for p in files if p.startswith(("offsets/", "commits/", "metadata")))}
        assert outcome.unchanged == len(files) - len(written)

    @pytest.mark.format_1("the store copies the small files of this test")
    def test_a_store_that_vouches_for_checksums(self, place: Location) -> None:
        plant(place / "orders", stream())
        checkpoint, _ = watched(place / "orders", copies_within=True)
        repository(place)
        repo = Repository.open(watched(place / "backups", copies_within=True)[0])
        made = module_create(Checkpoint.at(checkpoint), repo).manifest
        plant(place / "orders", {"state/0/0/4.changelog": b"other"})
        target, store = watched(place / "orders", copies_within=True)
        apply_restore(plan_restore(repo, made, target, replace=True), rest=STOPPED)
        assert {p for p in store.paths("copy_new") if "/state/" in p or "/sources/" in p} == {
            f"{target.root}/state/0/0/4.changelog"
        }
        assert {
            path: data for path, data in contents(place / "orders").items() if path in wanted(place, made)
        } == wanted(place, made)


class TestReplacing:
    def test_kept_deleted_restored(self, place: Location, manifest: Manifest) -> None:
        there = stream(6)
        plant(place / "target", there | {".metadata.crc": b"h"})
        outcome = restore(place, manifest, replace=True)
        assert contents(place / "target") == wanted(place, manifest)
        assert outcome.kept == f"set-aside/orders/{outcome.plan_id}/checkpoint"
        # What is replaced is kept; what stays as it is need not be.
        differs = {path: data for path, data in there.items() if contents(place / "target").get(path) != data}
        kept = contents(place / "backups" / outcome.kept / "files")
        assert differs.items() <= kept.items() <= there.items()
        (record,) = repository(place).records()
        assert record["kept"] == outcome.kept

    def test_and_back_again(self, place: Location, manifest: Manifest) -> None:
        plant(place / "target", stream(6))
        restore(place, manifest, replace=True)
        outcome = undo(place / "target", repository(place), rest=STOPPED)
        assert (outcome.kind, outcome.already_done) == ("restore", False)
        assert contents(place / "target") == dict(sorted(stream(6).items()))
        assert Checkpoint.at(place / "target").resume_point().batch_id == 7

    def test_its_own_source(self, place: Location, manifest: Manifest) -> None:
        """The usual case: the checkpoint was damaged where it is."""
        (place / "orders").delete("state/0/1/5.changelog")
        outcome = restore(place, manifest, place / "orders", replace=True)
        assert contents(place / "orders") == wanted(place, manifest)
        assert outcome.kept is not None
        assert outcome.kept.startswith("set-aside/orders/")

    def test_what_is_broken_is_set_aside_too(self, place: Location, manifest: Manifest) -> None:
        broken = stream(6)
        del broken["state/0/0/7.changelog"]
        plant(place / "target", broken)
        outcome = restore(place, manifest, replace=True)
        assert outcome.kept == f"set-aside/orders/{outcome.plan_id}/checkpoint"
        assert contents(place / "target") == wanted(place, manifest)
        undo(place / "target", repository(place), rest=STOPPED)
        assert contents(place / "target") == dict(sorted(broken.items()))

    @pytest.mark.parametrize("newest", [0, 1, 2])
    def test_a_target_that_is_behind(self, place: Location, manifest: Manifest, newest: int) -> None:
        """Its seal stands below the batch that is restored: it has to be raised, and never be missing meanwhile."""
        plant(place / "target", stream(newest))
        looked: list[bool] = []

        def look(operation: str, path: str) -> None:
            if looked or operation == "create":
                looked.append(True)
            if len(looked) > 1 and operation in CHANGES and "/offsets/5" not in path:
                assert loud_seal(place / "target"), f"before {operation} of {path}"

        target, _ = watched(place / "target", look)
        apply_restore(plan_restore(repository(place), manifest, target, replace=True), rest=STOPPED)
        assert contents(place / "target") == wanted(place, manifest)

    def test_a_store_that_is_full_replaces_nothing(self, place: Location, manifest: Manifest) -> None:
        plant(place / "target", stream(6))

        def full(operation: str, path: str) -> None:
            if operation == "replace" and "/set-aside/" in path:
                raise StorageError("could not replace it: No space left on device")

        backups, _ = watched(place / "backups", full)
        plan = plan_restore(Repository.open(backups), manifest, place / "target", replace=True)
        with pytest.raises(StorageError, match="No space left"):
            apply_restore(plan, rest=STOPPED)
        # Nothing was changed, so it is not left sealed.
        assert contents(place / "target") == dict(sorted(stream(6).items()))
        restore(place, manifest, replace=True)
        assert contents(place / "target") == wanted(place, manifest)
