"""What forged records and manifests, two writers at once and wrong answers of a store may not do to contents in packs."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup import packing
from airflow_ckpt_provider.backup.claims import in_use
from airflow_ckpt_provider.backup.content_checks import check_contents
from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.migrate import apply_migrate, plan_migrate
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.objects import Objects
from airflow_ckpt_provider.backup.pack_reads import PACKS_AT_ONCE
from airflow_ckpt_provider.backup.prune import MaxUnused, apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository, raise_format
from airflow_ckpt_provider.backup.repository_repair import apply_objects_repair, plan_objects_repair
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.backup.verify_repository import verify_repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import DamagedBackupError, NoSuchBackupError, StorageError
from airflow_ckpt_provider.parallel import in_order
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.packs import content_path, file_of, moved_document, part_of, read_moved
from airflow_ckpt_provider.storage.store import Store, StoredFile
from tests.support.backups import back_up, files_in, stream
from tests.support.checkpoints import contents, plant
from tests.support.packs import mostly_garbage, packed_repository, packs_of, planted_pack, restorable
from tests.support.watched_stores import WatchedStore, forget_all, in_memory, watched

ALL = ReadData()


@pytest.fixture
def place() -> Iterator[Location]:
    yield in_memory()
    forget_all()


def test_a_copy_believes_no_record_of_what_was_moved(place: Location) -> None:
    source = packed_repository(place)
    made = back_up(place, stream()).manifest
    entry = max(made.files, key=lambda e: e.size)
    other = planted_pack(source, b"x" * entry.size)
    moved = {entry.object: content_path(other, entry.sha256 or "", 8, entry.size)}
    source.location.create("moved/orders/000001.json", json.dumps(moved_document(moved)).encode())
    target = Repository.open_or_create(place / "second", format=2)
    copy_backups(source, target, [made])
    assert restorable(target, target.manifest()) == files_in(made, place)


def test_a_copy_lists_nothing_of_a_pack_that_the_target_has_without_proof(place: Location) -> None:
    source = packed_repository(place)
    made = back_up(place, stream()).manifest
    target = Repository.open_or_create(place / "second", format=2)
    copy_backups(source, target, [made])
    first = next(e for e in made.files if e.path.startswith("sources/"))
    part = part_of(first.object)
    assert part
    wrong = first._replace(sha256="1" * 64, object=content_path(part.pack, "1" * 64, part.start, part.length))
    others = [e for e in made.files if e.object != first.object]
    forged = replace(made, backup_id="20300101T000000Z-b000004", files=(wrong, *others))
    source.location.create(forged.path, forged.to_document())
    with pytest.raises(DamagedBackupError):
        copy_backups(source, target, [source.manifest(forged.backup_id)])


def test_a_copy_knows_no_object_by_what_a_record_says(place: Location) -> None:
    """The record names another content, which the target has; the manifest has only a checksum of its store."""
    source = Repository.open_or_create(place / "backups")
    made = back_up(place, stream()).manifest
    source = raise_format(place / "backups", source, 2)
    entry = max(made.files, key=lambda e: e.size)
    content = source.location.read(entry.object)
    checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
    alone = f"objects/orders/aa/{checksum.replace(':', '-')}-{entry.size}"
    source.location.create(alone, content)
    other = bytes(reversed(content))
    pack = planted_pack(source, other)
    sha256 = hashlib.sha256(other).hexdigest()
    path = content_path(pack, sha256, 8, len(other))

    def listing(wrong: FileEntry, backup_id: str) -> Manifest:
        files = (*(e for e in made.files if e.path != entry.path), wrong)
        return replace(made, files=files, backup_id=backup_id)

    first = listing(entry._replace(sha256=sha256, object=path), "20290101T000000Z-b000004")
    second = listing(entry._replace(sha256=None, checksum=checksum, object=alone), "20300101T000000Z-b000004")
    for each in (first, second):
        source.location.create(each.path, each.to_document())
    target = Repository.open_or_create(place / "second", format=2)
    copy_backups(source, target, [source.manifest(first.backup_id)])
    source.location.create("moved/orders/000001.json", json.dumps(moved_document({alone: path})).encode())
    copy_backups(source, target, [source.manifest(second.backup_id)])
    copied = next(e for e in target.manifest(second.backup_id).files if e.path == entry.path)
    assert target.location.read(copied.object) == content


def test_two_repairs_of_one_pack_at_once_lose_nothing_of_each_other(place: Location) -> None:
    repository = packed_repository(place)
    made = back_up(place, stream()).manifest
    (pack,) = packs_of(repository)
    right = repository.location.read(pack)
    wrong = [e for e in made.files if e.size > 5][:2]
    data = bytearray(right)
    for entry in wrong:
        part = part_of(entry.object)
        assert part is not None
        data[part.start] ^= 1
    repository.location.replace(pack, bytes(data))
    record_verification(repository, verify_backup(repository, made, read_data=ALL))
    # Each has another source, in which one of the two contents is.
    one, other = in_memory(), in_memory()
    for source, entry in zip((one, other), wrong, strict=True):
        source.create(entry.path, (place / "orders").read(entry.path))
    first, second = (plan_objects_repair(repository, source) for source in (one, other))
    assert len(first.rebuilt) == len(second.rebuilt) == 1
    begun = False

    def meanwhile(operation: str, path: str) -> None:
        nonlocal begun
        if not begun and operation.startswith("replace") and path.endswith(".pack"):
            begun = True
            apply_objects_repair(repository, other, second)

    apply_objects_repair(Repository.open(watched(place / "backups", meanwhile)[0]), one, first)
    assert begun
    assert repository.location.read(pack) == right
    assert verify_backup(repository, made, read_data=ALL).ok


@pytest.mark.format_1("its first backup is of format 1")
@pytest.mark.parametrize("wrong", ["length", "hash"])
def test_a_new_backup_lists_no_content_that_a_record_gives_another_length_or_hash(place: Location, wrong: str) -> None:
    repository = Repository.open_or_create(place / "backups")
    made = back_up(place, stream()).manifest
    repository = raise_format(place / "backups", repository, 2)
    entry = max(made.files, key=lambda e: e.size)
    content = place.read(f"backups/{entry.object}")
    alone = f"objects/orders/aa/etag-0-{entry.size}"  # its name says nothing of its content
    repository.location.create(alone, content)
    files = (*(e for e in made.files if e.path != entry.path), entry._replace(object=alone))
    newest = replace(made, files=files, backup_id="20300101T000000Z-b000004")
    repository.location.create(newest.path, newest.to_document())
    other = content + b"x" if wrong == "length" else bytes(reversed(content))
    pack = planted_pack(repository, other)
    to = content_path(pack, hashlib.sha256(other).hexdigest(), 8, len(other))
    repository.location.create("moved/orders/000001.json", json.dumps(moved_document({alone: to})).encode())
    after = back_up(place, stream(5)).manifest
    assert verify_backup(repository, repository.manifest(after.backup_id), read_data=ALL).ok
    assert restorable(repository, after) == {e.path: (place / "orders").read(e.path) for e in after.files}


def test_what_no_hash_is_known_of_is_read_where_its_manifest_says(place: Location) -> None:
    repository = packed_repository(place)
    made = back_up(place, stream()).manifest
    entry = max(made.files, key=lambda e: e.size)
    content = files_in(made, place)[entry.path]
    alone = "objects/orders/aa/of-a-store-without-checksums"
    repository.location.create(alone, content)
    files = tuple(
        e if e.path != entry.path else e._replace(object=alone, sha256=None, checksum=None) for e in made.files
    )
    newest = replace(made, files=files, backup_id="20300101T000000Z-b000004")
    repository.location.create(newest.path, newest.to_document())
    other = bytes(reversed(content))
    to = content_path(planted_pack(repository, other), hashlib.sha256(other).hexdigest(), 8, len(other))
    repository.location.create("moved/orders/000001.json", json.dumps(moved_document({alone: to})).encode())
    apply_restore(plan_restore(repository, repository.manifest(newest.backup_id), place / "target"))
    assert (place / "target").read(entry.path) == content


def test_a_stream_whose_name_has_what_names_of_packs_have(place: Location) -> None:
    repository = Repository.open_or_create(place / "backups")
    plant(place / "orders", stream())
    made = create_backup(Checkpoint.at(place / "orders"), repository, name="orders.pack").manifest
    apply_migrate(place / "backups", plan_migrate(repository))
    repository = Repository.open(place / "backups")
    for plan in (plan_migrate(repository), plan_prune(repository)):
        assert (plan.findings, plan.steps) == ((), ())
    assert verify_backup(repository, made, read_data=ALL).ok


class AnotherPart(WatchedStore):
    """A store that answers requests for a part of a pack with another one, as through a proxy that is broken.

    :param answer: given the whole file, and the beginning and the length that were asked for.
    """

    def __init__(self, inner: Store, answer: Callable[[bytes, int, int], bytes]) -> None:
        super().__init__(inner)
        self.answer = answer
        self.reads_parts = True

    def read_part(self, path: str, start: int, length: int) -> bytes:
        return self.answer(self.inner.read(path), start, length)


@pytest.mark.parametrize(
    "answer",
    [lambda data, start, length: data, lambda data, start, length: data[start : start + length - 1], lambda *_: b""],
    ids=["the whole file", "fewer bytes", "nothing"],
)
def test_an_answer_with_another_part_is_no_damage(place: Location, answer: Callable[[bytes, int, int], bytes]) -> None:
    repository = packed_repository(place)
    made = back_up(place, {**stream(), **{f"_schema/{n}": bytes([n]) * 5000 for n in range(8)}}).manifest
    seen = repository.at(replace(place / "backups", store=AnotherPart(place.store, answer)))
    entries = [e for e in made.files if e.path in ("_schema/3", "_schema/5")]
    found = check_contents(seen, entries)
    assert [(damage.problem, damage.is_damage) for damage in found] == [("unreadable", False)] * 2
    with pytest.raises(StorageError, match="and the store answered with"):
        seen.location.read(entries[0].object)


def test_a_content_is_read_where_it_was_moved_to_if_its_old_pack_rots(place: Location) -> None:
    """That pack is still there: its prune waits for somebody. Logs are read one by one."""
    repository, made = mostly_garbage(place)
    right = files_in(made, place)
    with in_use(repository, made, what="restore", made_by="somebody"):
        apply_prune(repository, plan_prune(repository))
    moved = read_moved(repository.location, "orders").paths
    for pack in {file_of(path) for path in moved}:
        data = bytearray(repository.location.read(pack))
        data[8 : len(data) // 2] = bytes(len(data) // 2 - 8)
        repository.location.replace(pack, bytes(data))
    assert verify_backup(repository, made, read_data=ALL).ok
    assert restorable(repository, made) == right
    local = replace(place / "backups", store=AnotherPart(place.store, lambda data, start, n: data[start : start + n]))
    apply_restore(plan_restore(repository.at(local), made, place / "target"))
    assert contents(place / "target") == right


def test_what_was_packed_is_not_read_again_where_the_stream_moves(place: Location, no_pauses: None) -> None:
    """However often the checkpoint is listed again: else a backup that takes longer than a file lives would never end."""
    packed_repository(place)
    plant(place / "orders", {**stream(), **{f"_schema/{n:03}": bytes([n]) * 5000 for n in range(100)}})
    left = {f"_schema/{n:03}" for n in range(0, 100, 10)}

    def meanwhile(operation: str, path: str) -> None:
        name = "_schema/" + path.rpartition("/")[2]
        if operation == "read" and "/_schema/" in path and name in left:
            left.remove(name)
            (place / "orders").replace(name, b"replaced, and of another size")

    seen, store = watched(place / "orders", meanwhile)
    made = create_backup(Checkpoint.at(seen), Repository.open(place / "backups"), workers=1).manifest
    assert not left
    reads = Counter(path for path in store.paths("read") if "/_schema/" in path)
    assert sum(reads.values()) <= 100 + 10 + 1
    assert restorable(Repository.open(place / "backups"), made) == {
        e.path: (place / "orders").read(e.path) for e in made.files
    }


@pytest.mark.parametrize(("key", "most"), [(None, 4), (bytes(range(32)), 5)], ids=["plain", "encrypted"])
def test_a_backup_holds_few_packs_where_the_store_is_slow(
    tmp_path: Path, key: bytes | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 4 * 1024**2
    monkeypatch.setitem(packing.Packer.__init__.__kwdefaults__, "pack_size", size)
    slow = threading.Event()

    def before(operation: str, path: str) -> None:
        if operation == "create" and path.endswith(".pack"):
            slow.wait(0.1)

    place = Location(WatchedStore(LocalStore(), before), str(tmp_path), key)
    objects = Objects(Repository.open_or_create(place, format=2).location, "orders", vouched=(), listed=(), packs=True)

    def write(number: int) -> None:
        content = number.to_bytes(4, "big") * 4096
        objects.write(StoredFile(f"_schema/{number}", len(content)), content)

    objects.repository.create("first", b"so that what is imported to encrypt is in memory")
    tracemalloc.start()
    in_order(write, range(3000), lambda _: None, workers=16)
    list(objects.settled(()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(packs_of(Repository.open(place))) > 8
    assert peak < most * size, "with what the threads have just read, and paths"


def test_a_restore_reads_few_packs_at_once_where_each_is_read_as_a_whole(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an encrypted pack nothing is read without the rest: 64 at once would take gigabytes."""
    monkeypatch.setitem(packing.Packer.__init__.__kwdefaults__, "pack_size", 1)  # a file each
    key = bytes(range(32))
    plant(place / "orders", {**stream(), **{f"_schema/{n}": bytes([n]) * 500 for n in range(60)}})
    made = create_backup(Checkpoint.at(place / "orders"), packed_repository(place, key=key)).manifest
    under_way, most, lock = 0, 0, threading.Lock()

    class Counted(WatchedStore):
        def read(self, path: str) -> bytes:
            nonlocal under_way, most
            if not path.endswith(".pack"):
                return super().read(path)
            with lock:
                under_way += 1
                most = max(most, under_way)
            time.sleep(0.01)  # a read that takes time: without it, reads without a limit might not meet either
            try:
                return super().read(path)
            finally:
                with lock:
                    under_way -= 1

    repository = Repository.open(replace(place / "backups", store=Counted(place.store), key=key))
    apply_restore(plan_restore(repository, made, place / "target"))
    assert most <= PACKS_AT_ONCE
    assert contents(place / "target") == {e.path: (place / "orders").read(e.path) for e in made.files}


