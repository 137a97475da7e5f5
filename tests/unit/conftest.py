from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from airflow_ckpt_provider.storage.location import Location
from tests.support.watched_stores import forget_all, in_memory

# A busy machine is no fault of the code, and nothing is to be left in the working copy.
# The same examples every time, so that a red run is somebody's doing; EXPLORE=1 tries others, and more: every night.
_EXPLORE = bool(os.environ.get("EXPLORE"))
settings.register_profile(
    "unit", deadline=None, database=None, derandomize=not _EXPLORE, max_examples=200 if _EXPLORE else 30
)
settings.load_profile("unit")

#: Tests that `make test-fast` leaves out, by the beginning of their ids: those that take long, read Spark's jars or load Airflow.
THOROUGH = tuple(
    line for line in Path(__file__).with_name("thorough.txt").read_text().splitlines() if not line.startswith("#")
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is thorough."""
    for item in items:
        if item.nodeid.partition("[")[0] in THOROUGH or item.nodeid.partition("::")[0] in THOROUGH:
            item.add_marker(pytest.mark.thorough)


@pytest.fixture(autouse=True)
def _nothing_in_memory() -> Iterator[None]:
    """What a test leaves in memory, all listings of later tests would walk over."""
    yield
    forget_all()


@pytest.fixture
def place() -> Location:
    """An empty place in memory."""
    return in_memory()
