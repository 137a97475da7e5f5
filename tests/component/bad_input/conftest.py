"""Fixtures of the tests of bad input: a real checkpoint, and a repository with a backup of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import new_repository, run
from tests.support.one_checkpoint import unpack


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return unpack(tmp_path / "orders")


@pytest.fixture
def repository(tmp_path: Path, checkpoint: Path) -> Path:
    """A repository with one backup of the checkpoint."""
    place = tmp_path / "backups"
    new_repository(place)
    assert run("backup", checkpoint, place).code == 0
    return place
