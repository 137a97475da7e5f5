"""A stream whose backups rot, get lost, are verified in part, expired, pruned and repaired, in any order.

The model knows what every object is to hold, and so what is damaged in truth. What is known of that in the repository may be
less, but never wrong in these ways: what a verify has read and found damaged is named until it was read whole; no backup that
is made lists it; an expire keeps no damaged backup in the place of a whole one; and after all was read, what is not named is
restored byte for byte.
"""

from __future__ import annotations

import os

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
from airflow_ckpt_provider.errors import DamagedBackupError, RefusedError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.plan import plan_restore
from airflow_ckpt_provider.storage.encrypted_store import EncryptedStore
from airflow_ckpt_provider.storage.location import Location
from tests.unit.checkpoint.builders import Files, batch_metadata, commit_log, metadata, offsets_log, plant
from tests.unit.checkpoint.stores import forget_all, in_memory

PARTS = (None, ReadData(), ReadData(1, 3), ReadData(2, 3), ReadData(3, 3), ReadData(percent=20))


class Stream(RuleBasedStateMachine):
    """One stream, its backups, and what became of their objects."""

    @initialize(encrypted=st.booleans())
    def begin(self, encrypted: bool) -> None:
        self.base = in_memory()
        self.checkpoint = self.base / "orders"
        place = self.base / "backups"
        self.repository = Repository.open_or_create(
            Location(place.store, place.root, b"k" * 32) if encrypted else place
        )
        assert isinstance(self.repository.location.store, EncryptedStore) is encrypted
        self.files = place
        #: Backup -> what it held when it was made.
        self.held: dict[str, Files] = {}
        #: Objects that a verify has read, and that were damaged in truth at that moment.
        self.found: set[str] = set()
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

    @rule()
    def somebody_backs_up(self) -> None:
        known = read_damaged(self.repository.location, "orders").objects
        made = create_backup(Checkpoint.at(self.checkpoint), self.repository).manifest
        assert not {entry.object for entry in made.files} & known.keys()
        self.held[made.backup_id] = {entry.path: self.checkpoint.read(entry.path) for entry in made.files}

    @rule(choice=st.integers(0, 50))
    def an_object_rots(self, choice: int) -> None:
        paths = self.objects()
        path = paths[choice % len(paths)]
        if path in self.files.walk("objects"):
            content = self.files.read(path)
            self.files.replace(path, content[:-1] + bytes([content[-1] ^ 1]))

    @rule(choice=st.integers(0, 50), cut=st.booleans())
    def an_object_is_lost(self, choice: int, cut: bool) -> None:
        paths = self.objects()
        path = paths[choice % len(paths)]
        if not cut:
            self.files.delete(path)
        elif path in self.files.walk("objects"):
            self.files.replace(path, self.files.read(path)[:-1])

    @rule(choice=st.integers(0, 50))
    def a_disk_comes_back(self, choice: int) -> None:
        """The store has the right content again; nobody is told."""
        damaged = sorted(self.damaged())
        if damaged:
            path = damaged[choice % len(damaged)]
            self.repository.location.replace(path, self.right()[path])

    @rule(choice=st.integers(0, 50), read_data=st.sampled_from(PARTS))
    def somebody_verifies(self, choice: int, read_data: ReadData | None) -> None:
        manifests = self.manifests()
        manifest = manifests[choice % len(manifests)]
        truth, before = self.damaged(), set(self.found)
        report = verify_backup(self.repository, manifest, read_data=read_data, workers=1)
        assert report.learned
        read = {entry.object for entry in report.learned.contents.entries}
        listed = {entry.object for entry in manifest.files}
        named = {finding.object for finding in report.findings}
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
            assert {d.backup_id for d in stream.damaged} == self.not_whole(truth)

    def not_whole(self, damaged: set[str]) -> set[str]:
        """Backups that list one of some objects."""
        return {m.backup_id for m in self.manifests() if any(e.object in damaged for e in m.files)}

    @rule(last=st.integers(1, 3))
    def somebody_expires(self, last: int) -> None:
        before = [m.backup_id for m in reversed(self.manifests())]
        bad = self.not_whole(set(read_damaged(self.repository.location, "orders").objects))
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
        assert set(self.files.walk("objects")) <= set(self.objects())

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
            known = set(read_damaged(self.repository.location, "orders").objects)
            assert self.not_whole(known) == {m.backup_id for m in self.manifests()}

    @precondition(lambda self: self.held)
    @rule()
    def what_is_not_named_is_restored(self) -> None:
        verify_repository(self.repository, read_data=ReadData(), workers=1)
        self.found |= self.damaged()
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

    def teardown(self) -> None:
        if getattr(self, "held", None):
            self.what_is_not_named_is_restored()
        forget_all()


Stream.TestCase.settings = settings(
    max_examples=int(os.environ.get("MODEL_EXAMPLES", "4")),
    stateful_step_count=25,
    suppress_health_check=list(HealthCheck),
)
TestDamageModel = Stream.TestCase
