"""A store that asks to be asked less, in front of a real S3 server: all work ends right, and what is asked in vain is bounded."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import Any

import fsspec
import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.migrate import apply_migrate, plan_migrate
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage import pace
from airflow_ckpt_provider.storage.fsspec_store import FsspecStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.pace import MOST, Pace, RetryPolicy
from airflow_ckpt_provider.storage.s3_store import S3Store
from benchmarks.sample_tree import SampleTree
from tests.support.every_run import of_these
from tests.support.s3_gate import Gate, PerSecond, by_kind
from tests.support.s3_server import S3Server
from tests.support.stopped import STOPPED

TREE = SampleTree(partitions=4, batches=20)


@pytest.fixture
def gate(s3_server: S3Server) -> Iterator[Gate]:
    made = Gate(s3_server)
    yield made
    made.close()


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    name = s3_server.make_bucket()
    plain = open_location(f"s3://{name}/orders", storage_options=s3_server.options())
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda file: plain.replace(*file), TREE.files()))
    return name


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> RetryPolicy:
    """Like the real one, in a tenth of the time."""
    short = RetryPolicy(refused=2.0, refused_request=60.0, first_pause=0.02, longest_pause=0.2)
    monkeypatch.setattr(pace, "RetryPolicy", lambda: short)
    return short


def place(gate: Gate, path: str) -> Location:
    return open_location(f"s3://{path}", storage_options=gate.options())


def pace_of(location: Location) -> Pace:
    assert isinstance(location.store, S3Store)
    return location.store.pace


class Randomly:
    """Refuses a share of the requests."""

    def __init__(self, share: float, status: int = 503) -> None:
        self.share, self.status, self.refused = share, status, 0
        self._random = random.Random(3)
        self._lock = threading.Lock()

    def __call__(self, kind: str, path: str) -> int | None:
        with self._lock:
            if self._random.random() >= self.share:
                return None
            self.refused += 1
        return self.status


class Never:
    """Takes nothing that goes to one path any more."""

    def __init__(self, part: str) -> None:
        self.part = part

    def __call__(self, kind: str, path: str) -> int | None:
        return 503 if self.part in path else None


def work(gate: Gate, bucket: str) -> Repository:
    """Everything that moves many files, once."""
    repository = Repository.open_or_create(place(gate, f"{bucket}/repository"))
    checkpoint = Checkpoint.at(place(gate, f"{bucket}/orders"))
    first = create_backup(checkpoint, repository).manifest
    edited = TREE.changed(0.3, 1)
    plain = open_location(f"s3://{bucket}/orders", storage_options=gate._server.options())
    for path in edited:
        plain.replace(path, TREE.changelog(path, 1))
    second = create_backup(checkpoint, repository)
    assert second.copied_files == len(edited)
    assert verify_backup(repository, second.manifest, read_data=ReadData()).ok
    target = place(gate, f"{bucket}/restored")
    apply_restore(plan_restore(repository, second.manifest, target), rest=STOPPED)
    restored = {path: file.size for path, file in target.walk().items()}
    assert restored == {entry.path: entry.size for entry in second.manifest.files}
    apply_expire(repository, plan_expire(repository, Policy(last=1)))
    plan = plan_prune(repository)
    # A third of a pack is not needed any more: it stays.
    assert apply_prune(repository, plan).objects == (0 if repository.packs else len(edited))
    if not repository.packs:
        small = plan_migrate(repository)
        migrated = apply_migrate(place(gate, f"{bucket}/repository"), small)
        assert migrated.objects == migrated.deleted == small.objects > 0
        assert verify_backup(repository, second.manifest, read_data=ReadData()).ok
    assert repository.backup_ids("orders") == (second.backup_id,)
    assert first.backup_id != second.backup_id
    return repository


@pytest.mark.parametrize(
    ("repository_format", "status"), of_these(product((1, 2), (503, 429)), (2, 503)), indirect=["repository_format"]
)
def test_everything_ends_right_when_a_tenth_is_refused(
    repository_format: int, gate: Gate, bucket: str, impatient: RetryPolicy, status: int
) -> None:
    gate.refuse = refuse = Randomly(0.1, status)
    with gate.watched() as requests:
        repository = work(gate, bucket)
    gate.refuse = None
    report = check_repository(repository)
    assert report.ok
    answered = [r for r in requests if r.status != status]
    assert 10 < refuse.refused < 0.25 * len(answered), "what is refused is asked again, and little more"
    assert pace_of(repository.location).refused > 5


# By the clock: a machine that is busy with something else is no proof.
@pytest.mark.slow
@pytest.mark.format_1("the store copies the small files of this test")
def test_what_goes_beyond_a_rate_is_asked_more_slowly(gate: Gate, bucket: str, impatient: RetryPolicy) -> None:
    """Sixty-four at once are far too many; what is refused stays a small part of what is done."""
    gate.refuse = refuse = PerSecond(60)
    repository = Repository.open_or_create(place(gate, f"{bucket}/repository"))
    with gate.watched() as requests:
        manifest = create_backup(Checkpoint.at(place(gate, f"{bucket}/orders")), repository).manifest
    gate.refuse = None
    assert check_repository(repository).ok
    assert verify_backup(repository, manifest, read_data=ReadData()).ok
    taken = [r for r in requests if r.status != 503]
    # The first volley cannot know; after it a refusal stops everybody.
    assert refuse.refused <= 64 + 0.5 * len(taken), (refuse.refused, by_kind(requests))
    copies = [r for r in requests if r.kind == "COPY"]
    began = copies[0].began
    assert max(r.at_once for r in copies if r.began < began + 0.3) > 10, "at first as many as there are threads"
    later = [r.at_once for r in copies if r.began > began + 1]
    assert later, "faster than the rate allows"
    assert sum(later) / len(later) < 16


# By the clock: a machine that is busy with something else is no proof.
@pytest.mark.slow
def test_down_and_up_again(gate: Gate, bucket: str, impatient: RetryPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is busy for a moment is at full speed again soon after."""
    # Of nine refusals in ten one request may get many in turn; that one is asked again until it is answered.
    monkeypatch.setattr(pace, "RetryPolicy", lambda: replace(impatient, refused=60.0))
    location = place(gate, f"{bucket}/orders")
    gate.delay = 0.005
    paths = [path for path, _ in TREE.files()] * 7
    told = pace_of(location)
    refuse = Randomly(0.9)
    number = iter(range(10**6))

    def busy_for_a_while(kind: str, path: str) -> int | None:
        return refuse(kind, path) if 50 < next(number) < 120 else None

    gate.refuse = busy_for_a_while
    seen: list[int] = []

    def read(path: str) -> None:
        location.read(path)
        seen.append(told.limit)

    with gate.watched() as requests, ThreadPoolExecutor(32) as pool:
        list(pool.map(read, paths))
    assert seen[0] == MOST
    assert told.lowest <= 4
    assert told.limit == MOST, "it has not recovered"
    assert 30 < told.refused < 70
    down = requests.index(next(r for r in reversed(requests) if r.status == 503))
    assert max(r.at_once for r in requests[: down - 60]) >= 16
    assert max(r.at_once for r in requests[down : down + 10]) <= 8
    assert max(r.at_once for r in requests[-150:]) >= 16


