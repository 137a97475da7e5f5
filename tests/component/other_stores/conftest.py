"""Fixtures: an empty place in each store that an emulator stands for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from airflow_ckpt_provider.storage.opening import open_location
from tests.support import emulators
from tests.support.emulators import Emulator
from tests.support.stores_under_test import Place

STARTS: dict[str, Any] = {
    "azure": emulators.azure,
    "google": emulators.google,
    "hdfs": emulators.hdfs,
    "mounted": emulators.mounted,
}
#: What is declared of each.
DECLARED: dict[str, dict[str, Any]] = {
    "azure": {"copies": True, "lost_names": frozenset({"q?a#b"})},  # adlfs: "?" is a pattern
    "google": {"copies": True},
    "hdfs": {"compares": True, "directories": True, "leaves_hidden": True},
    "mounted": {"directories": True, "steady": False, "fresh": False},  # its rename shows
}


@pytest.fixture(scope="session", params=sorted(STARTS))
def emulator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Emulator]]:
    """One after the other, each for all tests that want it."""
    start: AbstractContextManager[Emulator] = STARTS[request.param](tmp_path_factory.mktemp(request.param))
    with start as running:
        yield request.param, running


@pytest.fixture
def place(emulator: tuple[str, Emulator]) -> Place:
    """One empty directory in the store."""
    kind, running = emulator
    root = f"{running.make_root()}/some/place"
    location = open_location(f"{running.address}{root}", storage_options=running.options)
    return Place(location, (running.client(), f"{running.base}{root}"), **DECLARED[kind])
