"""Fixtures of the tests of recovery."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import back_up, stream
from tests.support.checkpoints import plant
from tests.support.delta_batches import delta_table
from tests.support.resets import NEWEST
from tests.support.rewound_sinks import Sinks


@pytest.fixture
def manifest(place: Location) -> Manifest:
    """A backup of batches 3 and 4."""
    return back_up(place, stream(4), restorable_batches=2).manifest


@pytest.fixture
def orders(place: Location) -> Location:
    """A stateful stream of files with batches 0 to 6 committed."""
    return plant(place / "orders", stream(NEWEST))


@pytest.fixture
def table(tmp_path: Path) -> Location:
    """Its sink: a Delta table with two rows of each batch."""
    return delta_table(tmp_path / "table", range(NEWEST + 1))


@pytest.fixture
def sinks(tmp_path: Path) -> Sinks:
    """Several sinks of it."""
    return Sinks(tmp_path / "sinks")
