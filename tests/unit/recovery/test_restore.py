"""restore: carried out whole, stopped after every write and gone on with, refused without a trace."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.transfer import CopyProgress
from airflow_ckpt_provider.change.sealing import put_seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.seal import parse_seal
from airflow_ckpt_provider.errors import (
    DamagedBackupError,
    QueryNotStoppedError,
    RefusedError,
    SealedError,
    StorageError,
)
from airflow_ckpt_provider.recovery.restore.apply import RestoreOutcome, apply_restore, stop_plan_and_restore
from airflow_ckpt_provider.recovery.restore.plan import RestorePlan, plan_restore
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.memory_store import MemoryStore
from tests.stopped import STOPPED
from tests.unit.backup.backups import back_up, bury, entry_of, repository, stream, visible
from tests.unit.checkpoint.builders import Files, contents, logs, plant
from tests.unit.checkpoint.stores import WRITES, Killed, Life, forget_all, watched
from tests.unit.checkpoint.test_progress import seal_at

#: Requests that change a file.
CHANGES = WRITES - {"remove_empty_directories"}


@pytest.fixture
def manifest(place: Location) -> Manifest:
    """A backup of batches 3 and 4."""
    return back_up(place, stream(4), restorable_batches=2).manifest


class Generations(MemoryStore):
    """A store that copies by itself, and tells versions of a file apart by something else than its checksum."""

    copies_within = True

    def __init__(self, fs: MemoryFileSystem) -> None:
        super().__init__(fs)
        self.copied: list[str] = []

    def _identity(self, entry: dict[str, Any]) -> str | None:
        return f"generation:{self._checksum(entry)}"

    def copy(self, source: str, target: str, size: int) -> None:
        self.copied.append(target)
        super().copy(source, target, size)


def wanted(place: Location, manifest: Manifest, batch: int | None = None) -> Files:
    """The files that a restore leaves: the batch's, and no others."""
    entries = manifest.files_of(manifest.batch_id if batch is None else batch)
    return {e.path: place.read(f"backups/{e.object}") for e in sorted(entries, key=lambda e: e.path)}


def restore(place: Location, manifest: Manifest, target: Location | None = None, **options: Any) -> RestoreOutcome:
    plan = plan_restore(repository(place), manifest, target or place / "target", **options)
    return apply_restore(plan, rest=STOPPED, made_by="me", reason="a test")


def loud_seal(target: Location) -> bool:
    """Whether the newest file in ``offsets/`` is a seal, so that no Spark starts."""
    numbers = [b for p in target.walk("offsets") if (b := batch_id_of(p.partition("/")[2])) is not None]
    return bool(numbers) and parse_seal(target.read(f"offsets/{max(numbers)}"), batch_id=max(numbers)) is not None


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


def module_create(checkpoint: Checkpoint, repo: Repository) -> Any:
    from airflow_ckpt_provider.backup.create import create_backup

    return create_backup(checkpoint, repo)


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
        assert at_first_write[0] >= len({e.object for e in manifest.files_of(4)})


class TestOnlyWhatDiffers:
    """In place only what differs is deleted and written; that a file is the same is not believed but looked at."""

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


def but_notes(place: Location) -> Files:
    """All there is, but for the notes that somebody was at work, and on what."""
    notes = ("backups/claims/", "backups/changes/", "backups/plans/")
    return {path: data for path, data in contents(place).items() if not path.startswith(notes)}