def test_records_of_moved_contents_are_read_at_once(place: Location) -> None:
    """A backup waits for all of them, and there may be one for each prune since the oldest backup."""
    repository = packed_repository(place)
    made = back_up(place, stream()).manifest
    for number in range(1, 5):
        to = content_path(planted_pack(repository, b"x" * 100 * number), "1" * 64, 8, 10)
        old = content_path(file_of(made.files[0].object), "1" * 64, 8 + number, 10)
        record = json.dumps(moved_document({old: to})).encode()
        repository.location.create(f"moved/orders/{number:06d}.json", record)
    together = threading.Barrier(4, timeout=30)

    def before(operation: str, path: str) -> None:
        if operation == "read" and "/moved/" in path:
            together.wait()

    moved = read_moved(watched(place / "backups", before)[0], "orders")
    assert len(moved.records) == len(moved.paths) == 4


@pytest.mark.parametrize("repository_format", [1, 2])
@pytest.mark.parametrize("of_all", [True, False])
def test_a_backup_that_is_removed_while_it_is_verified_is_not_damaged(
    place: Location, repository_format: int, of_all: bool
) -> None:
    repository = Repository.open_or_create(place / "backups", format=repository_format)
    made = back_up(place, {**stream(4), **{f"_schema/{n}": bytes([n]) * 5000 for n in range(8)}}).manifest
    for n in range(8):
        (place / "orders").delete(f"_schema/{n}")
    back_up(place, stream(6))
    begun = False

    def meanwhile(operation: str, path: str) -> None:
        nonlocal begun
        if not begun and operation == "read" and "/objects/" in path:
            begun = True
            apply_expire(repository, plan_expire(repository, Policy(last=1)))
            apply_prune(repository, plan_prune(repository, max_unused=MaxUnused(0)))

    seen = Repository.open(watched(place / "backups", meanwhile)[0])
    if of_all:
        assert verify_repository(seen, read_data=ALL, workers=1).ok
    else:
        with pytest.raises(NoSuchBackupError, match="while it was verified"):
            verify_backup(seen, made, read_data=ALL, workers=1)
    assert begun
    assert read_damaged(repository.location, "orders").objects == {}


