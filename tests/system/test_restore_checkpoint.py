"""dags/restore_checkpoint.py, run by Airflow on a real backup."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.places import open_place
from tests.support.airflow_runs import Answer, RunDag, result, states
from tests.support.one_checkpoint import NEWEST

pytestmark = pytest.mark.airflow

Restore = Callable[..., Any]


@pytest.fixture
def backup(checkpoint: Path, repository: Path) -> dict[str, Any]:
    operator = CheckpointBackupOperator(
        task_id="b", checkpoint=str(checkpoint), repository=str(repository), restorable_batches=2
    )
    return operator.execute({})


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "restored" / "orders"


@pytest.fixture
def restore(example_dags: dict[str, DAG], run_dag: RunDag, backup: dict[str, Any], target: Path) -> Restore:
    """Fill in the form and run the DAG."""

    def run(**form: Any) -> Any:
        return run_dag(
            example_dags["restore_checkpoint"],
            run_conf={"repository": backup["repository"], "target": str(target), **form},
        )

    return run


def _resumes_with(place: Path) -> int | None:
    return Checkpoint.at(open_place(str(place))).resume_point().batch_id


def test_plan_is_the_default(restore: Restore, backup: dict[str, Any], target: Path) -> None:
    run = restore()
    assert run.state == "success"
    assert states(run) == {"plan": "success", "what_next": "success", "approve": "skipped", "apply": "skipped"}
    planned = result(run, "plan")
    assert planned["plan"]["backup_id"] == backup["backup_id"]
    assert planned["markdown"].startswith(f"### Restore, plan {planned['plan']['plan_id']}\n")
    assert not target.exists()


def test_apply(restore: Restore, backup: dict[str, Any], target: Path) -> None:
    run = restore(mode="apply", reason="drill")
    assert states(run) == {"plan": "success", "what_next": "success", "approve": "skipped", "apply": "success"}
    assert result(run, "apply", "outcome")["batch_id"] == NEWEST
    assert _resumes_with(target) == NEWEST + 1
    record = Repository.open(open_place(backup["repository"])).audit(f"restore_checkpoint/{run.run_id}/apply/-1")
    assert record is not None
    assert record["reason"] == "drill"


def test_in_place_of_a_broken_checkpoint(restore: Restore, backup: dict[str, Any], checkpoint: Path) -> None:
    """All fields of the form in use."""
    (checkpoint / "commits" / str(NEWEST)).unlink()
    (checkpoint / "metadata").unlink()
    run = restore(
        mode="apply",
        name="orders",
        backup_id=backup["backup_id"],
        target=str(checkpoint),
        batch=NEWEST - 1,
        replace=True,
        query_is_stopped=True,
        stop_running=False,
        approval=False,
    )
    assert run.state == "success"
    assert result(run, "apply", "outcome")["kept"] is not None
    assert _resumes_with(checkpoint) == NEWEST


def test_not_empty_without_replace(restore: Restore, checkpoint: Path) -> None:
    (checkpoint / "commits" / str(NEWEST)).unlink()
    run = restore(mode="apply", target=str(checkpoint))
    assert run.state == "failed"
    assert states(run) == {
        "plan": "failed",
        "what_next": "upstream_failed",
        "approve": "upstream_failed",
        "apply": "upstream_failed",
    }


@pytest.mark.parametrize(("choice", "applied"), [("Approve", "success"), ("Reject", "skipped")])
def test_approval(restore: Restore, answer: Answer, target: Path, choice: str, applied: str) -> None:
    answer("restore_checkpoint", choice)
    run = restore(mode="apply", approval=True)
    assert run.state == "success"
    assert states(run) == {"plan": "success", "what_next": "success", "approve": "success", "apply": applied}
    assert target.exists() is (applied == "success")
