"""A check before each request that changes a store, repeats included; and what it says no to is not sent."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage import pace, s3_store
from airflow_ckpt_provider.storage.encrypted_store import decrypted, new_encryption
from airflow_ckpt_provider.storage.fsspec_store import FsspecStore
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import location_of, open_location
from airflow_ckpt_provider.storage.pace import RetryPolicy
from airflow_ckpt_provider.storage.store import StoredFile
from tests.support.every_run import of_these
from tests.support.s3_gate import Gate, Request
from tests.support.s3_server import S3Server
from tests.support.stores_under_test import Place

SECONDS = 30.0


class LeaseLostError(OSError):
    """As a check may raise it. An ``OSError``, which clients take for a failure of the network."""


class Lease:
    """A check that counts, and says no after a number of times.

    :param times: how often it says yes; ``None``: always.
    """

    def __init__(self, times: int | None = None) -> None:
        self.times = times
        self.asked = 0
        self.error = LeaseLostError("HTTP error: 503 SlowDown, says somebody who took over")
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.asked += 1
            if self.times is not None and self.asked > self.times:
                raise self.error


def file_of(location: Location, path: str) -> StoredFile:
    file = location.find(path)
    assert file is not None
    return file


def changes(location: Location, files: dict[str, StoredFile], source: Location) -> dict[str, Callable[[], object]]:
    """Each verb that changes something, on files of their own, listed in ``source``."""
    verbs: dict[str, Callable[[], object]] = {
        "create": lambda: location.create("create", b"new"),
        "replace": lambda: location.replace("replace", b"new"),
        "delete": lambda: location.delete("delete"),
        "delete_listed": lambda: location.delete_listed(files["delete_listed"]),
        "replace_listed": lambda: location.replace_listed(files["replace_listed"], b"new"),
    }
    if location.store.copies_within:
        root = location.root
        verbs["copy"] = lambda: location.store.copy(f"{root}/source", f"{root}/copy", 3)
        verbs["copy_new"] = lambda: location.copy_new(files["source"], "copy_new")
    return verbs


def plant(location: Location) -> dict[str, StoredFile]:
    for name in ("replace", "delete", "delete_listed", "replace_listed", "source"):
        location.create(name, b"old")
    if location.store.copies_within:  # the first copy is made twice: that shows whether the service knows the condition
        location.store.copy(f"{location.root}/source", f"{location.root}/first", 3)
        location.delete("first")
    return dict(location.walk())


class TestEveryStore:
    def test_is_the_same_store(self, place: Place) -> None:
        fenced = place.location.fenced(lambda: None, request_timeout=SECONDS)
        store, original = fenced.store, place.location.store
        assert store is not original
        assert store.same_as(original)
        assert original.same_as(store)
        assert place.location.contains(fenced / "a")
        assert (fenced / "a").uri == (place.location / "a").uri
        assert store.protocol == original.protocol
        assert store.canonical(place.location.root) == original.canonical(place.location.root)
        for name in ("creates_if_absent", "copies_within", "deletes_if_same"):
            assert getattr(store, name) == getattr(original, name)
        keyed = Location(original, place.location.root, b"key").fenced(lambda: None, request_timeout=SECONDS)
        assert keyed.key == b"key"

    def test_reads_are_not_checked_and_changes_work(self, place: Place) -> None:
        files, lease = plant(place.location), Lease()
        fenced = place.location.fenced(lease, request_timeout=SECONDS)
        assert fenced.read("source") == fenced.read_part("source", 0, 10) == b"old"
        assert fenced.find("source") == files["source"]
        assert fenced.walk() == place.location.walk()
        assert fenced.list() == place.location.list()
        assert lease.asked == 0
        for name, change in changes(fenced, files, place.location).items():
            before = lease.asked
            change()
            assert lease.asked > before, name
        copies = {"copy", "copy_new"} if place.copies else set()
        left = {"create", "replace", "replace_listed", "source"} | copies
        assert set(place.location.walk()) == left
        assert {place.location.read(name) for name in ("create", "replace", "replace_listed")} == {b"new"}

    def test_what_the_check_raises_comes_out_unchanged_and_nothing_is_changed(self, place: Place) -> None:
        files = plant(place.location)
        lease = Lease(0)
        cause = ValueError("why")
        lease.error.__cause__ = cause
        fenced = place.location.fenced(lease, request_timeout=SECONDS)
        for name, change in changes(fenced, files, place.location).items():
            lease.asked = 0
            with pytest.raises(LeaseLostError) as e:
                change()
            assert e.value is lease.error, name
            assert e.value.__cause__ is cause, name
            assert lease.asked == 1, f"{name} was tried again"
        assert {path: file.identity for path, file in place.location.walk().items()} == {
            path: file.identity for path, file in files.items()
        }

    def test_refused_at_any_step_nothing_is_half_done(self, place: Place) -> None:
        """What was there before is there, or what was to be."""
        names = changes(place.location, plant(place.location), place.location)
        for name in names:
            for step in range(1, 10):
                for path in place.location.walk():
                    place.location.delete(path)
                files, lease = plant(place.location), Lease(step)
                verb = changes(place.location.fenced(lease, request_timeout=SECONDS), files, place.location)[name]
                try:
                    verb()
                except LeaseLostError:
                    hidden = {path for path in place.location.walk() if path.startswith(".")}
                    assert place.leaves_hidden or not hidden, (name, step)
                    now = {p: file.identity for p, file in place.location.walk().items() if p not in hidden}
                    if place.leaves_hidden and place.location.read("replace_listed") == b"new":
                        continue  # the old file could not be removed any more
                    assert now == {path: file.identity for path, file in files.items()}, (name, step)
                else:
                    break
            else:
                pytest.fail(f"{name} never comes to its end")

    def test_a_check_that_kills(self, place: Place) -> None:
        class KilledError(BaseException):
            pass

        def kill() -> None:
            raise KilledError

        files = plant(place.location)
        fenced = place.location.fenced(kill, request_timeout=SECONDS)
        for change in changes(fenced, files, place.location).values():
            with pytest.raises(KilledError):
                change()
        assert set(place.location.walk()) == set(files)

    def test_fenced_twice_both_are_called(self, place: Place) -> None:
        first, second = Lease(), Lease()
        fenced = place.location.fenced(first, request_timeout=SECONDS).fenced(second, request_timeout=SECONDS)
        fenced.create("a", b"1")
        fenced.delete_listed(file_of(fenced, "a"))
        assert first.asked == second.asked >= 2


def test_an_encrypted_place(tmp_path: Path) -> None:
    key = os.urandom(32)
    outer = Location(LocalStore(), str(tmp_path), key)
    place = decrypted(outer, new_encryption(key))
    lease = Lease()
    fenced = place.fenced(lease, request_timeout=SECONDS)
    assert fenced.store.same_as(place.store)
    assert place.store.same_as(fenced.store)
    assert fenced.store.same_as(outer.store)
    fenced.create("a", b"old")
    written = fenced.replace_listed(place.walk()["a"], b"newer")
    assert written is not None
    assert (written.size, place.read("a")) == (5, b"newer")
    lease.times = lease.asked
    with pytest.raises(LeaseLostError):
        fenced.delete_listed(written)
    assert place.read("a") == b"newer"
    place.delete_listed(written)
    assert place.walk() == {}


@pytest.fixture
def gate(s3_server: S3Server) -> Iterator[Gate]:
    made = Gate(s3_server)
    yield made
    made.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    short = RetryPolicy(refused=5.0, refused_request=60.0, first_pause=0.02, longest_pause=0.2)
    monkeypatch.setattr(pace, "RetryPolicy", lambda: short)


@pytest.fixture(params=of_these(["s3", "s3 from s3fs", "s3fs"], "s3", "s3fs"))
def through_gate(request: pytest.FixtureRequest, gate: Gate, s3_server: S3Server, impatient: None) -> Location:
    """An empty place behind the gate, by each client."""
    bucket = s3_server.make_bucket()
    if request.param == "s3":
        return open_location(f"s3://{bucket}/d", storage_options=gate.options())
    fs = fsspec.filesystem("s3", **gate.options(), skip_instance_cache=True)
    return (
        location_of(fs, f"{bucket}/d") if request.param == "s3 from s3fs" else Location(FsspecStore(fs), f"{bucket}/d")
    )


def writing(requests: list[Request]) -> list[Request]:
    return [r for r in requests if r.kind not in ("GET", "HEAD", "LIST")]


class TestRepeats:
    @pytest.mark.parametrize("status", [503, 0, pytest.param(500, marks=pytest.mark.slow)])
    def test_each_is_checked(self, gate: Gate, through_gate: Location, status: int) -> None:
        files = plant(through_gate)
        # s3fs itself connects, and looks whether it has to ask another region, once.
        through_gate.store.fenced(lambda: None, request_timeout=SECONDS).delete(f"{through_gate.root}/never")
        lease = Lease()
        fenced = through_gate.fenced(lease, request_timeout=SECONDS)
        for name, change in changes(fenced, files, through_gate).items():
            refusals = iter([status] * 2)
            gate.refuse = lambda kind, path: next(refusals, None) if kind in ("PUT", "COPY", "DELETE") else None  # noqa: B023
            before = lease.asked
            with gate.watched() as requests:
                change()
            sent = writing(requests)
            assert len(sent) == 3, (name, [str(r) for r in requests])
            # Where a connection that was kept turns out to be closed, aiohttp sends the request at once over a new one.
            assert (lease.asked - before) * (2 if status == 0 else 1) >= len(sent), name

    def test_after_a_refusal_nothing_is_sent_once_the_lease_is_lost(self, gate: Gate, through_gate: Location) -> None:
        files = plant(through_gate)
        for name in changes(through_gate, files, through_gate):
            lease = Lease()
            fenced = through_gate.fenced(lease, request_timeout=SECONDS)

            def refuse(kind: str, path: str, lease: Lease = lease) -> int | None:
                if kind not in ("PUT", "COPY", "DELETE"):
                    return None
                lease.times = lease.asked  # while the request is under way
                return 503

            gate.refuse = refuse
            with gate.watched() as requests, pytest.raises(LeaseLostError) as e:
                changes(fenced, files, through_gate)[name]()
            assert e.value is lease.error
            assert len(writing(requests)) == 1, (name, [str(r) for r in requests])
        gate.refuse = None
        assert through_gate.walk() == files

    def test_a_check_that_says_no_sends_nothing(self, gate: Gate, through_gate: Location) -> None:
        files = plant(through_gate)
        fenced = through_gate.fenced(Lease(0), request_timeout=SECONDS)
        with gate.watched() as requests:
            for change in changes(fenced, files, through_gate).values():
                with pytest.raises(LeaseLostError):
                    change()
        assert writing(requests) == []

    def test_sixty_four_at_once(self, gate: Gate, through_gate: Location) -> None:
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(lambda n: through_gate.create(f"d/{n}", b"x"), range(200)))
        files, lease = list(through_gate.walk("d").values()), Lease(100)
        fenced = through_gate.fenced(lease, request_timeout=SECONDS)

        def delete(file: StoredFile) -> bool:
            try:
                fenced.delete_listed(file)
            except LeaseLostError:
                return False
            return True

        with gate.watched() as requests, ThreadPoolExecutor(64) as pool:
            deleted = sum(pool.map(delete, files))
        assert 0 < deleted == len(writing(requests)) <= 100
        assert len(through_gate.walk("d")) == 200 - deleted


class TestLostAnswers:
    """The request was carried out and nobody heard of it: asked again, its own result is no other one's."""

    @pytest.fixture
    def plain(self, through_gate: Location, s3_server: S3Server) -> Location:
        return open_location(f"s3://{through_gate.root}", storage_options=s3_server.options())

    @pytest.mark.parametrize("verb", ["create", "delete_listed", "replace_listed", "copy_new"])
    def test_once(self, gate: Gate, through_gate: Location, plain: Location, verb: str) -> None:
        files = plant(plain)
        lost: list[str] = []

        def lose(kind: str, path: str) -> int | None:
            if kind not in ("PUT", "COPY", "DELETE") or lost:
                return None
            lost.append(path)
            changes(plain, files, plain)[verb]()
            return 0

        gate.refuse = lose
        fenced = through_gate.fenced(lambda: None, request_timeout=SECONDS)
        # aiohttp, of s3fs, may send a request again unseen: the file that it made is then taken for somebody else's.
        unseen = verb == "create" and isinstance(through_gate.store, FsspecStore)
        with contextlib.suppress(FileExistsError) if unseen else contextlib.nullcontext():
            changes(fenced, files, plain)[verb]()
        assert lost
        changed = {"create": b"new", "replace_listed": b"new", "copy_new": b"old"}
        assert (plain.find(verb) is None) if verb == "delete_listed" else plain.read(verb) == changed[verb]