class TestRefusedAtTheLastMoment:
    def refused(self, place: Location, plan: Any, kind: type[Exception], message: str, hint: str) -> Exception:
        before = but_notes(place)
        with pytest.raises(kind) as error:
            apply_restore(plan, rest=STOPPED)
        assert type(error.value) is kind
        assert (error.value.message, error.value.hint) == (message, hint)  # type: ignore[attr-defined]
        assert but_notes(place) == before
        return error.value

    def test_a_flipped_bit_in_the_backup(self, place: Location, manifest: Manifest) -> None:
        """In each file in turn: refused, named, nothing changed."""
        plant(place / "target", stream(6))
        plan = plan_restore(repository(place), manifest, place / "target", replace=True)
        for entry in {e.object: e for e in plan.entries}.values():
            right = place.read(f"backups/{entry.object}")
            plant(place / "backups", {entry.object: bytes([right[0] ^ 1]) + right[1:]})
            before = but_notes(place)
            with pytest.raises(DamagedBackupError) as error:
                apply_restore(plan, rest=STOPPED)
            assert f"its object {entry.object} has another content than was backed up" in error.value.findings[0]
            assert error.value.message.endswith("; nothing was changed")
            assert but_notes(place) == before
            plant(place / "backups", {entry.object: right})

    def test_the_target_moved_since_the_plan(self, place: Location, manifest: Manifest) -> None:
        plant(place / "target", stream(6))
        plan = plan_restore(repository(place), manifest, place / "target", replace=True)
        plant(place / "target", {"offsets/7": b"v1\n{}\n7"})
        self.refused(
            place, plan, RefusedError,
            f"{place / 'target'} is not any more what plan {plan.plan_id} was made for; nothing was changed",
            "stop the query, then make a new plan",
        )  # fmt: skip

    @pytest.mark.parametrize("replace", [False, True])
    def test_an_empty_target_was_filled_since_the_plan(
        self, place: Location, manifest: Manifest, replace: bool
    ) -> None:
        """Planned for an empty place, so nobody has agreed to lose anything: nothing may be deleted."""
        plan = plan_restore(repository(place), manifest, place / "target", replace=replace)
        plant(place / "target", stream(6))
        self.refused(
            place, plan, RefusedError,
            f"{place / 'target'} is not any more what plan {plan.plan_id} was made for; nothing was changed",
            "stop the query, then make a new plan",
        )  # fmt: skip

    def test_sealed_in_the_meantime(self, place: Location, manifest: Manifest) -> None:
        plant(place / "target", stream(6))
        plan = plan_restore(repository(place), manifest, place / "target", replace=True)
        plant(place / "target", seal_at(7))
        self.refused(
            place, plan, SealedError,
            f"{place / 'target'} was sealed by plan 7f3a (an upgrade) in the meantime", "let that plan finish first",
        )  # fmt: skip

    def test_a_query_writes_to_it(self, place: Location, manifest: Manifest) -> None:
        plant(place / "target", stream(6))
        plan = None

        def write(operation: str, path: str) -> None:
            if plan and operation == "walk" and path == target.root and store.count("walk") == 3:
                plant(place / "target", {"offsets/7": b"v1\n{}\n7"})

        target, store = watched(place / "target", write)
        plan = plan_restore(repository(place), manifest, target, replace=True)
        with pytest.raises(QueryNotStoppedError) as error:
            apply_restore(plan, rest=STOPPED)
        assert error.value.message == (
            f"{place / 'target'} is in use: offsets/7 changed within 0 s (1 changes in all), though a test says that the "
            "query is stopped"
        )
        assert str(error.value.hint).startswith("stop the query. Then (1) say so:")
        assert visible(place / "target") == dict(sorted((stream(6) | {"offsets/7": b"v1\n{}\n7"}).items()))

    def test_two_restores_at_once(self, place: Location, manifest: Manifest) -> None:
        """Both planned for the same empty place: the second one finds the first one's seal, or its files."""
        first = plan_restore(repository(place), manifest, place / "target")
        second = plan_restore(repository(place), manifest, place / "target")
        put_seal(place / "target", 5, plan_id=first.plan_id, reason=first.seal_reason, made_by="")
        self.refused(
            place, second, SealedError,
            f"{place / 'target'} was sealed by plan {first.plan_id} ({first.seal_reason}) in the meantime",
            "let that plan finish first",
        )  # fmt: skip
        apply_restore(first, rest=STOPPED)
        self.refused(
            place, second, RefusedError,
            f"{place / 'target'} is not any more what plan {second.plan_id} was made for; nothing was changed",
            "stop the query, then make a new plan",
        )  # fmt: skip


