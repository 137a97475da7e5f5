from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup import manifest as manifests
from airflow_ckpt_provider.backup import packing, prune, repack
from airflow_ckpt_provider.backup import repository as repositories
from airflow_ckpt_provider.backup.claims import in_use
from airflow_ckpt_provider.backup.content_checks import check_contents
from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.engine import OnFile, OnStored, Threads
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.objects import Objects, Stored
from airflow_ckpt_provider.backup.pack_file import MAGIC, PackBuilder, read_index
from airflow_ckpt_provider.backup.prune import MaxUnused, PruneOutcome, apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository, raise_format
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.repository_repair import apply_objects_repair, plan_objects_repair
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.transfer import in_parallel
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.backup.verify_repository import verify_repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.cli.main import main
from airflow_ckpt_provider.errors import DamagedBackupError, RefusedError, RepositoryError, StorageError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.plan import plan_restore
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of, pack_size, part_of, read_moved
from airflow_ckpt_provider.storage.signatures import Signing, public_key
from airflow_ckpt_provider.storage.store import StoredFile
from airflow_ckpt_provider.units import format_size
from tests.support.backups import back_up, files_in, stream
from tests.support.checkpoints import Files, contents, plant
from tests.support.packs import of_pack, packed_repository, packs_of, restorable, rot, with_big_files
from tests.support.spoiled import spoil
from tests.support.watched_stores import Killed, Life, WatchedStore, forget_all, in_memory, watched

ALL = ReadData()
GOLDEN = Path(__file__).parents[2] / "golden" / "stored"


def restored(repository: Repository, manifest: Manifest, target: Location) -> Files:
    """Restore a backup to an empty place."""
    apply_restore(plan_restore(repository, manifest, target))
    return contents(target)


def expire_and_prune(repository: Repository, *, last: int = 1, may_stay: int = 0) -> PruneOutcome:
    apply_expire(repository, plan_expire(repository, Policy(last=last)))
    return apply_prune(repository, plan_prune(repository, max_unused=MaxUnused(may_stay)))


