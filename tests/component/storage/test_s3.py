"""What is particular to S3: markers, buckets, credentials, failures."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import location_of, open_location
from airflow_ckpt_provider.storage.pace import RetryPolicy
from airflow_ckpt_provider.storage.s3_store import S3Store
from airflow_ckpt_provider.storage.store import Listing
from tests.support.s3_server import FORGER, READER, STRANGER, Identity, S3Server

Opener = Callable[..., Location]


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.make_bucket()


def as_identity(identity: Identity) -> dict[str, str]:
    return {"key": identity.access_key, "secret": identity.secret_key}


def calls(location: Location) -> dict[str, Callable[[], object]]:
    store, root = location.store, location.root
    return {
        "list": lambda: location.list("offsets"),
        "list the root": location.list,
        "walk": lambda: location.walk("offsets"),
        "read": lambda: location.read("offsets/0"),
        "create": lambda: location.create("offsets/1", b"1"),
        "replace": lambda: location.replace("offsets/0", b"1"),
        "delete": lambda: location.delete("offsets/0"),
        "copy": lambda: store.copy(f"{root}/offsets/0", f"{root}/offsets/2", 1),
    }


class TestDirectoryMarkers:
    @pytest.fixture
    def marked(self, s3_server: S3Server, bucket: str) -> str:
        """A checkpoint as S3A leaves it: zero-byte objects whose keys end in a slash."""
        client = s3_server.filesystem()
        for key in ("ck/", "ck/offsets/", "ck/state/", "ck/state/0/", "ck/state/0/7/"):
            client.call_s3("put_object", Bucket=bucket, Key=key, Body=b"")
        client.pipe(
            {f"{bucket}/ck/offsets/0": b"v1", f"{bucket}/ck/offsets/empty": b"", f"{bucket}/ck/state/0/1.delta": b"d"}
        )
        return f"{bucket}/ck"

    def test_are_no_files(self, s3_location: Opener, marked: str) -> None:
        location = s3_location(marked)
        assert set(location.walk()) == {"offsets/0", "offsets/empty", "state/0/1.delta"}
        assert location.list() == Listing((), ("offsets", "state"))
        offsets = location.list("offsets")
        assert sorted(f.path for f in offsets.files) == ["offsets/0", "offsets/empty"]
        assert offsets.directories == ()
        assert location.list("state/0/7") == Listing((), ())
        assert location.walk("state/0/7") == {}


class TestBuckets:
    def test_a_missing_one_is_no_empty_directory(self, s3_location: Opener) -> None:
        for path in ("no-such-bucket-1", "no-such-bucket-1/ck"):
            for name, call in calls(s3_location(path)).items():
                with pytest.raises(StorageError) as e:
                    call()
                assert "s3://no-such-bucket-1" in e.value.message, name
                assert "NoSuchBucket" in e.value.message or "there is no bucket" in e.value.message, name
                assert e.value.hint is not None, name
                assert e.value.hint.startswith("create it, or correct the address"), name

    def test_an_empty_one_is_an_empty_directory(self, s3_location: Opener, bucket: str) -> None:
        assert s3_location(bucket).list() == Listing((), ())
        assert s3_location(f"{bucket}/ck").walk() == {}

    def test_the_root_of_one(self, s3_location: Opener, bucket: str) -> None:
        location = s3_location(bucket)
        location.create("offsets/0", b"1")
        location.create("metadata", b"2")
        assert set(location.walk()) == {"offsets/0", "metadata"}
        assert location.list().directories == ("offsets",)
        assert [f.path for f in location.list().files] == ["metadata"]

    @pytest.mark.slow
    def test_copy_from_one_to_another(self, s3_location: Opener, s3_server: S3Server, bucket: str) -> None:
        source, target = s3_location(f"{bucket}/ck"), s3_location(f"{s3_server.make_bucket('repo')}/r")
        source.create("a b/ü%", b"data")
        source.store.copy(f"{source.root}/a b/ü%", f"{target.root}/c d/é", 4)
        assert target.read("c d/é") == b"data"
        assert source.walk().keys() == {"a b/ü%"}
        with pytest.raises(StorageError, match="bucket"):
            source.store.copy(f"{source.root}/a b/ü%", "no-such-bucket-1/x", 4)
        with pytest.raises(FileNotFoundError):
            source.store.copy(f"{source.root}/gone", f"{target.root}/gone", 4)


class TestCredentials:
    @pytest.fixture(autouse=True)
    def _content(self, s3_location: Opener, bucket: str) -> None:
        s3_location(f"{bucket}/ck").create("offsets/0", b"v1")

    @pytest.mark.parametrize("identity", [STRANGER, FORGER], ids=["unknown key", "wrong secret"])
    def test_wrong_ones(self, s3_location: Opener, bucket: str, identity: Identity) -> None:
        for name, call in calls(s3_location(f"{bucket}/ck", **as_identity(identity))).items():
            with pytest.raises(StorageError) as e:
                call()
            assert f"s3://{bucket}/ck" in e.value.message, name
            assert "HINT: check" in str(e.value), name
            assert len(str(e.value)) < 500, name

    def test_names_place_reason_and_next_step(self, s3_server: S3Server, bucket: str) -> None:
        location = open_location(f"s3://{bucket}/ck", storage_options=s3_server.options(STRANGER))
        with pytest.raises(StorageError) as e:
            location.list("offsets")
        assert str(e.value) == (
            f"could not list s3://{bucket}/ck/offsets: The access key ID you provided does not exist in our records"
            " (InvalidAccessKeyId)\nHINT: check the access key, the secret and the token of the connection"
            " (or of storage_options, or the environment)"
        )

    def test_read_only_ones(self, s3_location: Opener, bucket: str) -> None:
        location = s3_location(f"{bucket}/ck", **as_identity(READER))
        assert set(location.walk()) == {"offsets/0"}
        assert location.read("offsets/0") == b"v1"
        for name in ("create", "replace", "delete", "copy"):
            with pytest.raises(StorageError) as e:
                calls(location)[name]()
            assert f"s3://{bucket}/ck/offsets/" in e.value.message, name
            assert "Access Denied (AccessDenied)" in e.value.message, name
            assert e.value.hint == (
                "check that these credentials may list, read and write there (some steps need only a part of that)"
            )
        assert s3_location(f"{bucket}/ck").read("offsets/0") == b"v1"

    def test_from_the_environment(self, s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for key, value in s3_server.environment().items():
            monkeypatch.setenv(key, value)
        location = open_location(f"s3://{bucket}/ck")
        assert isinstance(location.store, S3Store)
        assert set(location.walk()) == {"offsets/0"}

    def test_given_ones_win_over_the_environment(
        self, s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for key, value in s3_server.environment(STRANGER).items():
            monkeypatch.setenv(key, value)
        monkeypatch.setenv("AWS_SESSION_TOKEN", "of-somebody-else")
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
        location = open_location(f"s3://{bucket}/ck", storage_options=s3_server.options())
        assert set(location.walk()) == {"offsets/0"}
        assert set(location_of(s3_server.filesystem(), f"{bucket}/ck").walk()) == {"offsets/0"}

    def test_copies_go_between_locations_of_one_identity_only(self, s3_server: S3Server, bucket: str) -> None:
        mine, also_mine, of_reader = (
            open_location(f"s3://{bucket}", storage_options=s3_server.options(identity))
            for identity in (Identity("a", "b"), Identity("a", "b"), READER)
        )
        assert mine.store.same_as(also_mine.store)
        assert not mine.store.same_as(of_reader.store)
        admin = open_location(f"s3://{bucket}", storage_options=s3_server.options())
        assert admin.store.same_as(location_of(s3_server.filesystem(), bucket).store)


class TestUnreachable:
    def test_refused(self, s3_location: Opener) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound and not listening: every connection is refused
            endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(StorageError) as e:
                s3_location("bucket/ck", endpoint_url=endpoint).list("offsets")
        assert e.value.message.startswith("could not list s3://bucket/ck/offsets: ")
        assert e.value.hint is not None
        assert "store is reachable" in e.value.hint

    @pytest.mark.parametrize("s3_location", ["s3"], indirect=True)  # s3fs repeats on its own account
    def test_one_that_hangs_up_is_not_asked_for_ever(self, s3_location: Opener) -> None:
        connections: list[socket.socket] = []
        with socket.create_server(("127.0.0.1", 0)) as server:

            def hang_up() -> None:
                with contextlib.suppress(OSError):  # the test has ended
                    while True:
                        connections.append(server.accept()[0])
                        connections[-1].close()

            threading.Thread(target=hang_up, daemon=True).start()
            with pytest.raises(StorageError, match=r"could not list s3://bucket/ck/offsets: "):
                s3_location("bucket/ck", endpoint_url=f"http://127.0.0.1:{server.getsockname()[1]}").list("offsets")
            server.shutdown(socket.SHUT_RDWR)
        assert len(connections) == 1 + RetryPolicy().failures


class TestFork:
    """Airflow forks. obstore's threads do not come along, and it would wait for them without end."""

    PROGRAM = """
import os, signal, sys
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.pace import RetryPolicy
from airflow_ckpt_provider.storage.opening import open_location
place = open_location(sys.argv[1])
assert place.read("a") == b"1"
if os.fork() == 0:
    signal.alarm(60)
    try:
        place.read("a")
    except StorageError as e:
        print(e.message)
    print(type(open_location(sys.argv[1]).store).__name__, open_location(sys.argv[1]).read("a"), flush=True)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""

    def test_after_use(self, s3_server: S3Server, bucket: str) -> None:
        s3_server.filesystem().pipe_file(f"{bucket}/x/a", b"1")
        done = subprocess.run(
            [sys.executable, "-c", self.PROGRAM, f"s3://{bucket}/x"],
            env=os.environ | s3_server.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            f"s3://{bucket} was opened before this process was forked off",
            "FsspecStore b'1'",
        ]
