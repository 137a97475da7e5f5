"""A repository with backups of one real checkpoint, and a report of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.fleet.discovery import discover
from airflow_ckpt_provider.fleet.fleet import Fleet, inspect_fleet
from airflow_ckpt_provider.fleet.report import keep_report
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.one_checkpoint import unpack


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint.at(open_location(str(unpack(tmp_path / "checkpoints" / "orders"))))


@pytest.fixture
def repository(tmp_path: Path, checkpoint: Checkpoint) -> Repository:
    """One backup of ``orders``."""
    repository = Repository.open_or_create(open_location(str(tmp_path / "backups")))
    create_backup(checkpoint, repository, name="orders", reason="nightly")
    return repository


@pytest.fixture
def fleet(tmp_path: Path, repository: Repository) -> Fleet:
    """The report, kept as the task keeps it."""
    fleet = inspect_fleet(discover([open_location(str(tmp_path / "checkpoints"))]), repository)
    keep_report(repository, fleet, writer="fleet.report")
    return fleet