class TestStoppingTheQuery:
    """A query that writes to the target is stopped by the seal; what it does until then is kept too."""

    def run(self, place: Location, manifest: Manifest, target: Location, **rest: Any) -> RestoreOutcome:
        def plan(seal_id: str | None) -> RestorePlan:
            return plan_restore(repository(place), manifest, target, replace=True, seal_id=seal_id)

        rule = replace(STOPPED, **rest)
        return stop_plan_and_restore(target, repository(place), plan, stop_running=True, rest=rule)[1]

    def running(self, place: Location, manifest: Manifest, write: Callable[[int], None], **rest: Any) -> RestoreOutcome:
        """Restore over a stream that writes; ``write`` is called before each listing of all files from the seal on."""
        plant(place / "target", stream(6))
        walks = itertools.count(1)

        def act(operation: str, path: str) -> None:
            if operation == "walk" and loud_seal(place / "target"):
                write(next(walks))

        target, _ = watched(place / "target", act)
        return self.run(place, manifest, target, **rest)

    def test_it_finishes_its_batch_first(self, place: Location, manifest: Manifest) -> None:
        late = "state/0/0/8.changelog"

        def write(walk: int) -> None:
            if walk == 2:  # sealed at 7, batch 6 is done and its last file comes only now
                plant(place / "target", {late: b"late"})

        outcome = self.running(place, manifest, write)
        assert contents(place / "target") == wanted(place, manifest)
        assert outcome.kept is not None
        assert place.read(f"backups/{outcome.kept}/files/{late}") == b"late"
        undo(place / "target", repository(place), rest=STOPPED)
        assert contents(place / "target") == dict(sorted((stream(6) | {late: b"late"}).items()))

    def test_it_logs_a_batch_just_before_the_seal(self, place: Location, manifest: Manifest) -> None:
        plant(place / "target", stream(6))
        once = itertools.count()
        logged = logs(range(7, 8))["offsets/7"]

        def write(operation: str, path: str) -> None:
            if operation == "create" and path.endswith("/offsets/7") and next(once) == 0:
                plant(place / "target", {"offsets/7": logged})

        target, store = watched(place / "target", write)
        outcome = self.run(place, manifest, target)
        assert [p.rpartition("/")[2] for p in store.paths("create")][:2] == ["7", "8"]
        assert contents(place / "target") == wanted(place, manifest)
        assert place.read(f"backups/{outcome.kept}/files/offsets/7") == logged

    def test_it_does_not_stop(self, place: Location, manifest: Manifest) -> None:
        def write(walk: int) -> None:
            plant(place / "target", {f"state/0/0/{walk + 10}.changelog": b"more"})

        with pytest.raises(QueryNotStoppedError) as error:
            self.running(place, manifest, write, wait_at_most=0.0)
        assert error.value.message.startswith(
            f"{place / 'target'} is sealed, and it is still not known that its query is stopped: state/0/0/12.changelog changed"
        )
        assert "airflow-ckpt unseal" in str(error.value.hint)
        assert visible(place / "target").items() >= stream(6).items()
        assert loud_seal(place / "target")
        # When it is stopped by other means, the same command goes on.
        outcome = self.run(place, manifest, place / "target")
        assert contents(place / "target") == wanted(place, manifest)
        assert outcome.kept is not None

    def test_a_refusal_lifts_the_seal(self, place: Location, manifest: Manifest) -> None:
        plant(place / "target", stream(6))
        with pytest.raises(RefusedError, match="is not empty"):
            stop_plan_and_restore(
                place / "target",
                repository(place),
                lambda seal_id: plan_restore(repository(place), manifest, place / "target", seal_id=seal_id),
                stop_running=True,
                rest=STOPPED,
            )
        assert contents(place / "target") == dict(sorted(stream(6).items()))

    def test_killed_at_every_write(self, place: Location, manifest: Manifest) -> None:
        """Wherever it is stopped, also between the seal that stops the query and the seal of the restore."""
        backups, after = contents(place / "backups"), wanted(place, manifest)
        for writes in itertools.count():
            here = place / f"run{writes}"
            plant(here / "backups", backups)
            plant(here / "target", stream(2))
            life = Life(writes)
            target, _ = watched(here / "target", life.before)
            held, _ = watched(here / "backups", life.before)

            def plan(seal_id: str | None, at: Location = target, to: Location = held) -> RestorePlan:
                return plan_restore(Repository.open(to), manifest, at, replace=True, seal_id=seal_id)

            try:
                stop_plan_and_restore(target, Repository.open(held), plan, stop_running=True, rest=STOPPED)
                assert writes > 30
                break
            except Killed:
                bury(here)
            self.run(here, manifest, here / "target")
            assert contents(here / "target") == after
            undo(here / "target", repository(here), rest=STOPPED)
            assert contents(here / "target") == dict(sorted(stream(2).items()))
            forget_all()


