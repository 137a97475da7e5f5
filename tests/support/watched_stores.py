"""Real stores, watched: what is asked of them is noted, and a test may act before any request."""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.memory_store import MemoryStore
from airflow_ckpt_provider.storage.store import Listing, Store, StoredFile

WRITES = frozenset({"create", "replace", "delete", "copy", "remove_empty_directories"})
WRITES |= {"delete_listed", "replace_listed", "copy_new"}

Before = Callable[[str, str], None]


class Killed(BaseException):
    """The process is dead. Not an ``Exception``, so that no handler in the code under test can continue."""


class WatchedStore(Store):
    """Passes everything on to a real store.

    :param inner: the real store.
    :param before: called with the operation and the path before each request; may raise, may change files.
    :param copies_within: whether to offer copies inside the store, as object stores do.
    :param keeps_targets: whether a copy never writes over a file.
    :param creates_if_absent: what to claim of it; by default what the real store says.
    """

    def __init__(
        self,
        inner: Store,
        before: Before | None = None,
        *,
        copies_within: bool = False,
        creates_if_absent: bool | None = None,
        keeps_targets: bool = True,
    ) -> None:
        self.inner = inner
        self.before = before
        self.requests: list[tuple[str, str]] = []
        self.copies_within = copies_within
        self.keeps_targets = keeps_targets
        self.deletes_if_same = inner.deletes_if_same
        self.creates_if_absent = inner.creates_if_absent if creates_if_absent is None else creates_if_absent

    @property
    def protocol(self) -> str:
        return self.inner.protocol

    def count(self, *operations: str) -> int:
        return sum(operation in operations for operation, _ in self.requests)

    def paths(self, *operations: str) -> list[str]:
        return [path for operation, path in self.requests if operation in operations]

    def _note(self, operation: str, path: str) -> None:
        self.requests.append((operation, path))
        if self.before:
            self.before(operation, path)

    def list(self, path: str) -> Listing:
        self._note("list", path)
        return self.inner.list(path)

    def walk(self, path: str) -> tuple[StoredFile, ...]:
        self._note("walk", path)
        return self.inner.walk(path)

    def read(self, path: str) -> bytes:
        self._note("read", path)
        return self.inner.read(path)

    def find(self, path: str) -> StoredFile | None:
        self._note("find", path)
        return self.inner.find(path)

    def create(self, path: str, data: bytes) -> None:
        self._note("create", path)
        self.inner.create(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self._note("replace", path)
        self.inner.replace(path, data)

    def delete(self, path: str) -> None:
        self._note("delete", path)
        self.inner.delete(path)

    def delete_listed(self, file: StoredFile) -> None:
        self._note("delete_listed", file.path)
        self.inner.delete_listed(file)

    def replace_listed(self, file: StoredFile, data: bytes) -> StoredFile | None:
        self._note("replace_listed", file.path)
        return self.inner.replace_listed(file, data)

    def remove_empty_directories(self, path: str) -> None:
        self._note("remove_empty_directories", path)
        self.inner.remove_empty_directories(path)

    def copy(self, source: str, target: str, size: int) -> None:
        self._note("copy", target)
        (self.inner.create if self.keeps_targets else self.inner.replace)(target, self.inner.read(source))

    def copies_if_absent(self, size: int) -> bool:
        return self.copies_within and self.keeps_targets

    def copy_new(self, source: StoredFile, target: str) -> None:
        self._note("copy_new", target)
        data = self.inner.read(source.path)
        self.require_same(source, self.inner.find(source.path))
        self.inner.create(target, data)

    def fenced(self, check: Callable[[], None], *, request_timeout: float | None) -> Store:
        """What is asked of either is noted in one list."""
        fenced = copy.copy(self)
        fenced.inner = self.inner.fenced(check, request_timeout=request_timeout)
        return fenced

    def same_as(self, other: Store) -> bool:
        return self.inner.same_as(other.inner if isinstance(other, WatchedStore) else other)


class Life:
    """A process that dies after a number of writes, wherever they go.

    :param writes: how many it carries out.
    """

    def __init__(self, writes: int) -> None:
        self.writes = self.left = writes
        self.dead = False
        self._lock = threading.Lock()

    def before(self, operation: str, path: str) -> None:
        with self._lock:
            if operation in WRITES:
                self.dead = self.dead or self.left == 0
                self.left -= 1
            if self.dead:
                raise Killed(f"before {operation} of {path}")


def lives(writes: Iterable[int], *, least: int) -> Iterator[Life]:
    """Processes of which each dies later than the one before, until one lives to its end.

    ::

        for life in lives(range(200), least=10):
            with suppress(Killed):
                change(watched(place, life.before)[0])
            if not life.dead:
                continue

    :param writes: how many each carries out.
    :param least: the one that lives has carried out more.
    """
    for each in writes:
        yield (life := Life(each))
        if not life.dead:
            assert each > least
            return
    pytest.fail("it never ended")


def in_memory(name: str = "orders") -> Location:
    """A new, empty place in the memory of this process."""
    return Location(MemoryStore(MemoryFileSystem()), f"/{uuid.uuid4().hex}/{name}")


def watched(place: Location, before: Before | None = None, **options: bool) -> tuple[Location, WatchedStore]:
    """The same place seen through a :class:`WatchedStore`."""
    store = WatchedStore(place.store, before, **options)
    return Location(store, place.root), store


def forget_all() -> None:
    """Empty the memory filesystem; its listings walk over everything in it."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