class TestBackup:
    def test_small_files_are_written_together_and_big_ones_alone(self, place: Location) -> None:
        files = with_big_files(stream())
        packed_repository(place)
        seen, store = watched(place / "backups")
        plant(place / "orders", files)
        made = create_backup(Checkpoint.at(place / "orders"), Repository.open(seen)).manifest
        written = [path for path in store.paths("create") if "/objects/" in path]
        assert len(written) == 3
        assert sum(path.endswith(".pack") for path in written) == 1
        assert {e.path for e in made.files if not e.is_packed} == {"_schema/big0", "_schema/big1"}
        assert files_in(made, place) == {e.path: files[e.path] for e in made.files}

    def test_a_backup_adds_a_pack_of_what_is_new(self, place: Location) -> None:
        repository = packed_repository(place)
        first = back_up(place, stream(4))
        second = back_up(place, stream(5))
        assert len(packs_of(repository)) == 2
        new = {e.object for e in second.manifest.files} - {e.object for e in first.manifest.files}
        assert second.copied_files == len(new) < len(second.manifest.files)
        third = back_up(place)
        assert (third.copied_files, len(packs_of(repository))) == (0, 2)

    def test_the_same_content_is_packed_once(self, place: Location) -> None:
        repository = packed_repository(place)
        made = back_up(place, {**stream(), **{f"_schema/same{n}": b"the same" for n in range(9)}}).manifest
        same = {e.object for e in made.files if e.path.startswith("_schema/same")}
        assert len(same) == 1
        held = [row[0] for row in read_index(repository.location.read(packs_of(repository)[0]))]
        assert len(held) == len(set(held))

    def test_a_full_pack_is_followed_by_another(self, place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(packing.Packer.__init__, "__kwdefaults__", {"pack_size": 4096})
        repository = packed_repository(place)
        files = {**stream(), **{f"_schema/{n}": bytes([n]) * 1000 for n in range(40)}}
        made = back_up(place, files).manifest
        assert len(packs_of(repository)) > 8
        assert all((pack_size(pack) or 0) < 8192 for pack in packs_of(repository))
        assert verify_backup(repository, made, read_data=ALL).ok
        assert restored(repository, made, place / "target") == files_in(made, place)

    def test_killed_before_each_write_it_leaves_nothing_that_hurts(self, place: Location) -> None:
        files = stream()
        for writes in range(12):
            base = in_memory()
            plant(base / "orders", files)
            life = Life(writes)
            packed_repository(base)
            with suppress(Killed):
                create_backup(
                    Checkpoint.at(base / "orders"), Repository.open(watched(base / "backups", life.before)[0])
                )
            for path in (base / "backups").walk("running"):
                (base / "backups").delete(path)
            repository = Repository.open(base / "backups")
            again = back_up(base)
            assert all(r.ok for r in (verify_backup(repository, m, read_data=ALL) for m in repository.backups()))
            assert files_in(again.manifest, base) == {e.path: files[e.path] for e in again.manifest.files}
            if not life.dead:
                return
        raise AssertionError("it never ended")

    def test_memory_is_that_of_a_few_packs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many files, and however slow the store: whoever reads waits for whoever writes."""
        under_way, most = 0, 0
        counting, may_end = threading.Lock(), threading.Event()

        def write(pack: bytes) -> str:
            nonlocal under_way, most
            assert len(pack) < 2 * 64 * 1024
            with counting:
                under_way += 1
                most = max(most, under_way)
                if under_way == 3:  # as many as there can be: only now the first one is written
                    may_end.set()
            assert may_end.wait(60)
            with counting:
                under_way -= 1
            return "written"

        packer = packing.Packer("objects/orders", write, pack_size=64 * 1024)
        contents_ = [number.to_bytes(4, "big") * 2048 for number in range(400)]
        in_parallel(lambda c: packer.add(c, hashlib.sha256(c).hexdigest()), contents_, workers=16)
        list(packer.finish(()))
        assert most == 3


class TestBothFormats:
    @pytest.mark.format_1("it becomes one of format 2")
    def test_a_repository_of_format_1_becomes_one_of_format_2(self, place: Location) -> None:
        first = back_up(place, stream(4)).manifest
        before = Repository.open(place / "backups")
        repository = raise_format(place / "backups", before, 2)
        assert (before.format, repository.format, repository.repository_id) == (1, 2, before.repository_id)
        second = back_up(place, stream(6)).manifest
        assert {e.is_packed for e in second.files} == {True, False}  # what is there is not stored again
        assert [r.ok for r in verify_repository(repository, read_data=ALL).streams] == [True]
        for number, manifest in enumerate((first, second)):
            assert restored(repository, manifest, place / f"target{number}") == files_in(manifest, place)
        assert check_repository(repository).ok
        expire_and_prune(repository)
        assert verify_backup(repository, repository.manifest(), read_data=ALL).ok
        with pytest.raises(RefusedError, match="cannot become one of format 1 again"):
            raise_format(place / "backups", repository, 1)

    def test_an_earlier_release_refuses_it_and_deletes_nothing(
        self, place: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        back_up(place, stream(4))
        opened_before = Repository.open(place / "backups")
        raise_format(place / "backups", opened_before, 2)
        back_up(place, stream(6))
        there = contents(place / "backups")
        monkeypatch.setattr(repositories, "FORMATS", (1,))
        monkeypatch.setattr(manifests, "_READABLE", frozenset({1, 2}))
        with pytest.raises(RepositoryError, match="version 2, known here: airflow-ckpt-repository"):
            Repository.open(place / "backups")
        # A process that had opened it before continues.
        plan = plan_prune(opened_before)
        assert plan.objects == 0
        assert "has format version 3" in plan.findings[0]
        apply_prune(opened_before, plan)
        assert contents(place / "backups") == there

    @pytest.mark.parametrize("version", [1, 2])
    def test_a_stored_repository_is_read_for_ever(self, version: int, tmp_path: Path) -> None:
        shutil.copytree(GOLDEN / f"format_{version}", tmp_path / "golden")
        repository = Repository.open(Location(LocalStore(), str(tmp_path / "golden" / "backups")))
        assert repository.format == version
        assert verify_repository(repository, read_data=ALL).ok
        assert check_repository(repository).ok
        ids = repository.backup_ids("orders")
        assert len(ids) == 4 - version
        for backup_id in ids:
            manifest = repository.manifest(backup_id)
            assert {e.is_packed for e in manifest.files} == {version == 2}
            wanted = json.loads((tmp_path / "golden" / f"{backup_id}.json").read_text())
            target = Location(LocalStore(), str(tmp_path / "targets" / backup_id))
            found = {p: hashlib.sha256(data).hexdigest() for p, data in restored(repository, manifest, target).items()}
            needed = {e.path for e in manifest.files_of(manifest.batch_id)}
            assert found == {path: sha256 for path, sha256 in wanted.items() if path in needed}
        assert plan_prune(repository).objects == 0
        # The stored one of format 2 was repacked once: what a manifest lists is elsewhere.
        assert len(read_moved(repository.location, "orders").paths) == (3 if version == 2 else 0)


@pytest.mark.format_1("it becomes one of format 2")
def test_from_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def init(*options: str) -> tuple[int, str]:
        code = main(["init", str(tmp_path / "backups"), "--json", *options])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    code, text = init()
    made = json.loads(text)
    assert (code, made["format"], made["created"]) == (0, 1, True)
    code, text = init("--format", "2")
    raised = json.loads(text)
    assert (code, raised["format"], raised["created"], raised["id"]) == (0, 2, False, made["id"])
    code, text = init()
    assert (code, json.loads(text)["format"]) == (0, 2)
    code, text = init("--format", "1")
    assert code != 0
    assert "cannot become one of format 1 again" in text


class Executors:
    """An engine as Spark's: what is in hand is stored here, all else by others, who get plain values and write no packs."""

    def store(self, tree: Tree, objects: Objects, files: Collection[StoredFile], take: OnStored, done: OnFile) -> None:
        in_hand = [file for file in files if tree.content_in_hand(file) is not None]
        stored: dict[str, Stored] = {}
        Threads().store(tree, objects, in_hand, lambda s: stored.update({s.entry.path: s}), done)
        rest = tuple(file for file in files if file.path not in stored)
        for known in objects.known([rest]):
            theirs = Objects(
                objects.repository, objects.name, vouched=known.vouched, marks=known.marks, listed=known.listed
            )
            for file in rest:
                stored[file.path] = theirs.store(Tree(tree.location), file)
        for file in files:
            take(stored[file.path])


def test_executors_write_objects_into_a_repository_that_holds_both(place: Location) -> None:
    repository = packed_repository(place)
    first = back_up(place, stream(4), engine=Executors()).manifest
    assert {entry.is_packed for entry in first.files} == {True, False}
    second = back_up(place, stream(6)).manifest
    third = back_up(place, stream(8), engine=Executors()).manifest
    for number, manifest in enumerate((first, second, third)):
        assert verify_backup(repository, manifest, read_data=ALL).ok
        assert restored(repository, manifest, place / f"target{number}") == files_in(manifest, place)
    shared = {e.object for e in second.files} & {e.object for e in third.files}
    assert any(part_of(path) for path in shared), "what lies in packs is not stored again"


class TestEncrypted:
    def test_a_pack_is_one_message_bound_to_its_path(self, place: Location) -> None:
        plant(place / "orders", stream())
        repository = packed_repository(place, key=bytes(range(32)))
        made = create_backup(Checkpoint.at(place / "orders"), repository).manifest
        assert restored(repository, made, place / "target") == {
            e.path: repository.location.read(e.object) for e in made.files
        }
        assert verify_backup(repository, made, read_data=ALL).ok
        pack, plain = packs_of(repository)[0], place / "backups"
        assert MAGIC not in plain.read(pack)
        second = pack.replace("/orders/", "/payments/")
        plain.create(second, plain.read(pack))
        entry = replace(made.files[0], object=made.files[0].object.replace("/orders/", "/payments/"))
        assert [damage.problem for damage in check_contents(repository, [entry])] == ["content"]

    def test_each_step_reads_a_pack_once(self, place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
        """A part of an encrypted pack costs as much as all of it."""
        monkeypatch.setattr(packing.Packer.__init__, "__kwdefaults__", {"pack_size": 1024})
        key = bytes(range(32))

        def opened(name: str = "backups") -> tuple[Repository, WatchedStore]:
            seen, store = watched(place / name)
            return Repository.open_or_create(replace(seen, key=key), format=2), store

        def at_most(step: Callable[[Repository], object], times: int = 1) -> None:
            repository, store = opened()
            step(repository)
            reads = Counter(path for path in store.paths("read", "read_part") if path.endswith(".pack"))
            assert 0 < max(reads.values()) <= times, reads

        plant(place / "orders", stream())
        first = create_backup(Checkpoint.at(place / "orders"), opened()[0]).manifest
        assert len({file_of(e.object) for e in first.files}) > 2
        at_most(lambda r: verify_backup(r, first, read_data=ALL))
        at_most(lambda r: verify_repository(r, read_data=ALL))
        second = opened("second")[0]
        at_most(lambda r: copy_backups(r, second, [first]))
        # Before the first change, and as it is written; what holds logs once more, for these are written first and last.
        at_most(lambda r: apply_restore(plan_restore(r, first, place / "target")), times=3)
        pack = file_of(max(first.files, key=lambda e: e.size).object)
        rot(place / "backups", pack, encrypted=True)
        at_most(lambda r: record_verification(r, verify_backup(r, first, read_data=ALL)))
        at_most(lambda r: plan_objects_repair(r, place / "empty", second=second))
        plan = plan_objects_repair(opened()[0], place / "empty", second=second)
        assert len(plan.rebuilt) > 2
        # To put contents into their places in what is there, and to see that they are there.
        at_most(lambda r: apply_objects_repair(r, place / "empty", plan, second=second), times=2)
        assert verify_backup(opened()[0], first, read_data=ALL).ok


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def reindexed(pack: bytes, change: Callable[[list[tuple[str, int]]], list[tuple[str, int]]]) -> bytes:
    """A pack with another index, which is right in itself.

    :param change: given SHA-256 and bytes of each content; what is to stand there.
    """
    rows = [(sha256, length) for sha256, _, length in read_index(pack)]
    body = pack[: -len(rows) * 36 - 44]
    index = b"".join(bytes.fromhex(sha256) + length.to_bytes(4, "big") for sha256, length in change(rows))
    return b"".join((body, index, hashlib.sha256(index).digest(), (len(index) // 36).to_bytes(4, "big"), MAGIC))


#: Kind -> what becomes of the bytes of a pack, given them and those of another pack; ``None``: it is missing.
FAULTS: dict[str, Callable[[bytes, bytes], bytes | None]] = {
    "a bit in a content": lambda pack, other: flip(pack, 20),
    "a bit in the last content": lambda pack, other: flip(pack, read_index(pack)[-1][1]),
    "a bit in the index": lambda pack, other: flip(pack, len(pack) - 60),
    "a bit in the hash of the index": lambda pack, other: flip(pack, len(pack) - 30),
    "a bit in the number of contents": lambda pack, other: flip(pack, len(pack) - 9),
    "a bit in the beginning": lambda pack, other: flip(pack, 0),
    "a bit in the end": lambda pack, other: flip(pack, len(pack) - 1),
    "the index is cut off": lambda pack, other: pack[:-40],
    "half of it is cut off": lambda pack, other: pack[: len(pack) // 2],
    "empty": lambda pack, other: b"",
    "missing": lambda pack, other: None,
    "longer": lambda pack, other: pack + b"more",
    "another pack": lambda pack, other: other,
    "an older pack, as long as this one": lambda pack, other: (other * 100)[: len(pack)],
    "two contents exchanged": lambda pack, other: pack[: len(MAGIC)] + pack[len(MAGIC) : 400][::-1] + pack[400:],
    "zeros": lambda pack, other: bytes(len(pack)),
    "an index with another hash": lambda pack, other: reindexed(pack, lambda rows: [("1" * 64, rows[0][1]), *rows[1:]]),
    "an index in another order": lambda pack, other: reindexed(pack, lambda rows: rows[::-1]),
    "an index that names a content twice": lambda pack, other: reindexed(pack, lambda rows: [rows[0], *rows]),
    "an index with a huge length": lambda pack, other: reindexed(
        pack, lambda rows: [(rows[0][0], 2**32 - 1), *rows[1:]]
    ),
    "an index of nothing": lambda pack, other: reindexed(pack, lambda rows: []),
    "a huge number of contents": lambda pack, other: pack[:-12] + b"\xff" * 4 + pack[-8:],
}


class TestFaults:
    @pytest.mark.parametrize("kind", FAULTS)
    def test_it_is_found_and_named_and_the_rest_can_be_restored(self, place: Location, kind: str) -> None:
        repository = packed_repository(place)
        first = back_up(place, stream(3)).manifest
        (pack,) = packs_of(repository)
        newest = back_up(place, stream(6)).manifest
        (other,) = set(packs_of(repository)) - {pack}
        right = files_in(newest, place)
        damaged = FAULTS[kind](repository.location.read(pack), repository.location.read(other))
        if damaged is None:
            repository.location.delete(pack)
        else:
            repository.location.replace(pack, damaged)
        report = verify_backup(repository, newest, read_data=ALL)
        assert not report.ok
        assert all(finding.is_damage for finding in report.findings)
        named = {finding.path for finding in report.findings}
        # Every file that cannot be restored is named, no other one is; and what is wrong with the pack as such.
        left = restorable(repository, newest)
        assert left == {path: data for path, data in right.items() if path not in named}
        assert named - {pack} == set(right) - left.keys() <= set(of_pack(newest, pack))
        assert pack in named or set(of_pack(newest, pack)) <= named
        of_all = verify_repository(repository, read_data=ALL)
        assert {d.backup_id for d in of_all.damaged} == {first.backup_id, newest.backup_id}
        assert pack in "".join(of_all.findings)
        # What was learned keeps new backups from using it; they are whole.
        after = back_up(place, stream(7)).manifest
        assert all(file_of(entry.object) != pack for entry in after.files)
        assert verify_backup(repository, after, read_data=ALL).ok
        assert restored(repository, after, place / "target") == files_in(after, place)

    @pytest.mark.parametrize("kind", FAULTS)
    def test_repaired_from_the_checkpoint_it_is_the_same_to_the_letter(self, place: Location, kind: str) -> None:
        repository = packed_repository(place)
        made = back_up(place, with_big_files(stream())).manifest
        (pack,) = packs_of(repository)
        right = repository.location.read(pack)
        damaged = FAULTS[kind](right, right[: len(right) // 3])
        if damaged is None:
            repository.location.delete(pack)
        else:
            repository.location.replace(pack, damaged)
        record_verification(repository, verify_backup(repository, made, read_data=ALL))
        plan = plan_objects_repair(repository, place / "orders")
        apply_objects_repair(repository, place / "orders", plan)
        if plan.rebuilt:
            assert repository.location.read(pack) == right
        else:  # nothing that a restore needs was damaged: the next prune writes the contents again
            apply_prune(repository, plan_prune(repository))
            assert pack not in packs_of(repository)
        report = verify_backup(repository, made, read_data=ALL)
        assert report.ok, report.findings
        assert restored(repository, made, place / "target") == {
            e.path: (place / "orders").read(e.path) for e in made.files
        }

    def test_a_pack_that_is_lost_is_written_again_under_another_name(self, place: Location) -> None:
        """What is known to be damaged is never what a new backup lists, also where the same contents come together again."""
        repository = packed_repository(place)
        made = back_up(place, stream()).manifest
        (pack,) = packs_of(repository)
        repository.location.delete(pack)
        record_verification(repository, verify_backup(repository, made, read_data=ALL))
        after = create_backup(Checkpoint.at(place / "orders"), repository, workers=1).manifest
        assert {file_of(entry.object) for entry in after.files}.isdisjoint({pack})
        assert verify_backup(repository, after, read_data=ALL).ok

    def test_a_verify_of_all_backups_names_the_file_first_each_time(self, place: Location) -> None:
        repository = packed_repository(place)
        entry = back_up(place, stream()).manifest.files[0]
        spoil(repository.location, entry)
        first, again = (verify_repository(repository, read_data=ALL).damaged[0].problems for _ in range(2))
        assert [words.partition(":")[0] for words in first] == [entry.path, f"pack {file_of(entry.object)} is damaged"]
        assert again == first

    def test_a_damaged_index_keeps_nobody_from_restoring_the_latest(self, place: Location) -> None:
        repository = packed_repository(place)
        made = back_up(place, stream()).manifest
        (pack,) = packs_of(repository)
        repository.location.replace(pack, FAULTS["a bit in the index"](repository.location.read(pack), b""))
        record_verification(repository, verify_backup(repository, made, read_data=ALL))
        assert repository.manifest().backup_id == made.backup_id
        assert restored(repository, made, place / "target") == files_in(made, place)


def forged(repository: Repository, manifest: Manifest, object_: Callable[[FileEntry], str]) -> str:
    """Store a manifest that lists an object in another way, with the right hash over it; return its id."""
    first, *rest = manifest.files
    made = replace(manifest, backup_id="20300101T000000Z-b000004", files=(replace(first, object=object_(first)), *rest))
    repository.location.create(made.path, made.to_document())
    return made.backup_id


def changed(
    start: int = 0, length: int = 0, pack: Callable[[str], str] = lambda pack: pack
) -> Callable[[FileEntry], str]:
    def path(entry: FileEntry) -> str:
        part = part_of(entry.object)
        assert part is not None
        return f"{pack(part.pack)}/{part.sha256}-{part.start + start}-{part.length + length}"

    return path


class TestForged:
    @pytest.mark.parametrize(
        ("object_", "words"),
        [
            (changed(start=10**9), "it ends behind the end of its pack"),
            (changed(start=1), "that overlap at byte"),
            (changed(length=10**11), "it ends behind the end of its pack"),
            (changed(length=1), "has another hash or size than"),
            (lambda e: e.object.rpartition("-")[0] + "--5", "it names a pack, and no content in it"),
            (lambda e: e.object.rpartition("/")[0] + f"/{'0' * 64}-8-{e.size}", "has another hash or size than"),
            (
                changed(pack=lambda p: p.replace("objects/orders", "objects/orders/../other")),
                "or nothing between two slashes",
            ),
            (changed(pack=lambda p: p.replace("objects/orders", "objects/other")), "does not lie in objects/orders/"),
            (changed(pack=lambda p: p.replace("objects/orders", "/etc")), "it is empty, absolute"),
            (
                lambda e: e.object.replace(str(pack_size(file_of(e.object))), "999999999999"),
                "no pack has 931.3 GiB",
            ),
            (lambda e: file_of(e.object), None),
        ],
    )
    def test_a_manifest_is_refused(
        self, place: Location, object_: Callable[[FileEntry], str], words: str | None
    ) -> None:
        repository = packed_repository(place)
        made = back_up(place, stream()).manifest
        backup_id = forged(repository, made, object_)
        if words is None:  # the pack as if it were a content: its size and its hash are others
            report = verify_backup(repository, repository.manifest(backup_id), read_data=ALL)
            assert [finding.problem for finding in report.findings] == ["size"]
            return
        with pytest.raises(DamagedBackupError) as error:
            repository.manifest(backup_id)
        assert "or forged, though its hash is right" in error.value.message
        assert words in error.value.message

    def test_what_it_says_of_a_pack_makes_no_good_backup_a_damaged_one(self, place: Location) -> None:
        repository = packed_repository(place)
        made = back_up(place, stream()).manifest
        first, second, *_ = (e for e in made.files if e.size > 1)
        wrong = replace(first, sha256="1" * 64, object=first.object.replace(first.sha256 or "", "1" * 64))
        rest = tuple(e for e in made.files if e.object not in (first.object, second.object))
        other = replace(made, backup_id="20300101T000000Z-b000004", files=(wrong, second, *rest))
        repository.location.create(other.path, other.to_document())
        report = verify_repository(repository, read_data=ALL)
        assert [d.backup_id for d in report.damaged] == [other.backup_id]
        assert any(first.path in problem for problem in report.damaged[0].problems)
        assert restored(repository, repository.manifest(made.backup_id), place / "target") == files_in(made, place)

    @pytest.mark.parametrize("version", [1, 2])
    def test_contents_in_packs_under_an_earlier_version(
        self, place: Location, version: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        repository = packed_repository(place)
        made = replace(back_up(place, stream()).manifest, backup_id="20300101T000000Z-b000004")
        monkeypatch.setattr(manifests, "has_packed", lambda files: False)
        monkeypatch.setattr(manifests, "COMPACT_FROM", 1000 if version == 1 else 1)
        repository.location.create(made.path, made.to_document())
        with pytest.raises(DamagedBackupError, match="which a manifest of this version cannot list"):
            repository.manifest(made.backup_id)

    @pytest.mark.parametrize(
        "document",
        [
            b"no JSON",
            {"format": "airflow-ckpt-moved", "version": 2, "moved": {}},
            {"moved": {"objects/other/aa/x": {"{pack}": {"{content}": 8}}}},
            {"moved": {"{pack}": {"../../etc": {"{content}": 8}}}},
            {"moved": {"{pack}": {"objects/other/aa/" + "0" * 64 + "-99999.pack": {"{content}": 8}}}},
            {"moved": {"{pack}": {"{pack}": {"{content}": -1}}}},
            {"moved": {"{pack}": {"{pack}": {"{content}": 10**9}}}},
            {"moved": {"{pack}": {"{pack}": {"../x": 8}}}},
            {"moved": [1]},
            b" " * (17 * 1024**2),
        ],
    )
    def test_a_record_of_what_was_moved_is_named_and_stops_nothing_but_deletions(
        self, place: Location, document: bytes | dict[str, object]
    ) -> None:
        repository = packed_repository(place)
        made = back_up(place, stream()).manifest
        pack, _, content = made.files[0].object.rpartition("/")
        if isinstance(document, bytes):
            data = document
        else:
            text = json.dumps({"format": "airflow-ckpt-moved", "version": 1, **document})
            data = text.replace("{pack}", pack).replace("{content}", content).encode()
        repository.location.create("moved/orders/000001.json", data)
        repository.location.create("objects/orders/aa/left", b"by a backup that was killed")
        before = contents(place / "backups" / "objects")
        plan = plan_prune(repository)
        assert "moved/orders/000001.json cannot be read" in plan.findings[0]
        assert apply_prune(repository, plan).objects == 0
        assert contents(place / "backups" / "objects") == before
        report = check_repository(repository)
        assert not report.ok
        assert "moved/orders/000001.json cannot be read" in report.streams[0].unreadable[0]
        assert restored(repository, made, place / "target") == files_in(made, place)
        after = back_up(place, stream(6)).manifest
        assert verify_backup(repository, after, read_data=ALL).ok
        assert restored(repository, after, place / "another") == files_in(after, place)
        repository.location.delete("moved/orders/000001.json")
        assert apply_prune(repository, plan_prune(repository)).objects == 1

    def test_a_record_that_points_at_something_else_deletes_nothing(self, place: Location) -> None:
        repository = packed_repository(place)
        made = back_up(place, stream()).manifest
        (pack,) = packs_of(repository)
        builder = PackBuilder()
        builder.add(b"x" * 100_000, hashlib.sha256(b"x" * 100_000).hexdigest())
        bogus = builder.sealed()
        other = f"objects/orders/aa/{hashlib.sha256(bogus).hexdigest()}-{len(bogus)}.pack"
        repository.location.create(other, bogus)
        names = [entry.object.rpartition("/")[2] for entry in made.files]
        record = {"format": "airflow-ckpt-moved", "version": 1, "moved": {pack: {other: dict.fromkeys(names, 8)}}}
        repository.location.create("moved/orders/000001.json", json.dumps(record).encode())
        outcome = apply_prune(repository, plan_prune(repository))
        assert pack in packs_of(repository)
        (waits_for,) = outcome.waits_for["orders"]
        assert waits_for.startswith(f"{pack}, which has a content that is damaged or missing where it was moved to")
        assert restored(repository, made, place / "target") == files_in(made, place)


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
        source.location.replace(pack, FAULTS["a bit in the index"](source.location.read(pack), b""))
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


def mostly_garbage(place: Location) -> tuple[Repository, Manifest]:
    """A repository whose first pack is mostly garbage, and its only backup."""
    repository = packed_repository(place)
    back_up(place, {**stream(4), **{f"_schema/{n}": bytes([n]) * 5000 for n in range(8)}})
    for n in range(8):
        (place / "orders").delete(f"_schema/{n}")
    made = back_up(place, stream(6)).manifest
    apply_expire(repository, plan_expire(repository, Policy(last=1)))
    return repository, made


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
        packs, _ = repack.repack(repository, "orders", [moved], made_by="a test")
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


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    forget_all()
