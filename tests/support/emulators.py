"""Emulators of stores that cost money, an HDFS and a mount: fetched into .cache/stores on first use, each a process of its own.

========  =============================================  =======================================
store     what runs                                      fetched by
========  =============================================  =======================================
Azure     Azurite, Microsoft's own emulator              npm
Google    fake-gcs-server                                go install
HDFS      Apache Hadoop itself                           Maven (``dev/hdfs-jars.txt``)
a mount   SeaweedFS by FUSE (/dev/fuse, fusermount)      pip, as the S3 server of the tests
========  =============================================  =======================================
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.hdfs_cluster import running_hdfs
from tests.support.s3_server import _end_with_parent, _free_ports, _weed

_CACHE = Path(".cache/stores").absolute()
_CLIENTS = ("adlfs==2026.8.0", "gcsfs==2026.10.1")
_AZURITE = "azurite@3.37.0"
_FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"
#: Azurite's well-known account.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_START_WITHIN = 90.0


@dataclass(frozen=True)
class Emulator:
    """A running store.

    :param address: what its URIs begin with.
    :param options: ``storage_options`` with which they are opened.
    :param client: makes another client of it, that shares no cache with any other.
    :param base: what paths begin with, as that client has them.
    """

    address: str
    options: dict[str, Any]
    client: Callable[[], Any]
    base: str = ""

    def make_root(self) -> str:
        """Make an empty bucket, container or directory; return its name."""
        name = f"ckpt-{uuid.uuid4().hex[:12]}"
        self.client().mkdir(f"{self.base}{name}")
        return name


@contextlib.contextmanager
def azure(directory: Path) -> Iterator[Emulator]:
    """Azure Blob Storage by Azurite."""
    install_clients()
    program = _CACHE / "npm" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not program.exists():
        _fetch("npm", "install", "--no-audit", "--no-fund", "--prefix", _CACHE / "npm", _AZURITE)
    (port,) = _free_ports(1)
    options = ("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent")
    with _running(directory, "node", program, "--blobHost", "127.0.0.1", "--blobPort", port, *options) as process:
        _await(process, directory, lambda: _listens(port))
        address = f"http://127.0.0.1:{port}/{_ACCOUNT}"
        words = f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};BlobEndpoint={address};"
        options = {"connection_string": words}
        yield Emulator("abfs://", options, lambda: _client("abfs", **options))


@contextlib.contextmanager
def google(directory: Path) -> Iterator[Emulator]:
    """Google Cloud Storage by fake-gcs-server."""
    # Else gcsfs asks for the kind of each bucket by gRPC and TLS, for a minute.
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    install_clients()
    program = _CACHE / "go" / "fake-gcs-server"
    if not program.exists():
        _fetch("go", "install", _FAKE_GCS, GOBIN=str(program.parent))
    (port,) = _free_ports(1)
    options = ("-scheme", "http", "-host", "127.0.0.1", "-backend", "memory", "-public-host", f"127.0.0.1:{port}")
    with _running(directory, program, "-port", port, *options) as process:
        _await(process, directory, lambda: _listens(port))
        options = {"endpoint_url": f"http://127.0.0.1:{port}", "token": "anon", "project": "test"}
        yield Emulator("gs://", options, lambda: _client("gcs", **options))


@contextlib.contextmanager
def hdfs(directory: Path) -> Iterator[Emulator]:
    """HDFS, by the address that Spark has for it."""
    with running_hdfs(directory) as cluster:
        yield Emulator(f"{cluster.address}/", cluster.options, cluster.client, base="/")


@contextlib.contextmanager
def mounted(directory: Path) -> Iterator[Emulator]:
    """A store that looks like a directory, as a volume does on Databricks: SeaweedFS by FUSE, mounted twice."""
    ports = _free_ports(6)
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
    server = {"dir": directory, "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "filer": "true", "volume.max": 100}
    server |= {"master.volumeSizeLimitMB": 64, "master.electionTimeout": "1s", "master.telemetry": "false"}
    server |= dict(zip(names, ports, strict=True)) | {"filer.localSocket": directory / "filer.sock"}
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(_running(directory, _weed(), "server", *(f"-{k}={v}" for k, v in server.items())))
        _await(process, directory, lambda: _listens(ports[4]))
        mounts = [_mount(stack, directory / name, f"127.0.0.1:{ports[4]}.{ports[5]}") for name in ("here", "elsewhere")]
        yield Emulator(f"file://{mounts[0]}/", {}, lambda: _client("file"), base=f"{mounts[1]}/")


def _mount(stack: contextlib.ExitStack, place: Path, filer: str) -> Path:
    (place / "log").mkdir(parents=True)
    point = place / "mnt"
    point.mkdir()
    options = (f"-filer={filer}", f"-dir={point}", f"-cacheDir={place}", f"-localSocket={place / 'sock'}")
    process = stack.enter_context(_running(place / "log", _weed(), "mount", *options))
    stack.callback(subprocess.run, ["fusermount", "-u", "-z", str(point)], check=False)
    _await(process, place / "log", lambda: os.path.ismount(point))
    return point


def install_clients() -> None:
    """Have adlfs and gcsfs importable, which this project's own environment does not need."""
    place = _CACHE / "clients"
    if not (place / "ready").exists():
        shutil.rmtree(place, ignore_errors=True)
        _fetch("dev/uv.sh", "pip", "install", "--quiet", "--python", sys.executable, "--target", place, *_CLIENTS)
        (place / "ready").touch()
    if str(place) not in sys.path:
        sys.path.append(str(place))  # last: what both have is the project's


def _fetch(*command: object, **environment: str) -> None:
    print(f"fetching by {' '.join(map(str, command))} (once)", file=sys.stderr)
    subprocess.run(list(map(str, command)), check=True, env=os.environ | environment)


@contextlib.contextmanager
def _running(directory: Path, *command: object) -> Iterator[subprocess.Popen[bytes]]:
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=directory,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _await(process: subprocess.Popen[bytes], directory: Path, answers: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_WITHIN
    while not answers():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"it did not start:\n{(directory / 'log').read_text(errors='replace')[-4000:]}")
        time.sleep(0.1)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


def _client(protocol: str, **options: Any) -> Any:
    import fsspec

    return fsspec.filesystem(protocol, **options, skip_instance_cache=True)
