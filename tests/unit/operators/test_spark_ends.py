"""An application that an operator has submitted ends with its task: when Airflow kills it, and before a timeout goes further."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.chain import ChainUndoOperator
from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator
from airflow_ckpt_provider.operators.rewind import CheckpointRewindOperator
from airflow_ckpt_provider.operators.verify import CheckpointVerifyOperator
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.sinks.delta_rollback import TableTarget
from tests.support.spark_submit import plant_spark_submit
from tests.support.waiting import wait_until

Run = Callable[..., dict[str, Any]]
#: A task, and what makes it run Spark.
Submits = Callable[[dict[str, str], dict[str, Any]], tuple[Any, Callable[[], Any]]]

#: In the place of spark-submit: runs for ever.
SUBMIT = """#!/bin/sh
echo $$ > "$PID"
exec tail -f /dev/null
"""


def _backup(places: dict[str, str], context: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
    task = CheckpointBackupOperator(task_id="t", engine="spark", **places)
    return task, lambda: task.execute(context)


def _verify(places: dict[str, str], context: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
    task = CheckpointVerifyOperator(task_id="t", engine="spark", repository=places["repository"], read_data="all")
    return task, lambda: task.execute(context)


def _restore(places: dict[str, str], context: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
    task = CheckpointRestoreOperator(
        task_id="t",
        engine="spark",
        mode="apply",
        query_is_stopped=True,
        repository=places["repository"],
        target=places["checkpoint"] + "-restored",
    )
    return task, lambda: task.execute(context)


def _target(places: dict[str, str]) -> TableTarget:
    return TableTarget(open_place(places["checkpoint"]), 3, "query", 7, "plan", {})


def _roll_back(places: dict[str, str], _context: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
    sink = {"sink": places["checkpoint"], "spark_conn_id": "spark_default"}
    task = CheckpointRewindOperator(task_id="t", to="shift_by", value=-1, **places, **sink)
    return task, lambda: task._sinks()[0].by_spark(_target(places), 4)


def _roll_back_by_name(places: dict[str, str], context: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
    task, _ = _roll_back(places, context)
    return task, lambda: task._sinks()[0].engines[0].restore("db.orders", 3, plan_id="plan")


def _chain(places: dict[str, str], _context: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
    task = ChainUndoOperator(task_id="t", spark_conn_id="spark_default", streams="")
    return task, lambda: task._sink(places["checkpoint"], None).by_spark(_target(places), 4)


@pytest.fixture
def pid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in writes its id."""
    plant_spark_submit(monkeypatch, tmp_path, SUBMIT, host="local", PID=str(tmp_path / "pid"))
    return tmp_path / "pid"


def ended(pid: int) -> bool:
    """Whether a child has ended; Python may have noted it already."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


@pytest.mark.parametrize("how", ["killed", "timed out"])
@pytest.mark.parametrize("submits", [_backup, _verify, _restore, _roll_back, _roll_back_by_name, _chain])
def test_an_application_ends_with_its_task(
    submits: Submits, how: str, checkpoint: Path, repository: Path, run: Run, pid: Path
) -> None:
    places = {"checkpoint": str(checkpoint), "repository": str(repository)}
    CheckpointBackupOperator(task_id="b", **places).execute(run(task_id="b"))
    task, act = submits(places, run())

    def interrupt(*_: Any) -> None:
        if how == "timed out":
            raise AirflowTaskTimeout("Timeout")
        task.on_kill()  # as Airflow's own handler, which does not interrupt the task

    def begin() -> None:
        wait_until(lambda: pid.exists() and pid.read_text() and task._submitted[0]._submit_sp, "spark-submit runs")
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    beginning = threading.Thread(target=begin, daemon=True)
    beginning.start()
    try:
        with pytest.raises(AirflowTaskTimeout if how == "timed out" else StorageError):
            act()
        wait_until(lambda: ended(int(pid.read_text())), "spark-submit has ended", within=10)
        task.on_kill()  # there is nothing left to end
    finally:
        beginning.join()
        signal.signal(signal.SIGUSR1, before)
        with suppress(OSError, ValueError):
            os.kill(int(pid.read_text()), signal.SIGKILL)