class TestNeverAgain:
    """The store does not recover: it is said, with the object's name, and nothing is half written."""

    def test_backup(self, gate: Gate, bucket: str, impatient: RetryPolicy) -> None:
        repository = Repository.open_or_create(place(gate, f"{bucket}/repository"))
        checkpoint = Checkpoint.at(place(gate, f"{bucket}/orders"))
        gate.refuse = Never("/objects/")
        with gate.watched() as requests, pytest.raises(StorageError) as e:
            create_backup(checkpoint, repository)
        assert f" s3://{bucket}/repository/objects/orders/" in e.value.message
        assert "reduce your request rate" in e.value.message
        assert "asked again for " in e.value.message
        assert e.value.hint is not None
        assert "run the same command again" in e.value.hint
        assert by_kind(requests)["COPY"] < 64 + 64, "all threads continued in vain"
        gate.refuse = None
        assert repository.backup_ids("orders") == ()
        assert verify_backup(repository, create_backup(checkpoint, repository).manifest).ok

    @pytest.mark.slow
    @pytest.mark.format_1("what is not copied is written")
    def test_restore(self, gate: Gate, bucket: str, impatient: RetryPolicy) -> None:
        repository = Repository.open_or_create(place(gate, f"{bucket}/repository"))
        manifest = create_backup(Checkpoint.at(place(gate, f"{bucket}/orders")), repository).manifest
        target = place(gate, f"{bucket}/restored")
        gate.refuse = Never("/restored/state/")
        with pytest.raises(StorageError, match=f"could not copy .* to s3://{bucket}/restored/state/"):
            apply_restore(plan_restore(repository, manifest, target), rest=STOPPED)
        gate.refuse = None
        assert Checkpoint.at(target).progress().seal is not None, "a Spark could start"
        apply_restore(plan_restore(repository, manifest, target), rest=STOPPED)
        assert set(target.walk()) == {entry.path for entry in manifest.files}

    def test_prune(self, gate: Gate, bucket: str, impatient: RetryPolicy) -> None:
        repository = Repository.open_or_create(place(gate, f"{bucket}/repository"))
        create_backup(Checkpoint.at(place(gate, f"{bucket}/orders")), repository)
        for number in range(5):
            repository.location.create(f"objects/orders/aa/left{number}", b"by a backup that was killed")
        gate.refuse = lambda kind, path: 503 if kind == "DELETE" and "left3" in path else None
        with pytest.raises(StorageError, match=r"could not delete s3://.*/left3: "):
            apply_prune(repository, plan_prune(repository))
        gate.refuse = None
        apply_prune(repository, plan_prune(repository))
        assert plan_prune(repository).objects == 0
        assert check_repository(repository).ok


