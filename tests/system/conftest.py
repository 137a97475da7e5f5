"""Runs whole DAGs in the tests' own Airflow."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk import DAG

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.airflow_runs import DAGS as DAGS
from tests.support.airflow_runs import answer as answer
from tests.support.airflow_runs import known as known
from tests.support.airflow_runs import load_dags
from tests.support.airflow_runs import metadata_database as metadata_database
from tests.support.airflow_runs import run_dag as run_dag
from tests.support.one_checkpoint import unpack


class _ExampleDags(dict[str, DAG]):
    """The DAGs of the folder ``dags``, each loaded from its own file, as Airflow does, when it is first asked for."""

    def __missing__(self, dag_id: str) -> DAG:
        self.update(load_dags(DAGS / f"{dag_id}.py"))
        return self[dag_id]


@pytest.fixture
def example_dags() -> dict[str, DAG]:
    """The DAGs of the folder ``dags``.

    Loaded for each test: ``dag.test(run_conf=…)`` leaves what it was given in the DAG's own params.
    """
    return _ExampleDags()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of Spark 4.0.0, stopped after batch 5."""
    return unpack(tmp_path / "checkpoints" / "orders")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository without backups."""
    Repository.open_or_create(open_location(str(tmp_path / "backups")))
    return tmp_path / "backups"


@pytest.fixture
def settings(checkpoint: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Variables that the example DAG falls back to."""
    monkeypatch.setenv("AIRFLOW_VAR_CKPT_CHECKPOINT", str(checkpoint))
    monkeypatch.setenv("AIRFLOW_VAR_CKPT_REPOSITORY", str(repository))