class Case:
    """One restore to be killed and gone on with, each time from the same beginning.

    :param there: what is at the target.
    :param replace: whether that is to be replaced.
    """

    def __init__(self, place: Location, there: Files, *, replace: bool, newest: int = 3) -> None:
        self.origin = place / "origin"
        self.there = there
        self.replace = replace
        self.manifest = back_up(self.origin, stream(newest, partitions=1)).manifest
        self.repository = contents(self.origin / "backups")
        self.after = wanted(self.origin, self.manifest)

    def begin(self, here: Location) -> None:
        plant(here / "backups", self.repository)
        plant(here / "target", self.there)

    def run(self, here: Location, life: Life | None = None) -> RestoreOutcome:
        before = life.before if life else None
        backups, _ = watched(here / "backups", before)
        target, _ = watched(here / "target", before)
        plan = plan_restore(Repository.open(backups), self.manifest, target, replace=self.replace)
        return apply_restore(plan, rest=STOPPED, workers=4)

    def check_stopped(self, here: Location) -> str:
        """Untouched, sealed or finished; nothing else."""
        files = visible(here / "target")
        if files == dict(sorted(self.there.items())) and not loud_seal(here / "target"):
            return "untouched"
        if files == self.after:
            return "finished"
        assert loud_seal(here / "target"), sorted(files)
        return "sealed"

    def check_kept(self, here: Location, outcome: RestoreOutcome) -> None:
        """What was there can be had back, whenever the first attempt was stopped, and the outcome says where."""
        if not self.there:
            assert outcome.kept is None
            return
        if outcome.already_done:
            # Finished before: the audit record says what the outcome cannot any more.
            (record, *_) = repository(here).records()
            kept = record["kept"]
        else:
            kept = outcome.kept
        assert kept is not None
        aside = contents(here / "backups" / kept / "files")
        assert aside.items() <= self.there.items()
        stayed = {path: data for path, data in self.there.items() if path not in aside}
        assert stayed.items() <= self.after.items()
        undo(here / "target", repository(here), rest=STOPPED)
        assert contents(here / "target") == dict(sorted(self.there.items()))