class TestParts:
    """A large upload: obstore sends parts from the background, each after a check."""

    @pytest.fixture(autouse=True)
    def small_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(s3_store, "_MULTIPART_FROM", 12 * 1024**2)
        monkeypatch.setattr(s3_store, "_PART", 5 * 1024**2)

    def test_each_is_checked(self, gate: Gate, s3_server: S3Server, impatient: None) -> None:
        place = open_location(f"s3://{s3_server.make_bucket()}", storage_options=gate.options())
        data, lease = os.urandom(13 * 1024**2), Lease()
        with gate.watched() as requests:
            place.fenced(lease, request_timeout=SECONDS).replace("big", data)
        assert place.read("big") == data
        parts = [r for r in requests if "partNumber" in r.query]
        assert len(parts) == 3
        assert lease.asked >= len(parts) + 1

    def test_an_upload_is_not_completed_once_the_lease_is_lost(
        self, gate: Gate, s3_server: S3Server, impatient: None
    ) -> None:
        place = open_location(f"s3://{s3_server.make_bucket()}", storage_options=gate.options())
        place.create("big", b"old")
        for times in range(1, 5):
            with pytest.raises(LeaseLostError):
                place.fenced(Lease(times), request_timeout=SECONDS).replace("big", os.urandom(13 * 1024**2))
            assert place.read("big") == b"old", times


class TestTimeout:
    def test_a_request_that_gets_no_answer_ends(
        self, gate: Gate, through_gate: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By the client's own clock: the server answers only when the client has given up."""
        through_gate.create("a", b"old")
        file = file_of(through_gate, "a")
        done = threading.Event()

        def hang(kind: str, path: str) -> int | None:
            if kind in ("PUT", "COPY", "DELETE"):
                done.wait(60)
                return 0
            return None

        lease = Lease(2)
        fenced = through_gate.fenced(lease, request_timeout=0.2)
        gate.refuse = hang
        try:
            with pytest.raises((LeaseLostError, StorageError)):
                fenced.replace("a", b"new")
            lease.asked = 0
            with pytest.raises((LeaseLostError, StorageError)):
                fenced.delete_listed(file)
            assert not done.is_set()
        finally:
            done.set()
            gate.refuse = None
