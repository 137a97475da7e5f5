"""Upgrades of a test stream by a real Airflow: the DAG, its run, and a run that is continued with after tasks were cleared."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.definitions._internal.contextmanager import _CURRENT_CONTEXT
from deltalake import DeltaTable

from airflow_ckpt_provider.backup import lease
from airflow_ckpt_provider.operators.upgrade_modes import LAST_STATE
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.task_groups.safe_upgrade import safe_upgrade
from tests.support.airflow_runs import result, states
from tests.support.safe_upgrades.stream import Stream

_HEALTH = {
    "new_batches": 2,
    "warm_up": 1,
    # The first batches of new code on a busy machine, whose stream falls behind by itself.
    "duration_within": None,
    "input_within": None,
    "lag_within": None,
    "stuck_after": 15.0,
    "poll_interval": 0.5,
    "timeout": 240.0,
}


def contiguous(table: Path) -> None:
    """A data check as users have them: each event once, none left out. Fails otherwise."""
    numbers = sorted(DeltaTable(str(table)).to_pyarrow_table(columns=["v"])["v"].to_pylist())
    for partition in (0, 1):
        found = [number for number in numbers if number % 2 == partition]
        assert found == list(range(partition, found[-1] + 1, 2)), "events are missing, doubled or changed"


class UpgradeRun:
    """A run of the DAG of an upgrade, whose tasks are in the group ``u``.

    :ivar dag: the DAG.
    :ivar run: its run; ``None`` before.
    """

    dag: DAG
    run: Any

    @property
    def tasks(self) -> dict[str, str]:
        """State of each task."""
        return {task_id.removeprefix("u."): state for task_id, state in states(self.run).items()}

    @property
    def failed(self) -> list[str]:
        return sorted(task_id for task_id, state in self.tasks.items() if state == "failed")

    @property
    def report(self) -> dict[str, Any]:
        """What it says of its end."""
        found: dict[str, Any] = result(self.run, "u.report") or result(self.run, "u.report", "report")
        return found

    def go_on(self, task_id: str) -> None:
        """Clear a task and all that comes after it, as a person does in the web interface, and let the run continue."""
        from airflow.models.dagrun import DagRun
        from airflow.models.taskinstance import clear_task_instances
        from airflow.sdk.definitions.dag import _run_task
        from airflow.serialization.serialized_objects import DagSerialization
        from airflow.utils.session import create_session
        from sqlalchemy import select

        ids = {f"u.{task_id}", *self.dag.task_dict[f"u.{task_id}"].get_flat_relative_ids(upstream=False)}
        with create_session() as session:
            run = session.scalar(
                select(DagRun).where(DagRun.run_id == self.run.run_id, DagRun.dag_id == self.run.dag_id)
            )
            again = [ti for ti in run.get_task_instances(session=session) if ti.task_id in ids]
            clear_task_instances(again, session, dag_run_state="running")
            session.commit()
            run.dag = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(self.dag))
            while run.state == "running":
                session.expire_all()
                due, _ = run.update_state(session=session)
                for ti in due:
                    ti.try_number += ti.state != "up_for_reschedule"
                    ti.state = "scheduled"
                session.commit()
                for ti in run.get_task_instances(session=session):
                    if ti.state == "scheduled":
                        _run_task(ti=ti, task=self.dag.task_dict[ti.task_id], run_triggerer=True)
                if not due:
                    time.sleep(0.2)
        self.run = run


@dataclass
class Upgrade(UpgradeRun):
    """One run of the upgrade of a stream.

    :param stream: what is upgraded.
    :param dag: its DAG.
    :param run: its run; ``None`` before.
    """

    stream: Stream
    dag: DAG
    run: Any = None
    seconds: float = field(default=0.0)

    @property
    def kind(self) -> str:
        return str(self.report["kind"])

    def result(self, task_id: str, key: str = "return_value") -> Any:
        return result(self.run, f"u.{task_id}", key)

    def times(self, task_id: str) -> tuple[float, float]:
        """When a task began and ended."""
        [ti] = [ti for ti in self.run.get_task_instances() if ti.task_id == f"u.{task_id}"]
        return ti.start_date.timestamp(), ti.end_date.timestamp()


def make_upgrade(stream: Stream, to: str, **changes: Any) -> Upgrade:
    """Make the DAG that upgrades a stream.

    :param to: the new version.
    :param changes: what is other than usual; values for ``stop``, ``deploy`` and so on are plain functions.
    """
    commands: dict[str, Callable[..., Any] | None] = {
        "stop": stream.stop,
        "deploy": lambda: stream.deploy(to),
        "start": stream.start,
        "roll_back_code": lambda: stream.roll_back_code(),
        "checks": lambda: contiguous(stream.table),
    }
    commands |= {name: changes.pop(name) for name in [*commands, "stop_new", "start_old", "shadow"] if name in changes}
    if changes.get("mode") == LAST_STATE:
        commands["stop"] = None
    settings: dict[str, Any] = {
        "checkpoint": str(stream.checkpoint),
        "repository": str(stream.root / "backups"),
        "sink": str(stream.table),
        "version": to,
        "reason": "a test",
        "preflight": None,
        "approval": False,
        "quiet_for": 0.5,
        "rest_timeout": 180.0,
        "stuck_after": 5.0,
        "retries": 0,
        "retry_delay": 0.0,
        **changes,
        "health": {
            **_HEALTH,
            "progress_log": stream.progress_log,
            "error_log": stream.error_log,
            **changes.get("health", {}),
        },
        **{name: _task(function) for name, function in commands.items()},
    }
    with DAG(f"upgrade_{uuid.uuid4().hex[:8]}", schedule=None) as dag:
        safe_upgrade("u", **settings)
    return Upgrade(stream, dag)


def _task(function: Callable[..., Any] | None) -> Callable[[str], BaseOperator] | None:
    if function is None:
        return None

    def call() -> Any:
        return function()

    def make(task_id: str) -> BaseOperator:
        return PythonOperator(task_id=task_id, python_callable=call, retries=0)

    return make


class WorkerGoneError(BaseException):
    """The process of a task is gone: nothing catches it, and nothing is written by it any more."""


def worker_dies(monkeypatch: pytest.MonkeyPatch, task_id: str, *, after: int) -> list[str]:
    """Let the first attempt of a task end in the middle: after so many writes no other one is carried out.

    :param task_id: the task, within its group.
    :param after: writes that are still carried out.
    :return: grows by the name of the write that was not.
    """
    died: list[str] = []
    done = 0

    def dying(name: str) -> Callable[..., Any]:
        real = getattr(LocalStore, name)

        def write(*arguments: Any, **more: Any) -> Any:
            nonlocal done
            ti = _CURRENT_CONTEXT[-1]["ti"] if _CURRENT_CONTEXT else None
            if ti is not None and ti.task_id == f"u.{task_id}" and ti.try_number == 1:
                done += 1
                if done > after:
                    died.append(name)
                    raise WorkerGoneError(f"{name}, after {after} writes")
            return real(*arguments, **more)

        return write

    for name in ("create", "replace", "delete", "copy"):
        monkeypatch.setattr(LocalStore, name, dying(name))
    # The next attempt runs in this process too; as on a worker, the one before is a process that is gone.
    monkeypatch.setattr(lease, "_is_alive", lambda pid: not died)
    return died


@contextmanager
def timeouts_are_noticed() -> Iterator[None]:
    """Do what Airflow's scheduler does for questions that nobody answers, and ``dag.test`` does not."""
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner

    over = threading.Event()
    runner = SchedulerJobRunner(Job(), executors=[])

    def look() -> None:
        while not over.wait(0.5):
            runner.check_awaiting_input_timeouts()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)