CASES: dict[str, Callable[[Location], Case]] = {
    "into an empty place": lambda place: Case(place, {}, replace=False),
    "the first batch": lambda place: Case(place, {}, replace=False, newest=0),
    "replacing one that is ahead": lambda place: Case(place, stream(4, partitions=1), replace=True),
    "replacing one that is behind": lambda place: Case(place, stream(1, partitions=1), replace=True),
    "replacing a broken one": lambda place: Case(
        place,
        {p: d for p, d in stream(2, partitions=1).items() if p != "commits/2" and "/2.changelog" not in p},
        replace=True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_killed_at_every_write(place: Location, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every moment untouched, sealed or finished; the same call then ends as if it had never been stopped."""
    monkeypatch.setattr("airflow_ckpt_provider.backup.create._PAUSE", 0)
    case = CASES[name](place)
    seen: list[str] = []
    for writes in itertools.count():
        here = place / f"run{writes}"
        case.begin(here)
        try:
            outcome = case.run(here, Life(writes))
            break
        except Killed:
            seen.append(case.check_stopped(here))
        bury(here)
        again = case.run(here)
        assert contents(here / "target") == case.after
        assert again.already_done == (seen[-1] == "finished")
        case.check_kept(here, again)
    assert contents(here / "target") == case.after
    case.check_kept(here, outcome)
    # In this order, and all of them seen.
    assert [state for state, _ in itertools.groupby(seen)] == ["untouched", "sealed", "finished"]


@pytest.mark.parametrize("name", ["into an empty place", "replacing one that is ahead"])
def test_killed_twice(place: Location, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, gone on with, stopped again somewhere else."""
    monkeypatch.setattr("airflow_ckpt_provider.backup.create._PAUSE", 0)
    case = CASES[name](place)
    for first, second in itertools.product((1, 8, 20, 35), (1, 6, 16, 30)):
        here = place / f"run{first}-{second}"
        case.begin(here)
        for writes in (first, second):
            try:
                case.run(here, Life(writes))
            except Killed:
                case.check_stopped(here)
            bury(here)
        outcome = case.run(here)
        assert contents(here / "target") == case.after
        case.check_kept(here, outcome)


def test_killed_on_a_real_disk(tmp_path: Path) -> None:
    """Directories are real there: they come and go as well."""
    root = Location(LocalStore(), str(tmp_path))
    case = Case(root, stream(4, partitions=1), replace=True)
    for writes in (1, 30, 60, 80):
        here = root / f"run{writes}"
        case.begin(here)
        try:
            case.run(here, Life(writes))
        except Killed:
            case.check_stopped(here)
        bury(here)
        outcome = case.run(here)
        assert contents(here / "target") == case.after
        case.check_kept(here, outcome)
        assert not [d for d in Path(here.root, "target").rglob("*") if d.is_dir() and not any(d.iterdir())]


def test_going_on_needs_no_leave_to_replace_once_it_is_kept(place: Location, manifest: Manifest) -> None:
    """The first attempt had leave, and kept what was there; a retry without it goes on."""
    plant(place / "target", stream(6))
    life = Life(60)
    backups, _ = watched(place / "backups", life.before)
    target, _ = watched(place / "target", life.before)
    with pytest.raises(Killed):
        apply_restore(plan_restore(Repository.open(backups), manifest, target, replace=True), rest=STOPPED)
    bury(place)
    outcome = restore(place, manifest)
    assert outcome.kept == f"set-aside/orders/{outcome.plan_id}/checkpoint"
    assert contents(place / "target") == wanted(place, manifest)


def test_an_object_that_is_damaged_while_it_is_restored(place: Location, manifest: Manifest) -> None:
    """It was right when it was checked: stop, stay sealed, say so."""
    entry = entry_of(manifest, "state/0/1/5.changelog")

    def damage(operation: str, path: str) -> None:
        if operation == "create" and path.endswith("/metadata"):
            plant(place / "backups", {entry.object: b"x" * entry.size})

    target, _ = watched(place / "target", damage)
    plan = plan_restore(repository(place), manifest, target)
    right = place.read(f"backups/{entry.object}")
    with pytest.raises(StorageError) as error:
        apply_restore(plan, rest=STOPPED)
    assert error.value.message == (
        f"{entry.path}: its object {entry.object} has another content than was backed up; it was right when the restore began"
    )
    assert error.value.hint == "the seal stays; mend the store, then run the same command again"
    assert loud_seal(place / "target")
    plant(place / "backups", {entry.object: right})
    restore(place, manifest)
    assert contents(place / "target") == wanted(place, manifest)


@pytest.mark.parametrize(
    "damage", [{"stray": b"x"}, {"state/0/1/5.changelog": b"cut"}], ids=["one more", "another size"]
)
def test_somebody_else_writes_while_it_is_restored(place: Location, manifest: Manifest, damage: Files) -> None:
    def meddle(operation: str, path: str) -> None:
        if operation == "create" and path.endswith("/offsets/3"):
            plant(place / "target", damage)

    target, _ = watched(place / "target", meddle)
    plan = plan_restore(repository(place), manifest, target)
    with pytest.raises(StorageError) as error:
        apply_restore(plan, rest=STOPPED)
    (path,) = damage
    assert error.value.message == f"{place / 'target'}/{path} is not what was written (1 files differ)"
    assert error.value.hint == (
        f"it stays sealed by plan {plan.plan_id}; see who else writes there, then run the same command again"
    )
    assert loud_seal(place / "target")


def test_a_wrong_copy_by_the_store_is_noticed(place: Location) -> None:
    """Same size, other content: the store's checksum tells."""
    plant(place / "orders", stream())
    checkpoint, _ = watched(place / "orders", copies_within=True)
    repository(place)
    backups, _ = watched(place / "backups", copies_within=True)
    repo = Repository.open(backups)
    made = module_create(Checkpoint.at(checkpoint), repo).manifest
    entry = entry_of(made, "state/0/1/5.changelog")

    def corrupt(operation: str, path: str) -> None:
        if operation in ("create", "copy_new") and path.endswith("/offsets/3"):
            plant(place / "target", {entry.path: b"x" * entry.size})

    target, _ = watched(place / "target", corrupt, copies_within=True)
    message = f"{place / 'target'}/{entry.path} is not what {entry.object} holds: the store copied it wrongly"
    with pytest.raises(StorageError, match=f"^{re.escape(message)}"):
        apply_restore(plan_restore(repo, made, target))
    assert loud_seal(place / "target")
