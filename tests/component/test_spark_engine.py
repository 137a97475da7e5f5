"""Copies by tasks give the same objects and the same manifest as copies by threads; the tasks run in this process.

What Spark adds to that (processes, their death) is in ``tests/integration/test_copy_closure.py``.
"""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup import closure_copy
from airflow_ckpt_provider.backup.create import BackupResult, create_backup
from airflow_ckpt_provider.backup.engine import Threads, TooMuchForThreadsError, UpTo
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import note_verification
from airflow_ckpt_provider.backup.pack_file import read_index
from airflow_ckpt_provider.backup.prune import MaxUnused, apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import MissingFileError, RepositoryError, StorageError
from airflow_ckpt_provider.jobs.spark_engine import Address, SparkEngine
from airflow_ckpt_provider.storage import fsspec_store, s3_store
from airflow_ckpt_provider.storage.conditions import CopyCondition
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of, read_moved
from tests.support.backups import stream
from tests.support.checkpoints import Files, plant
from tests.support.packs import packs_of, restorable, rot, with_big_files
from tests.support.s3_server import S3Server
from tests.support.spark_tasks import Tasks


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closure_copy, "_PAUSE", 0)


class Pair:
    """A checkpoint and two repositories of it: one by threads, one by tasks.

    :param root: URI of an empty place.
    :param options: how it is reached.
    :param packs: the repositories are of format 2.
    :param key: the repositories are encrypted.
    """

    def __init__(self, root: str, options: dict[str, Any], *, packs: bool = False, key: bytes | None = None) -> None:
        self.checkpoint = Address(f"{root}/orders", options)
        self.repositories = {kind: Address(f"{root}/{kind}", options, key) for kind in ("threads", "tasks")}
        self.tasks = Tasks()
        self.format = 2 if packs else 1

    def plant(self, files: Files) -> Location:
        return plant(self.checkpoint.open(), files)

    def engine(self, kind: str = "tasks", **settings: Any) -> SparkEngine:
        address = self.repositories[kind].of(self.repository(kind))
        return SparkEngine(self.tasks.session, self.checkpoint, address, **{"files_per_task": 3, **settings})

    def back_up(self, kind: str, **options: Any) -> BackupResult:
        place = self.repository(kind)
        engine = self.engine() if kind == "tasks" else None
        return create_backup(Checkpoint.at(self.checkpoint.open()), place, **{"engine": engine, **options})

    def repository(self, kind: str) -> Repository:
        return Repository.open_or_create(self.repositories[kind].open(), format=self.format)

    def compare(self, **options: Any) -> BackupResult:
        """Take a backup each way, and see that nothing but ids, times and the boundaries of packs distinguishes them."""
        results = {kind: self.back_up(kind, **options) for kind in self.repositories}
        assert same(results["tasks"].manifest) == same(results["threads"].manifest)
        if not any(entry.is_packed for result in results.values() for entry in result.manifest.files):
            assert self.objects("tasks") == self.objects("threads")
        assert self.contents(results["tasks"]) == self.contents(results["threads"], "threads")
        assert results["tasks"].copied_files == results["threads"].copied_files
        assert results["tasks"].copied_bytes == results["threads"].copied_bytes
        return results["tasks"]

    def objects(self, kind: str) -> Files:
        place = self.repositories[kind].open()
        return {path: place.read(path) for path in place.walk("objects")}

    def contents(self, result: BackupResult, kind: str = "tasks") -> Files:
        """What a restore writes: each content is compared with its hash as it is read."""
        found = restorable(self.repository(kind), result.manifest)
        assert len(found) == result.files
        return found

    def damage(self, path: str, data: bytes) -> None:
        for address in self.repositories.values():
            address.open().replace(path, data)


def same(manifest: Manifest) -> dict[str, Any]:
    """A manifest without ids and times; of a content in a pack its hash and size, and not which pack it is."""
    of_packs = [e._replace(object="a pack") if e.is_packed else e for e in manifest.files]
    document: dict[str, Any] = json.loads(replace(manifest, files=()).to_document())
    del document["facts"]["pinned_at"]
    left_out = ("id", "backup_id", "created", "claim", "sha256", "file_list", "version")
    return {**{key: value for key, value in document.items() if key not in left_out}, "files": of_packs}


