"""dags/repository_upkeep.py, run by Airflow on a repository with a history."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk import DAG

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.airflow_runs import RunDag, result, states

pytestmark = pytest.mark.airflow


@pytest.mark.usefixtures("settings")
def test_expire_check_copy(
    example_dags: dict[str, DAG],
    run_dag: RunDag,
    checkpoint: Path,
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_CKPT_SECOND_REPOSITORY", str(tmp_path / "second"))
    Repository.open_or_create(open_location(str(tmp_path / "second")))
    source = Repository.open_or_create(open_location(str(repository)))
    ids = [create_backup(Checkpoint.at(open_location(str(checkpoint))), source).backup_id for _ in range(3)]
    run = run_dag(example_dags["repository_upkeep"])
    assert states(run) == {"expire": "success", "check": "success", "copy": "success"}
    expired = result(run, "expire")
    # All within one hour: the newest of it, and the oldest while there are counts left.
    assert [d["backup_id"] for d in expired["plan"]["kept"]] == [ids[2], ids[0]]
    assert [d["backup_id"] for d in expired["outcome"]["removed"]] == [ids[1]]
    assert result(run, "check")["ok"] is True
    assert [b["backup_id"] for b in result(run, "copy")["backups"]] == [ids[0], ids[2]]
    assert Repository.open(open_location(str(tmp_path / "second"))).backup_ids("orders") == (ids[0], ids[2])
