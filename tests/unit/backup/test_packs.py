"""Repositories with packs: what backups write, both formats in one repository, encrypted packs."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup import manifest as manifests
from airflow_ckpt_provider.backup import packing
from airflow_ckpt_provider.backup import repository as repositories
from airflow_ckpt_provider.backup.content_checks import check_contents
from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.engine import OnFile, OnStored, Threads
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.objects import Objects, Stored
from airflow_ckpt_provider.backup.pack_file import MAGIC, read_index
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository, raise_format
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.repository_repair import apply_objects_repair, plan_objects_repair
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.backup.verify_repository import verify_repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.cli.main import main
from airflow_ckpt_provider.errors import RefusedError, RepositoryError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of, pack_size, part_of, read_moved
from airflow_ckpt_provider.storage.store import StoredFile
from tests.support.backups import back_up, files_in, stream
from tests.support.checkpoints import contents, plant
from tests.support.packs import (
    expire_and_prune,
    packed_repository,
    packs_of,
    restored,
    rot,
    with_big_files,
)
from tests.support.watched_stores import Killed, Life, WatchedStore, in_memory, watched

ALL = ReadData()
GOLDEN = Path(__file__).parents[2] / "golden" / "stored"


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
        entry = made.files[0]._replace(object=made.files[0].object.replace("/orders/", "/payments/"))
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
