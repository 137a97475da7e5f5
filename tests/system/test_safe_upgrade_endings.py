"""How a run of `safe_upgrade` can end in a real Airflow: nothing is stopped in vain, and nothing stays down without a word."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.task_groups.safe_upgrade import safe_upgrade
from tests.system.conftest import RunDag, result, states

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

QUERY_OF_SAMPLE = "query"


class Tried:
    """An upgrade of a stream that nobody runs: what its tasks did, and where it ended.

    :param checkpoint: the checkpoint, drained at batch 5.
    :param did: names of the user's tasks that ran, in order.
    """

    def __init__(self, checkpoint: Path, run_dag: RunDag) -> None:
        self.checkpoint = checkpoint
        self.did: list[str] = []
        self.run: Any = None
        self._run_dag = run_dag

    def upgrade(self, *, run: dict[str, Any] | None = None, **settings: Any) -> Tried:
        tasks = {
            name: self.task(name, settings.pop(name, None)) for name in ("stop", "deploy", "start", "roll_back_code")
        }
        with DAG(f"upgrade_{uuid.uuid4().hex[:8]}", schedule=None) as dag:
            safe_upgrade(
                "u",
                **{
                    "checkpoint": str(self.checkpoint),
                    "repository": str(self.checkpoint.parents[1] / "backups"),
                    "preflight": None,
                    "approval": False,
                    "quiet_for": 0.1,
                    "rest_timeout": 30.0,
                    "stuck_after": 1.0,
                    "retries": 0,
                    "health": {"new_batches": 1, "warm_up": 0, "poll_interval": 0.1, "timeout": 0.5},
                    **tasks,
                    **settings,
                },
            )
        self.run = self._run_dag(dag, **(run or {}))
        return self

    def task(self, name: str, does: Callable[[], Any] | None = None) -> Callable[[str], BaseOperator]:
        def call(task_id: str) -> Any:
            self.did.append(task_id)
            return does() if does else None

        def make(task_id: str) -> BaseOperator:
            return PythonOperator(task_id=task_id, python_callable=call, op_args=[task_id], retries=0)

        return make

    @property
    def tasks(self) -> dict[str, str]:
        return {task_id.removeprefix("u."): state for task_id, state in states(self.run).items()}

    @property
    def failed(self) -> list[str]:
        return sorted(task_id for task_id, state in self.tasks.items() if state == "failed")

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = result(self.run, "u.report") or result(self.run, "u.report", "report")
        return found

    @property
    def sealed(self) -> bool:
        return inspect_target(open_location(str(self.checkpoint))).seal is not None


@pytest.fixture
def tried(checkpoint: Path, run_dag: RunDag) -> Tried:
    return Tried(checkpoint, run_dag)


def skip() -> None:
    raise AirflowSkipException("not today")


def test_no_sink_is_named(tried: Tried) -> None:
    """With its defaults."""
    tried.upgrade()
    assert tried.failed == ["begin", "report"]
    assert tried.did == []


def test_deploy_is_skipped(tried: Tried) -> None:
    tried.upgrade(deploy=skip, sink="foreachBatch", sink_policy="keep")
    assert tried.report["kind"] == "taken_back"
    assert not tried.sealed
    assert tried.did == ["stop", "deploy", "stop_new", "roll_back_code", "start_old"]
