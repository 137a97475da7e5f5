"""Backups and restores that are killed: after a chosen write, or at any moment.

They run in processes forked from a server that has everything loaded, so that a thousand of them take no time.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import Listing, Store, StoredFile
from tests.support.stopped import STOPPED

KILLED = 137
Result = TypeVar("Result")
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


class KillingStore(Store):
    """A local disk on which the process dies right after its n-th change.

    :param after: n; 0 dies before the first one, ``None`` never.
    """

    creates_if_absent = LocalStore.creates_if_absent
    deletes_if_same = LocalStore.deletes_if_same

    def __init__(self, after: int | None) -> None:
        self._store: Store = LocalStore()
        self._after = after
        self._lock = threading.Lock()
        self._changes = [0]  # in a list, which its fenced copies share

    @property
    def protocol(self) -> str:
        return self._store.protocol

    def list(self, path: str) -> Listing:
        return self._store.list(path)

    def walk(self, path: str) -> tuple[StoredFile, ...]:
        return self._store.walk(path)

    def read(self, path: str) -> bytes:
        return self._store.read(path)

    def find(self, path: str) -> StoredFile | None:
        return self._store.find(path)

    def create(self, path: str, data: bytes) -> None:
        self._change(lambda: self._store.create(path, data))

    def replace(self, path: str, data: bytes) -> None:
        self._change(lambda: self._store.replace(path, data))

    def delete(self, path: str) -> None:
        self._change(lambda: self._store.delete(path))

    def delete_listed(self, file: StoredFile) -> None:
        self._change(lambda: self._store.delete_listed(file))

    def replace_listed(self, file: StoredFile, data: bytes) -> StoredFile | None:
        return self._change(lambda: self._store.replace_listed(file, data))

    def remove_empty_directories(self, path: str) -> None:
        self._change(lambda: self._store.remove_empty_directories(path))

    def copy(self, source: str, target: str, size: int) -> None:
        raise NotImplementedError("local copies pass through the process")

    def fenced(self, check: Callable[[], None], *, request_timeout: float | None) -> Store:
        """Both count the same changes."""
        fenced = copy.copy(self)
        fenced._store = self._store.fenced(check, request_timeout=request_timeout)
        return fenced

    def same_as(self, other: Store) -> bool:
        return isinstance(other, (KillingStore, LocalStore))

    def _change(self, change: Callable[[], Result]) -> Result:
        with self._lock:
            if self._changes[0] == self._after:
                os._exit(KILLED)
            result = change()
            self._changes[0] += 1
            if self._changes[0] == self._after:
                os._exit(KILLED)
        return result


def back_up(store: Store, checkpoint: Path, repository: Path, *, workers: int) -> None:
    """Back a checkpoint up."""
    place = Repository.open_or_create(Location(store, str(repository)))
    create_backup(Checkpoint.at(Location(LocalStore(), str(checkpoint))), place, name="stream", workers=workers)


def restore(store: Store, repository: Path, target: Path, *, workers: int, replace: bool = False) -> None:
    """Restore the newest backup."""
    place = Repository.open(Location(store, str(repository)))
    plan = plan_restore(place, place.manifest("latest", name="stream"), Location(store, str(target)), replace=replace)
    apply_restore(plan, rest=STOPPED, workers=workers)


def killed_after(changes: int, work: Callable[..., None], *arguments: Any, **options: Any) -> bool:
    """Run ``work`` in a process that dies after so many changes; return whether it did, or got to the end before."""
    process = _processes.Process(target=_run, args=(changes, work, arguments, options | {"workers": 1}))
    process.start()
    process.join()
    if process.exitcode not in (0, KILLED):
        raise AssertionError(f"{work.__name__} failed with {process.exitcode} after fewer than {changes} changes")
    return process.exitcode == KILLED


def killed_within(seconds: float, work: Callable[..., None], *arguments: Any, **options: Any) -> bool:
    """Run ``work`` in a process that gets SIGKILL after so many seconds; return whether that came in time."""
    process = _processes.Process(target=_run, args=(None, work, arguments, options | {"workers": 8}))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    if process.exitcode not in (0, -9):
        raise AssertionError(f"{work.__name__} failed with {process.exitcode}")
    return process.exitcode == -9


def seconds_of(work: Callable[..., None], *arguments: Any, **options: Any) -> float:
    """How long ``work`` takes that nobody kills: moments before that come in time, however fast the machine is."""
    began = time.monotonic()
    assert not killed_within(300, work, *arguments, **options)
    return time.monotonic() - began


def _run(changes: int | None, work: Callable[..., None], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    work(KillingStore(changes), *arguments, **options)
