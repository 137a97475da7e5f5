"""A stream whose backups rot, get lost, are verified in part, expired, pruned, repaired and copied, in any order.

Clocks of those who work on them differ by up to an hour. Each may be killed before any of its requests, or stand still there
while others continue, and then continue.

The model knows what every object is to hold, and so what is damaged in truth. What is known of that in the repository may be
less, but never wrong in these ways: what a verify has read and found damaged is named until it was read whole; no backup that
is made lists it; an expire keeps no damaged backup in the place of a whole one; and after all was read, what is not named is
restored byte for byte, from a copy too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from airflow_ckpt_provider.backup import lease
from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.repository_repair import apply_objects_repair, plan_objects_repair
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.backup.verify_repository import verify_repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import CkptError, DamagedBackupError, RefusedError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.encrypted_store import EncryptedStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of, pack_size, read_moved
from airflow_ckpt_provider.storage.signatures import Signing, public_key
from tests.support.checkpoints import Files, batch_metadata, commit_log, metadata, offsets_log, plant
from tests.support.one_by_one import one_by_one
from tests.support.packs import cut_off, rot
from tests.support.watched_stores import Killed, WatchedStore, forget_all, in_memory

SECRET = b"s" * 32
PARTS = (None, ReadData(), ReadData(1, 3), ReadData(2, 3), ReadData(3, 3), ReadData(percent=20))


#: Work of one process, and what a process in its place does while it is suspended; ``None``: it is killed.
WORK = ("backup", "verify", "verify all", "expire", "prune", "repair", "copy")
MEANWHILE = (None, None, "backup", "verify", "prune", "repair", "copy", "rot", "batch and backup")


class DifferentClock(datetime):
    """A clock that differs from that of the store."""

    by = timedelta(0)

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + cls.by


class Stream(RuleBasedStateMachine):
    """One stream, its backups, and what became of their objects.

    :param where: makes a new, empty place.
    """

    def __init__(self, where: Callable[[], Location] = in_memory) -> None:
        super().__init__()
        self.where = where
        self.patches = pytest.MonkeyPatch()

    @initialize(kind=st.sampled_from(("plain", "encrypted", "signed")))
    def begin(self, kind: str) -> None:
        for name, module in list(sys.modules.items()):
            if name.startswith("airflow_ckpt_provider.backup.") and getattr(module, "datetime", None) is datetime:
                self.patches.setattr(module, "datetime", DifferentClock)
        # One request at a time for each, or what happens would depend on Python's threads.
        one_by_one(self.patches)
        self.patches.setattr(lease, "_RENEW_EVERY", 10_000.0)
        DifferentClock.by = timedelta(0)
        self.base = self.where()
        self.checkpoint = self.base / "orders"
        self.files = self.base / "backups"
        if kind == "encrypted":
            place, second = (replace(self.base / name, key=b"k" * 32) for name in ("backups", "second"))
        elif kind == "signed":
            signing = Signing(SECRET, (public_key(SECRET),))
            place, second = (replace(self.base / name, signing=signing) for name in ("backups", "second"))
        else:
            place, second = self.files, self.base / "second"
        self.repository, self.second = Repository.open_or_create(place), Repository.open_or_create(second)
        assert isinstance(self.repository.location.store, EncryptedStore) is (kind == "encrypted")
        #: Backup -> what it held when it was made.
        self.held: dict[str, Files] = {}
        #: Objects that a verify has read, and that were damaged in truth at that moment.
        self.found: set[str] = set()
        #: What the store had of each object at first, by its path.
        self.originals: dict[str, bytes] = {}
        self.newest = -1
        self.the_stream_goes_on()
        self.somebody_backs_up()

    def manifests(self) -> list[Manifest]:
        return self.repository.backups("orders")

    def objects(self) -> list[str]:
        return sorted({entry.object for manifest in self.manifests() for entry in manifest.files})

    def right(self) -> dict[str, bytes]:
        """What every object is to hold, that a backup lists."""
        return {e.object: self.held[m.backup_id][e.path] for m in self.manifests() for e in m.files}

    def is_whole(self, path: str, content: bytes) -> bool:
        try:
            return self.repository.location.read(path) == content
        except Exception:  # gone, or not to be decrypted
            return False

    def damaged(self) -> set[str]:
        """What is damaged in truth."""
        return {path for path, content in self.right().items() if not self.is_whole(path, content)}

    @rule()
    def the_stream_goes_on(self) -> None:
        self.newest += 1
        n = self.newest
        plant(
            self.checkpoint,
            {
                "metadata": metadata(),
                # Few contents, so that an object is shared by batches far apart.
                f"offsets/{n}": offsets_log(str(n % 3), metadata=batch_metadata(n % 3)),
                f"commits/{n}": commit_log(watermark=n % 2),
            },
        )

    @rule(hours=st.sampled_from((-1, -0.5, 0, 0.5, 1)))
    def the_next_clock_differs(self, hours: float) -> None:
        DifferentClock.by = timedelta(hours=hours)

    def work(self, kind: str, repository: Repository, choice: int) -> None:
        """What a process does."""
        manifests = repository.backups("orders")
        if kind == "backup":
            create_backup(Checkpoint.at(self.checkpoint), repository, workers=1)
        elif kind == "verify":
            report = verify_backup(repository, manifests[choice % len(manifests)], read_data=ReadData(), workers=1)
            record_verification(repository, report)
        elif kind == "verify all":
            verify_repository(repository, name="orders", read_data=PARTS[choice % len(PARTS)], workers=1)
        elif kind == "expire":
            apply_expire(repository, plan_expire(repository, Policy(last=1 + choice % 3)))
        elif kind == "prune":
            apply_prune(repository, plan_prune(repository))
        elif kind == "repair":
            plan = plan_objects_repair(repository, self.checkpoint, name="orders")
            apply_objects_repair(repository, self.checkpoint, plan)
        elif kind == "copy":
            copy_backups(repository, self.second, manifests[choice % len(manifests) :], workers=1)
        elif kind == "rot":
            self.an_object_rots(choice)
        else:
            self.the_stream_goes_on()
            self.work("backup", repository, choice)

    @rule(
        kind=st.sampled_from(WORK),
        at=st.integers(0, 60),
        meanwhile=st.sampled_from(MEANWHILE),
        choice=st.integers(0, 50),
    )
    def one_is_killed_or_stands_still(self, kind: str, at: int, meanwhile: str | None, choice: int) -> None:
        known_before = self.known_as_damaged()
        there = [m.backup_id for m in reversed(self.manifests())]
        before_it, requests = set(self.held), 0

        def before(operation: str, path: str) -> None:
            nonlocal requests
            requests += 1
            if requests != at + 1:
                return
            if meanwhile is None:
                raise Killed(f"before {operation} of {path}")
            self.run_without_leases(meanwhile, choice)

        location = self.repository.location
        seen = replace(location, store=WatchedStore(location.store, before))
        with suppress(CkptError, FileNotFoundError, Killed):
            self.work(kind, self.repository.at(seen), choice)
        self.forget_leases()
        self.see_what_was_made()
        self.found &= self.damaged()
        left = {m.backup_id for m in self.manifests()}
        made = sorted(set(self.held) - before_it, reverse=True)
        known_after = self.known_as_damaged()

        def whole(damaged: set[str]) -> list[str]:
            return [backup_id for backup_id in (*made, *there) if backup_id not in damaged]

        if kind != "expire":
            assert left >= set(whole(known_before | known_after))
            return
        # It was planned before or after what was done meanwhile, and follows its plan; it sees again only that a whole one stays.
        last = 1 + choice % 3
        kept = [set(whole(known)[:last]) for known in (known_before, known_after)]
        assert any(left >= each for each in kept), "a damaged one has the place of a whole one"
        under_way = next(([backup_id] for backup_id in there if backup_id not in left), [])
        assert not whole(known_after) or {*left, *under_way} & set(whole(known_after)), (
            "it looks before each that it removes"
        )

    def known_as_damaged(self) -> set[str]:
        """Backups that are known to be damaged."""
        return self.not_whole(set(read_damaged(self.repository.location, "orders").objects))

    def run_without_leases(self, kind: str, choice: int) -> None:
        """Work of another process; the leases are a courtesy, which keeps no two apart when one is suspended."""
        self.forget_leases()
        with suppress(CkptError, FileNotFoundError):
            self.work(kind, self.repository, choice)
        self.see_what_was_made()

    def forget_leases(self) -> None:
        for path in self.files.walk("running"):
            self.files.delete(path)

    def see_what_was_made(self) -> None:
        """Backups that were finished by whoever was suspended or was killed afterwards."""
        for manifest in self.manifests():
            if manifest.backup_id not in self.held:
                self.held[manifest.backup_id] = {e.path: self.checkpoint.read(e.path) for e in manifest.files}

    @rule()
    def somebody_copies(self) -> None:
        bad = self.not_whole(self.damaged())
        for manifest in self.manifests():
            if manifest.backup_id not in bad:
                copy_backups(self.repository, self.second, [manifest], workers=1)
                assert self.second.read_manifest("orders", manifest.backup_id).created == manifest.created

    @rule()
    def somebody_backs_up(self) -> None:
        known = read_damaged(self.repository.location, "orders").objects
        made = create_backup(Checkpoint.at(self.checkpoint), self.repository).manifest
        assert not {path for entry in made.files for path in (entry.object, file_of(entry.object))} & known.keys()
        assert made.backup_id == max(m.backup_id for m in self.manifests()), "the latest, whatever the clock says"
        self.held[made.backup_id] = {entry.path: self.checkpoint.read(entry.path) for entry in made.files}

    @rule(choice=st.integers(0, 50))
    def an_object_rots(self, choice: int) -> None:
        paths = self.objects()
        path = paths[choice % len(paths)]
        self.see_files()
        rot(self.files, path, encrypted=isinstance(self.repository.location.store, EncryptedStore))

    def see_files(self) -> None:
        """Remember what the store has of each object that it has for the first time, for a disk that comes back."""
        for path in self.files.walk("objects"):
            if path not in self.originals:
                self.originals[path] = self.files.read(path)

    @rule(choice=st.integers(0, 50), cut=st.booleans())
    def an_object_is_lost(self, choice: int, cut: bool) -> None:
        paths = self.objects()
        path = paths[choice % len(paths)]
        self.see_files()
        if not cut:
            self.files.delete(file_of(path))
        else:
            cut_off(self.files, path)

    @rule(choice=st.integers(0, 50))
    def a_disk_comes_back(self, choice: int) -> None:
        """The store has the right content again; nobody is told."""
        damaged = sorted(self.damaged())
        if damaged:
            path = damaged[choice % len(damaged)]
            if file_of(path) in self.originals:
                self.files.replace(file_of(path), self.originals[file_of(path)])

    @rule(choice=st.integers(0, 50), read_data=st.sampled_from(PARTS))
    def somebody_verifies(self, choice: int, read_data: ReadData | None) -> None:
        manifests = self.manifests()
        manifest = manifests[choice % len(manifests)]
        truth, before = self.damaged(), set(self.found)
        report = verify_backup(self.repository, manifest, read_data=read_data, workers=1)
        assert report.learned
        read = {entry.object for entry in report.learned.contents.entries}
        listed = {entry.object for entry in manifest.files}
        # What is wrong with a pack as such is named too, and keeps nobody from restoring what is in it.
        named = {finding.object for finding in report.findings if pack_size(finding.object) is None}
        assert (truth & read) | (before & listed - read) <= named, "all that was read, and all that is known"
        if read_data == ReadData():
            assert named == truth & listed, "and nothing else, where all was read"
        record_verification(self.repository, report)
        self.found = (self.found - (read - truth)) | (named & truth)

    @rule(read_data=st.sampled_from(PARTS))
    def somebody_verifies_all(self, read_data: ReadData | None) -> None:
        truth = self.damaged()
        known = set(read_damaged(self.repository.location, "orders").objects)
        (stream,) = verify_repository(self.repository, name="orders", read_data=read_data, workers=1).streams
        now = set(read_damaged(self.repository.location, "orders").objects)
        if read_data:
            assert now & set(self.objects()) == (known | now) & truth, "what was known is read, and whole or not"
            self.found = self.found & truth | now & truth
        else:
            self.found |= now & truth
        if read_data == ReadData():
            assert now >= truth
            bad = {d.backup_id for d in stream.damaged if not all(p.startswith("pack ") for p in d.problems)}
            assert bad == self.not_whole(truth)

    def not_whole(self, damaged: set[str]) -> set[str]:
        """Backups that list one of some objects."""
        return {m.backup_id for m in self.manifests() if any(e.object in damaged for e in m.files)}

    @rule(last=st.integers(1, 3))
    def somebody_expires(self, last: int) -> None:
        before = [m.backup_id for m in reversed(self.manifests())]
        bad = self.known_as_damaged()
        whole = [backup_id for backup_id in before if backup_id not in bad]
        try:
            plan = plan_expire(self.repository, Policy(last=last))
        except RefusedError as e:
            refused = e.message
        else:
            refused = ""
        if refused:
            assert not whole, refused
            assert "no backup of orders is known to be whole" in refused
            assert [m.backup_id for m in reversed(self.manifests())] == before
            return
        verified = {d.backup.backup_id for d in plan.decisions if "newest verified" in d.reasons}
        assert not verified & bad
        apply_expire(self.repository, plan)
        left = {m.backup_id for m in self.manifests()}
        assert left >= set(whole[:last]), "a damaged one has the place of a whole one"
        assert left & set(whole) or not whole
        if len(left) < len(before):
            assert left & set(whole)

    @rule()
    def somebody_prunes(self) -> None:
        apply_prune(self.repository, plan_prune(self.repository))
        objects, there = self.objects(), self.files.walk("objects")
        moved = read_moved(self.repository.location, "orders")
        assert set(there) <= {file_of(path) for each in objects for path in (each, moved.now(each))}

    @rule()
    def somebody_repairs(self) -> None:
        truth, right = self.damaged(), self.right()
        known = set(read_damaged(self.repository.location, "orders").objects)
        plan = plan_objects_repair(self.repository, self.checkpoint, name="orders")
        apply_objects_repair(self.repository, self.checkpoint, plan)
        for each in plan.rebuilt:
            assert self.is_whole(each.entry.object, right[each.entry.object])
        tried = {r.entry.object for r in plan.rebuilt} | {path for path, _ in plan.lost}
        assert known & set(self.objects()) & truth <= tried
        assert {path for path, _ in plan.lost} <= truth
        self.found &= self.damaged()

    @invariant()
    def what_was_found_is_named(self) -> None:
        if not self.held:
            return
        self.found &= set(self.objects())
        check = check_repository(self.repository)
        bad = self.not_whole(self.found)
        assert {d.backup_id for d in check.damaged} >= bad
        try:
            assert self.repository.manifest().backup_id not in bad
        except DamagedBackupError:
            assert self.known_as_damaged() == {m.backup_id for m in self.manifests()}

    @precondition(lambda self: self.held)
    @rule()
    def what_is_not_named_is_restored(self) -> None:
        verify_repository(self.repository, read_data=ReadData(), workers=1)
        self.found = self.damaged()  # all was read: nothing else is known to be damaged
        bad = {d.backup_id for d in check_repository(self.repository).damaged}
        for number, manifest in enumerate(self.manifests()):
            target = self.base / f"target{number}-{os.urandom(4).hex()}"
            if manifest.backup_id in bad:
                try:
                    apply_restore(plan_restore(self.repository, manifest, target), workers=1)
                except DamagedBackupError:
                    continue
                raise AssertionError(f"{manifest.backup_id} is damaged, and was restored")
            apply_restore(plan_restore(self.repository, manifest, target), workers=1)
            assert {p: target.read(p) for p in target.walk()} == self.held[manifest.backup_id]

    def copies_are_restored(self) -> None:
        for manifest in self.second.backups("orders") if "orders" in self.second.names() else []:
            target = self.base / f"copied-{manifest.backup_id}"
            apply_restore(plan_restore(self.second, manifest, target), workers=1)
            assert {p: target.read(p) for p in target.walk()} == self.held[manifest.backup_id]

    def teardown(self) -> None:
        try:
            if getattr(self, "held", None):
                self.what_is_not_named_is_restored()
                self.copies_are_restored()
        finally:
            self.patches.undo()
            forget_all()
