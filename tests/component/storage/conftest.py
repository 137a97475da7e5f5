"""Fixtures: an empty place in each kind of store, and the S3 server opened in each way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from airflow_ckpt_provider.storage.exchange import exchange
from airflow_ckpt_provider.storage.fsspec_store import FsspecStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.memory_store import MemoryStore
from airflow_ckpt_provider.storage.mounts import file_system_of
from airflow_ckpt_provider.storage.opening import location_of, open_location
from tests.support.every_run import of_these
from tests.support.s3_server import S3Server
from tests.support.stores_under_test import PLACES, Place

#: The same store as "s3", opened by what s3fs was given: a few tests tell whether it was opened right.
SAME = "s3 from s3fs"


@pytest.fixture(params=of_these(PLACES, *(kind for kind in PLACES if kind != SAME)))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """One empty directory in each kind of store."""

    def server() -> S3Server:
        # Only those that need the server start it.
        found: Any = request.getfixturevalue("s3_server")
        return found

    made = PLACES[request.param](tmp_path, server)
    yield made
    if isinstance(made.location.store, MemoryStore):
        fs, root = made.foreign
        if fs.exists(root):
            fs.rm(root, recursive=True)


S3_KINDS = ["s3", "s3 from s3fs", "s3fs"]


@pytest.fixture(params=of_these(S3_KINDS, "s3", "s3fs"))
def s3_location(request: pytest.FixtureRequest, s3_server: S3Server) -> Callable[..., Location]:
    """A function that opens a path on the S3 server in one of the three ways."""

    def open_it(path: str, **options: Any) -> Location:
        options = s3_server.options() | options
        if request.param == "s3":
            return open_location(f"s3://{path}", storage_options=options)
        fs = fsspec.filesystem("s3", **options, skip_instance_cache=True)
        return location_of(fs, path) if request.param == "s3 from s3fs" else Location(FsspecStore(fs), path)

    return open_it


@pytest.fixture
def names_exchange(tmp_path: Path) -> None:
    """Two files exchange their names here; elsewhere a test of that is skipped, but never where Linux is known to offer it."""
    for name in "ab":
        (tmp_path / name).write_text(name)
    if not exchange(f"{tmp_path}/a", f"{tmp_path}/b"):
        kind = file_system_of(str(tmp_path))
        assert kind not in {"btrfs", "ext4", "tmpfs", "xfs"}
        pytest.skip(
            f"{kind or 'this file system'} does not exchange names, as NFS, SMB and macOS: the other way is tested"
        )
    assert (tmp_path / "a").read_text() == "b"
    for name in "ab":
        (tmp_path / name).unlink()
