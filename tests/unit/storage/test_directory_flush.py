"""Names are on the disk before anybody is told so, and threads that write side by side share the flushes."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_ckpt_provider.storage import directory_flush
from airflow_ckpt_provider.storage.directory_flush import flush_directory
from airflow_ckpt_provider.storage.local_store import LocalStore

THREADS, FILES = 16, 200


class Disk:
    """What of a directory is on the disk: the names that were there when a flush began, once it has ended."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names: set[str] = set()
        self.flushes = 0

    def fsync(self, descriptor: int) -> None:
        if not os.path.samestat(os.fstat(descriptor), os.stat(self.directory)):
            return
        there = set(os.listdir(self.directory))
        self.flushes += 1
        threading.Event().wait(0.002)  # as long as a disk takes, so that others ask meanwhile
        self.names |= there


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(tmp_path)
    monkeypatch.setattr(os, "fsync", disk.fsync)
    return disk


def test_each_name_is_on_the_disk_when_its_writer_is_told_so(disk: Disk) -> None:
    store = LocalStore()

    def write(number: int) -> bool:
        store.create(f"{disk.directory}/{number}", b"x")
        return f"{number}" in disk.names

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(write, range(FILES)))
    assert disk.flushes < FILES, "every file had a flush of its own: none was shared"


def test_a_flush_that_began_before_a_name_was_made_does_not_count_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on, flushes = threading.Event(), threading.Event(), []

    def flush(path: str) -> None:
        flushes.append(path)
        if len(flushes) == 1:
            began.set()
            assert go_on.wait(60)

    monkeypatch.setattr(directory_flush, "_flush", flush)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(flush_directory, str(tmp_path))
        assert began.wait(60)
        second = pool.submit(flush_directory, str(tmp_path))
        go_on.set()
        first.result(60)
        second.result(60)
    assert len(flushes) == 2


def test_what_could_not_be_flushed_is_an_error_for_everybody_who_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fails)

    def flush(_: int) -> str:
        try:
            flush_directory(str(tmp_path))
        except OSError as e:
            return os.strerror(e.errno or 0)
        return "no error"

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(flush, range(32))) == {os.strerror(errno.EIO)}


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_mount_that_knows_no_flush_of_directories_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails)
    flush_directory(str(tmp_path))


def test_nothing_is_kept_of_directories_that_were_flushed(tmp_path: Path) -> None:
    flush_directory(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        flush_directory(str(tmp_path / "missing"))
    assert directory_flush._directories == {}
