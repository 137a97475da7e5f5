from __future__ import annotations

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import logs, plant
from tests.support.watched_stores import watched


def test_a_checkpoint_of_a_filesystem_and_a_path(place: Location) -> None:
    """As a notebook has it, with the scheme or without."""
    plant(place, logs(range(5)))
    for root in (place.root, f"memory://{place.root}", place.root + "/"):
        checkpoint = Checkpoint(MemoryFileSystem(), root)
        assert checkpoint.progress().latest_logged == 4
        assert checkpoint.location.root == place.root
    assert repr(checkpoint) == f"Checkpoint('memory://{place.root.lstrip('/')}')"


def test_nothing_is_read_before_a_question_is_asked(place: Location) -> None:
    location, store = watched(place)
    Checkpoint.at(location)
    assert store.requests == []


def test_a_store_that_fails_says_so(place: Location) -> None:
    def fail(operation: str, path: str) -> None:
        raise StorageError("could not list it: AccessDenied", hint="ask for access")

    location, _ = watched(place, fail)
    checkpoint = Checkpoint.at(location)
    for question in (checkpoint.progress, checkpoint.resume_point, checkpoint.inspect, lambda: checkpoint.closure(0)):
        with pytest.raises(StorageError, match=r"^could not list it: AccessDenied\nHINT: ask for access$"):
            question()
