from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from airflow_ckpt_provider.storage.location import Location
from tests.unit.checkpoint.stores import forget_all, in_memory

# A busy machine is no fault of the code, and nothing is to be left in the working copy. The same examples every time, so
# that a red run is somebody's doing; EXPLORE=1 tries others.
settings.register_profile("unit", deadline=None, database=None, derandomize=not os.environ.get("EXPLORE"))
settings.load_profile("unit")


@pytest.fixture
def place() -> Iterator[Location]:
    """An empty place in memory."""
    yield in_memory()
    forget_all()
