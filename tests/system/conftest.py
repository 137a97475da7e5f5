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
from tests.support.airflow_runs import metadata_database as metadata_database
from tests.support.airflow_runs import run_dag as run_dag
from tests.support.one_checkpoint import unpack


@pytest.fixture
def example_dags() -> dict[str, DAG]:
    """The DAGs of the folder ``dags``, loaded as Airflow does; an error in one of them fails the tests.

    Loaded for each test: ``dag.test(run_conf=…)`` leaves what it was given in the DAG's own params.
    """
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=str(DAGS))
    assert bag.import_errors == {}
    return dict(bag.dags)


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
