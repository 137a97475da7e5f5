"""The stores under test, each with what is declared of it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fsspec
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from airflow_ckpt_provider.storage.fsspec_store import FsspecStore
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.memory_store import MemoryStore
from airflow_ckpt_provider.storage.opening import location_of, open_location
from airflow_ckpt_provider.storage.s3_store import S3Store
from tests.support.s3_server import S3Server

#: Field of :class:`Place` -> what a store cannot do for which it is declared as false.
_WITHOUT = {
    "exclusive": "The store looks for a file and then writes it: of two that create it at once, both may succeed.",
    "copies": "The store cannot copy a file by itself: whoever copies one reads and writes it.",
    "compares": "The store reads a file and then changes it: what somebody writes in between may be lost.",
    "identity": "The store gives files no identity: one that is written again with the same size may look the same.",
    "steady": "The store replaces a file in two steps: readers may find none in between.",
    "fresh": "The store shows late what another client has written: it keeps sizes and times for a while.",
}


@dataclass
class Place:
    """An empty directory in a store.

    :param location: what is under test.
    :param foreign: another client of the same place, with its own caches, and the root in it.
    :param exclusive: ``creates_if_absent`` must be declared and hold.
    :param copies: ``copies_within`` must be declared and work.
    :param compares: ``deletes_if_same`` must be declared and hold.
    :param identity: identities must be given and change with the content.
    :param directories: empty directories exist; object stores have none, though a server may list one for a while.
    :param steady: while a file is replaced, readers find the old content or the new one.
    :param leaves_hidden: a change that a check stops in the middle leaves a file under a hidden name.
    :param fresh: what another client has written shows at once, with its size and identity.
    :param lost_names: names that its client takes for patterns, and does not find again.
    """

    location: Location
    foreign: tuple[AbstractFileSystem, str]
    exclusive: bool = True
    copies: bool = False
    compares: bool = False
    identity: bool = True
    directories: bool = False
    steady: bool = True
    leaves_hidden: bool = False
    fresh: bool = True
    lost_names: frozenset[str] = frozenset()

    def requires(self, capability: str) -> None:
        """Skip the test if the store is declared not to have what the test is about.

        :param capability: a field of this class.
        """
        if not getattr(self, capability):
            where = "places.py or other_stores/conftest.py"
            pytest.skip(f"{_WITHOUT[capability]} It is declared in {where}: Place({capability}=False).")

    def write_from_elsewhere(self, path: str, data: bytes) -> None:
        fs, root = self.foreign
        fs.makedirs(f"{root}/{path}".rpartition("/")[0], exist_ok=True)
        fs.pipe_file(f"{root}/{path}", data)

    def delete_from_elsewhere(self, path: str) -> None:
        fs, root = self.foreign
        fs.rm_file(f"{root}/{path}")


def _local(tmp_path: Path, server: Callable[[], S3Server]) -> Place:
    location = open_location(str(tmp_path / "place"))
    assert isinstance(location.store, LocalStore)
    fs = LocalFileSystem(skip_instance_cache=True)
    return Place(location, (fs, str(tmp_path / "place")), compares=True, directories=True)


def _memory(tmp_path: Path, server: Callable[[], S3Server]) -> Place:
    root = f"/place-{uuid.uuid4()}"
    location = open_location(f"memory:/{root}")
    assert isinstance(location.store, MemoryStore)
    return Place(location, (fsspec.filesystem("memory", skip_instance_cache=True), root), directories=True)


def _s3(tmp_path: Path, server: Callable[[], S3Server]) -> Place:
    """As the command line opens it: obstore alone."""
    s3, root = server(), f"{server().make_bucket()}/some/place"
    location = open_location(f"s3a://{root}", storage_options=s3.options())
    assert isinstance(location.store, S3Store)
    return Place(location, (s3.filesystem(), root), copies=True, compares=True)


def _s3_from_s3fs(tmp_path: Path, server: Callable[[], S3Server]) -> Place:
    """As Airflow and notebooks open it: obstore with what s3fs was given."""
    s3, root = server(), f"{server().make_bucket()}/some/place"
    location = location_of(s3.filesystem(), f"s3://{root}/")
    assert isinstance(location.store, S3Store)
    return Place(location, (s3.filesystem(), root), copies=True, compares=True)


def _s3fs(tmp_path: Path, server: Callable[[], S3Server]) -> Place:
    """Without obstore, or with settings that only s3fs knows."""
    s3, root = server(), f"{server().make_bucket()}/some/place"
    return Place(Location(FsspecStore(s3.filesystem()), root), (s3.filesystem(), root), copies=True, compares=True)


def _two_steps(tmp_path: Path, server: Callable[[], S3Server]) -> Place:
    """As SFTP looks through fsspec: real directories, no exclusive create, no identities."""
    location = location_of(DirFileSystem(str(tmp_path), LocalFileSystem()), "place")
    assert type(location.store) is FsspecStore
    fs = DirFileSystem(str(tmp_path), LocalFileSystem(), skip_instance_cache=True)
    return Place(location, (fs, "place"), exclusive=False, identity=False, directories=True, steady=False)


PLACES: dict[str, Callable[[Path, Callable[[], S3Server]], Place]] = {
    "local": _local,
    "memory": _memory,
    "s3": _s3,
    "s3 from s3fs": _s3_from_s3fs,
    "s3fs": _s3fs,
    "two steps": _two_steps,
}