@pytest.fixture(params=["disk", "s3"])
def pair(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    if request.param == "disk":
        return Pair(str(tmp_path / uuid.uuid4().hex), {})
    return Pair(f"s3://{_bucket(request, monkeypatch)}/lake", request.getfixturevalue("s3_server").options())


def _bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    # It is known that the service refuses a copy over a file, as it is of AWS: then names of objects depend on contents alone.
    monkeypatch.setattr(s3_store, "CopyCondition", lambda service, known=None: CopyCondition(service, known=True))
    monkeypatch.setattr(fsspec_store, "CopyCondition", lambda service, known=None: CopyCondition(service, known=True))
    server: S3Server = request.getfixturevalue("s3_server")
    return server.make_bucket()


def test_one_backup_after_the_other(pair: Pair) -> None:
    files = stream(6)
    place = pair.plant(files)
    first = pair.compare(restorable_batches=2, tags={"release": "27"}, reason="before", made_by="me")
    assert first.copied_files == first.files
    assert pair.tasks.ran > 2, "all in one task: the test shows nothing"
    assert verify_backup(Repository.open(pair.repositories["tasks"].open()), first.manifest, read_data=ReadData()).ok

    ran = pair.tasks.ran
    assert pair.compare().copied_files == 0
    assert pair.tasks.ran == ran, "nothing was new, and tasks were run for it"

    changed = next(path for path in files if path.endswith(".sst"))
    place.replace(changed, b"another!!")
    place.replace(f"{changed}.later", b"not in the closure")
    again = {path: data for path, data in stream(8).items() if path not in files}
    plant(place, again)
    assert 0 < pair.compare().copied_files < len(files)


def test_contents_that_are_alike(pair: Pair) -> None:
    files = stream(5)
    alike = {path: b"the same in every file" if path.endswith(".changelog") else data for path, data in files.items()}
    pair.plant(alike if len(alike) == len(files) else files)
    result = pair.compare()
    assert len({entry.object for entry in result.manifest.files}) < result.files


@pytest.mark.format_1("what a killed backup has left in packs is not looked for")
def test_objects_nobody_vouches_for(pair: Pair) -> None:
    """As a backup that was killed leaves them: used where they are whole, left alone where they are damaged."""
    pair.plant(stream())
    first = pair.compare()
    whole, cut, other = [e.object for e in first.manifest.files if e.size > 20][-3:]
    pair.damage(cut, b"cut off")
    pair.damage(other, b"x" * len(pair.objects("tasks")[other]))
    for address in pair.repositories.values():
        for path in address.open().walk("backups"):
            address.open().delete(path)
    second = pair.compare()
    named = {entry.object for entry in second.manifest.files}
    assert whole in named
    assert {f"{cut}.1", f"{other}.1"} <= named
    assert pair.objects("tasks")[cut] == b"cut off"


def test_killed_driver_leaves_what_the_next_one_uses(pair: Pair) -> None:
    pair.plant(stream())

    class Killed(BaseException):
        pass

    def die(number: int) -> None:
        if number == 3:
            raise Killed

    pair.tasks = Tasks(die)
    with pytest.raises(Killed):
        pair.back_up("tasks")
    held = pair.objects("tasks")
    assert held
    pair.tasks = Tasks()
    result = pair.back_up("tasks")
    assert result.copied_files == result.files - len(held)
    assert verify_backup(Repository.open(pair.repositories["tasks"].open()), result.manifest, read_data=ReadData()).ok


def test_a_stream_that_goes_on_under_its_feet(pair: Pair) -> None:
    """A file is written again, logs are purged; the next poll takes the newer batch, and what is copied already."""
    before, after = stream(4), stream(9)
    place = pair.plant(before)
    purged = [f"{log}/{batch}" for log in ("offsets", "commits") for batch in range(4)]
    rewritten = next(path for path in before if path.endswith("/5.changelog"))
    moved: list[int] = []

    def move(number: int) -> None:
        if not moved:
            moved.append(number)
            plant(place, {path: data for path, data in after.items() if path not in before})
            for path in purged:
                place.delete(path)
            place.replace(rewritten, before[rewritten] + b"more")

    pair.tasks = Tasks(move)
    result = pair.back_up("tasks")
    assert moved
    assert result.batch_id == 9
    assert same(result.manifest) == same(pair.back_up("threads").manifest)
    assert result.copied_files == result.files, "what the first poll copied was copied again, or not counted"
    assert verify_backup(Repository.open(pair.repositories["tasks"].open()), result.manifest, read_data=ReadData()).ok


def test_a_checkpoint_that_is_damaged(pair: Pair) -> None:
    """Listed, and then not there: said in the same words as without Spark."""
    files = stream()
    path = next(path for path in files if path.endswith(".sst"))
    messages = []
    for kind in pair.repositories:
        place = pair.plant(files)
        pair.tasks = Tasks(lambda number, place=place: place.delete(path))
        if kind == "threads":
            place.delete(path)
        with pytest.raises(MissingFileError) as e:
            pair.back_up(kind)
        messages.append(str(e.value))
    assert messages[0] == messages[1]


def test_a_store_that_refuses(tmp_path: Path) -> None:
    pair = Pair(str(tmp_path), {})
    pair.plant(stream())
    Repository.open_or_create(pair.repositories["tasks"].open())
    pair.tasks = Tasks(lambda number: (tmp_path / "tasks" / "repository.json").unlink(missing_ok=True))
    pair.repositories["tasks"] = Address(str(tmp_path / "tasks"), {})
    with pytest.raises(Exception, match="not a repository"):
        pair.back_up("tasks")


@pytest.mark.parametrize("key", [None, b"k" * 32], ids=["plain", "encrypted"])
def test_another_repository_at_the_address_of_executors(tmp_path: Path, key: bytes | None) -> None:
    """As where an executor has something else mounted there: it writes nothing."""
    pair = Pair(str(tmp_path), {}, key=key)
    pair.plant(stream())
    opened, other = (pair.repository(kind) for kind in ("tasks", "threads"))
    address = replace(pair.repositories["threads"], repository_id=opened.repository_id)
    engine = SparkEngine(pair.tasks.session, pair.checkpoint, address)
    with pytest.raises(RepositoryError) as e:
        create_backup(Checkpoint.at(pair.checkpoint.open()), opened, engine=engine)
    assert e.value.message == (
        f"{tmp_path}/threads is repository {other.repository_id}, and repository {opened.repository_id} is expected there"
    )
    assert pair.tasks.ran
    assert pair.objects("threads") == {}


def test_executors_that_may_write_into_any_repository_are_refused(tmp_path: Path) -> None:
    pair = Pair(str(tmp_path), {})
    with pytest.raises(ValueError, match=r"say which repository executors open: Address\.of"):
        SparkEngine(pair.tasks.session, pair.checkpoint, pair.repositories["tasks"])


@pytest.fixture(params=["plain", "encrypted", "s3"])
def packed(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    if request.param == "s3":
        bucket = _bucket(request, monkeypatch)
        return Pair(f"s3://{bucket}/lake", request.getfixturevalue("s3_server").options(), packs=True)
    return Pair(str(tmp_path / "lake"), {}, packs=True, key=b"k" * 32 if request.param == "encrypted" else None)


def test_tasks_write_packs_of_their_own(packed: Pair) -> None:
    """Small files in packs, of each task its own, big ones as objects; the next backup uses both."""
    files = with_big_files(stream(6), count=3)
    place = packed.plant(files)
    first = packed.compare(restorable_batches=2)
    repository = packed.repository("tasks")
    assert {e.path for e in first.manifest.files if not e.is_packed} == {f"_schema/big{n}" for n in range(3)}
    assert len(packs_of(repository)) > 2, "all in one task: the test shows nothing"
    assert verify_backup(repository, first.manifest, read_data=ReadData()).ok

    ran = packed.tasks.ran
    assert packed.compare().copied_files == 0
    assert packed.tasks.ran == ran, "nothing was new, and tasks were run for it"
    plant(place, {path: data for path, data in stream(8).items() if path not in files})
    assert 0 < packed.compare().copied_files < len(files)


def test_a_task_that_runs_twice_leaves_a_pack_that_nothing_lists(packed: Pair) -> None:
    """The first run of each task is lost with its executor when it has written its pack; a prune deletes what it wrote."""
    packed.plant(stream(6))
    packed.tasks = _Lost()
    result = packed.back_up("tasks")
    assert same(result.manifest) == same(packed.back_up("threads").manifest)
    repository = packed.repository("tasks")
    listed = {file_of(entry.object) for entry in result.manifest.files}
    garbage = set(packs_of(repository)) - listed
    assert garbage, "the lost runs wrote the same packs: the test shows nothing"
    apply_prune(repository, plan_prune(repository))
    assert set(packs_of(repository)) == listed
    assert packed.contents(result)


class _Lost(Tasks):
    """Each task runs twice: the second time its files come in another order, so that its pack is another one."""

    def results(self) -> Iterator[Any]:
        for part in self.parts:
            [task] = pickle.loads(part)
            again = replace(task, files=tuple(reversed(task.files)))
            list(pickle.loads(self.work)(iter([again])))
        yield from super().results()


def test_repacked_and_damaged_contents_are_known_to_tasks(packed: Pair) -> None:
    """What a prune has moved is used where it is now; what is damaged is stored again."""
    waste = {f"_schema/waste{n}": bytes([n]) * 3000 for n in range(20)}
    place = packed.plant(stream(4) | waste)
    packed.compare()
    for path in waste:
        place.delete(path)
    plant(place, stream(9))
    packed.compare()
    for kind in packed.repositories:
        repository = packed.repository(kind)
        policy = Policy(last=1)
        apply_expire(repository, plan_expire(repository, policy))
        apply_prune(repository, plan_prune(repository, max_unused=MaxUnused(0)))
    moved = read_moved(packed.repository("tasks").location, "orders")
    assert moved.paths, "nothing was repacked: the test shows nothing"
    plant(place, stream(9))  # written again: the store says that it is another file, so contents are compared
    assert packed.compare().copied_files == 0

    for kind, address in packed.repositories.items():
        repository = packed.repository(kind)
        manifest = repository.manifest("latest", name="orders")
        wrong = next(e for e in manifest.files if e.path.endswith(".sst"))
        rot(replace(address, key=None).open(), wrong.object, encrypted=address.key is not None)
        note_verification(repository, verify_backup(repository, manifest, read_data=ReadData()))
        plant(place, stream(9))
        result = packed.back_up(kind)
        (now,) = (e for e in result.manifest.files if e.path == wrong.path)
        assert now.object != wrong.object
        assert packed.contents(result, kind)


def test_a_stream_that_continues_is_not_packed_again(packed: Pair) -> None:
    """The checkpoint is read again, and what tasks have packed by then is used."""
    before = stream(4)
    place = packed.plant(before)
    gone = next(path for path in before if path.endswith("/5.changelog"))

    def move(number: int) -> None:
        if number == 0:
            plant(place, {path: data for path, data in stream(9).items() if path not in before})
            place.replace(gone, before[gone] + b"more")

    packed.tasks = Tasks(move)
    result = packed.back_up("tasks")
    repository = packed.repository("tasks")
    held = sum(len([*read_index(repository.location.read(pack))]) for pack in packs_of(repository))
    assert result.batch_id == 9
    assert held <= len({e.sha256 for e in result.manifest.files}) + len(before), "contents were packed twice"
    assert packed.contents(result)


def test_up_to_a_limit(tmp_path: Path) -> None:
    pair = Pair(str(tmp_path), {})
    pair.plant(stream())
    for limit in ({"files": 3, "size": 10**12}, {"files": 10**6, "size": 100}):
        with pytest.raises(TooMuchForThreadsError) as e:
            pair.back_up("threads", engine=UpTo(Threads(), **limit))
        assert e.value.files > 3
        assert pair.objects("threads") == {}
    result = pair.back_up("threads", engine=UpTo(Threads(), files=10**6, size=10**12))
    assert result.copied_files == result.files
    # Nothing is left to do: no limit is too low for that.
    assert pair.back_up("threads", engine=UpTo(Threads(), files=1, size=1)).copied_files == 0


def test_storage_errors_come_back_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="could not"):
        raise pickle.loads(pickle.dumps(StorageError("could not read x", hint="look")))