def test_no_more_is_read_of_a_pack_than_its_name_says(place: Location) -> None:
    """Somebody has appended more than fits into memory."""
    repository = packed_repository(place)
    made = back_up(place, stream()).manifest
    (pack,) = packs_of(repository)
    right = repository.location.read(pack)
    part = part_of(max(made.files, key=lambda e: e.size).object)
    assert part is not None
    wrong = bytearray(right + bytes(1000 * len(right)))
    wrong[part.start] ^= 1
    repository.location.replace(pack, bytes(wrong))

    class NoWholePack(WatchedStore):
        reads_parts = True

        def read(self, path: str) -> bytes:
            assert not path.endswith(".pack"), "it is read as a whole"
            return super().read(path)

        def read_part(self, path: str, start: int, length: int) -> bytes:
            assert start + length <= len(right)
            return self.inner.read(path)[start : start + length]

    seen = Repository.open(replace(place / "backups", store=NoWholePack(place.store)))
    report = verify_backup(seen, made, read_data=ALL)
    assert {damage.problem for damage in report.findings} == {"content", "size"}
    record_verification(seen, report)
    back_up(place, stream(5))
    apply_prune(seen, plan_prune(seen, max_unused=MaxUnused(0)))
    apply_objects_repair(seen, place / "orders", plan_objects_repair(seen, place / "orders"))
    assert repository.location.read(pack) == right


def test_an_encrypted_pack_that_has_grown_is_not_read(tmp_path: Path) -> None:
    """It can be decrypted as a whole only: one of a gigabyte, by its name a few kilobytes, would fill the memory."""
    place = open_location(str(tmp_path))
    repository = packed_repository(place, key=os.urandom(32))
    plant(place / "orders", stream(6))
    made = create_backup(Checkpoint.at(place / "orders"), repository).manifest
    (pack,) = packs_of(repository)
    os.truncate(tmp_path / "backups" / pack, 1024**3)
    tracemalloc.start()
    try:
        report = verify_backup(repository, made, read_data=ALL)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not report.ok
    assert most < 50 * 1024**2
    with pytest.raises(DamagedBackupError):
        apply_restore(plan_restore(repository, made, place / "target"))
