from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from airflow_ckpt_provider.storage.location import Location
from tests.unit.checkpoint.stores import forget_all, in_memory

# A busy machine is no fault of the code, and nothing is to be left in the working copy.
settings.register_profile("unit", deadline=None, database=None)
settings.load_profile("unit")


@pytest.fixture
def place() -> Iterator[Location]:
    """An empty place in memory."""
    yield in_memory()
    forget_all()
