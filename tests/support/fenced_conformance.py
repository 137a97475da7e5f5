"""What every store must do behind a fence."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile
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
