"""Operators run as tasks of a DAG, without a scheduler."""

from __future__ import annotations

import tests.support.throwaway_airflow  # isort: skip  # noqa: F401
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.one_checkpoint import unpack

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of Spark 4.0.0: an aggregation in RocksDB with changelog, stopped after batch 5."""
    return unpack(tmp_path / "checkpoints" / "orders")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository without a backup."""
    place = tmp_path / "backups"
    Repository.open_or_create(open_location(str(place)))
    return place


@pytest.fixture
def run() -> Run:
    """Make the part of a task's context that the operators use; ``pushed`` collects its XComs."""

    def make(task_id: str = "task", *, try_number: int = 1, run_id: str = "manual__1") -> dict[str, Any]:
        pushed: dict[str, Any] = {}
        ti = SimpleNamespace(
            dag_id="dag",
            run_id=run_id,
            task_id=task_id,
            map_index=-1,
            try_number=try_number,
            xcom_push=lambda key, value: pushed.__setitem__(key, value),
        )
        return {"ti": ti, "pushed": pushed}

    return make
