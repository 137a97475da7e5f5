"""Upgrades by the DAG, with the endings that tests ask for."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.task_groups.safe_upgrade import safe_upgrade
from tests.support.airflow_runs import RunDag
from tests.support.safe_upgrades.upgrades import UpgradeRun

#: The batches of these tests are made by copying files.
_ANY_PACE = {"duration_within": None, "input_within": None, "lag_within": None}


@dataclass(frozen=True)
class Made:
    """A task of the user that is made in another way."""

    make: Callable[[str], BaseOperator]


class Tried(UpgradeRun):
    """An upgrade of a stream that nobody runs: what its tasks did, and where it ended.

    :param checkpoint: the checkpoint, drained at batch 5.
    :param did: names of the user's tasks that ran, in order.
    """

    def __init__(self, checkpoint: Path, run_dag: RunDag) -> None:
        self.checkpoint = checkpoint
        Repository.open_or_create(open_location(str(checkpoint.parents[1] / "backups")))
        self.ckpt = Checkpoint.at(open_location(str(checkpoint)))
        self.did: list[str] = []
        self.run: Any = None
        self._run_dag = run_dag

    def upgrade(
        self, *, run: dict[str, Any] | None = None, before: Callable[[DAG], object] | None = None, **settings: Any
    ) -> Tried:
        tasks = {
            name: self.task(settings.pop(name, None))
            for name in ("stop", "deploy", "start", "roll_back_code", "checks", "start_old", "stop_new")
            if name not in ("checks", "start_old", "stop_new") or name in settings
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
                    "health": {"new_batches": 1, "warm_up": 0, "poll_interval": 0.1, "timeout": 3.0, **_ANY_PACE},
                    **tasks,
                    **settings,
                },
            )
        self.dag = dag
        if before:
            before(dag)
        self.run = self._run_dag(dag, **(run or {}))
        return self

    def go_on(self, task_id: str) -> None:
        """Clear a task and what comes after it, and let the run continue."""
        self.did.clear()
        super().go_on(task_id)

    def task(self, does: Any = None) -> Callable[[str], BaseOperator]:
        if isinstance(does, Made):
            return does.make

        def call(task_id: str) -> Any:
            self.did.append(task_id)
            return does() if does else None

        def make(task_id: str) -> BaseOperator:
            return PythonOperator(task_id=task_id, python_callable=call, op_args=[task_id], retries=0)

        return make

    def commit_a_batch(self) -> None:
        """What a stream does that was started: the next batch of the checkpoint, as far as anybody here looks."""
        for log in ("offsets", "commits"):
            shutil.copyfile(self.checkpoint / log / str(self.newest), self.checkpoint / log / str(self.newest + 1))

    @property
    def newest(self) -> int:
        return max(int(file.name) for file in (self.checkpoint / "commits").glob("[0-9]*"))

    @property
    def sealed(self) -> bool:
        return inspect_target(open_location(str(self.checkpoint))).seal is not None


def skip() -> None:
    raise AirflowSkipException("not today")


def fail() -> None:
    raise RuntimeError("no cluster answers")


BACK = ["stop_new", "roll_back_code", "start_old"]