class TestBrokenConnections:
    @pytest.mark.parametrize("status", [0, pytest.param(500, marks=pytest.mark.slow)])
    def test_are_made_again(self, gate: Gate, bucket: str, impatient: RetryPolicy, status: int) -> None:
        gate.refuse = Randomly(0.05, status)
        repository = work(gate, bucket)
        gate.refuse = None
        assert check_repository(repository).ok

    def test_a_lost_answer_to_a_create_is_no_other_ones_file(self, s3_server: S3Server, impatient: RetryPolicy) -> None:
        """The file was written and the answer got lost: asked again, it exists, and is ours."""
        bucket = s3_server.make_bucket()
        lost: list[str] = []
        plain = open_location(f"s3://{bucket}", storage_options=s3_server.options())
        gate = Gate(s3_server)

        def lose(kind: str, path: str) -> int | None:
            if kind != "PUT" or lost:
                return None
            lost.append(path)
            plain.create(path.removeprefix(f"/{bucket}/"), contents)
            return 0

        location = place(gate, bucket)
        contents = b"mine"
        gate.refuse = lose
        location.create("a", b"mine")
        assert plain.read("a") == b"mine"
        lost.clear()
        contents = b"somebody else's"
        with pytest.raises(FileExistsError):
            location.create("b", b"mine")
        assert plain.read("b") == b"somebody else's"
        with pytest.raises(FileExistsError):
            location.create("a", b"mine")
        gate.close()


def test_a_listing_goes_on_where_it_was_refused(gate: Gate, s3_server: S3Server, impatient: RetryPolicy) -> None:
    bucket = s3_server.make_bucket()
    plain = open_location(f"s3://{bucket}/many", storage_options=s3_server.options())
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: plain.replace(f"{n % 7}/{n:05}", b"x"), range(1100)))
    refused = iter([503, None, 0, None])
    gate.refuse = lambda kind, path: next(refused, None)
    with gate.watched() as requests:
        found = place(gate, f"{bucket}/many").walk()
    assert found.keys() == plain.walk().keys()
    assert len(found) == 1100
    assert len(requests) <= 5, [str(r) for r in requests]


@pytest.mark.slow
def test_s3fs_is_paced_too(gate: Gate, bucket: str, impatient: RetryPolicy) -> None:
    """It repeats a refused request five times by itself; only what is refused longer than that shows."""
    options: dict[str, Any] = gate.options()
    fs = fsspec.filesystem("s3", **options, skip_instance_cache=True)
    fs.retries = 1
    store = FsspecStore(fs)
    location = Location(store, f"{bucket}/orders")
    location.read("metadata")
    gate.refuse = Randomly(0.2)
    files = list(TREE.files())[:60]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda f: location.read(f[0]), files)) == [content for _, content in files]
