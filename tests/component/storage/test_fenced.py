"""A check before each request that changes a store, repeats included; and what it says no to is not sent."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
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
from tests.support.fenced_conformance import SECONDS, Lease, LeaseLostError, changes, file_of, plant
from tests.support.fenced_conformance import TestEveryStore as TestEveryStore
from tests.support.s3_gate import Gate, Request
from tests.support.s3_server import S3Server


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
