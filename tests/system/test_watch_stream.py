"""dags/watch_stream.py, run by Airflow: in this process, and once (marker `slow`) by a real scheduler and triggerer."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task

from tests.support.airflow_runs import DAGS, RunDag, load_dags, result, states
from tests.support.growing_streams import DiskStream
from tests.support.real_airflow import RealAirflow, ran
from tests.support.real_airflow import stream as stream

pytestmark = pytest.mark.airflow


@pytest.fixture
def dags(stream: DiskStream) -> dict[str, DAG]:
    return load_dags(DAGS / "watch_stream.py")


def deployed(dag: DAG, work: Callable[[], object]) -> DAG:
    """The DAG with a task of one's own between the wait and the gate."""
    with dag:

        @task
        def deploy() -> None:
            work()

        dag.get_task("drained") >> deploy() >> dag.get_task("healthy")
    return dag


def test_drain_deploy_and_compare(dags: dict[str, DAG], run_dag: RunDag, stream: DiskStream) -> None:
    """The wait is deferred (the newest batch is fresh) and ends in its trigger."""
    assert set(dags) == {"watch_stream", "stream_incident"}
    dag = deployed(dags["watch_stream"], lambda: ran(stream, range(30, 41), seconds=2.2))
    run = run_dag(dag)
    assert states(run) == dict.fromkeys(["baseline", "drained", "deploy", "healthy"], "success")
    assert result(run, "baseline")["seconds_per_batch"] == pytest.approx(2.0, abs=0.1)
    drained, report = result(run, "drained"), result(run, "healthy")
    assert (drained["latest_committed"], drained["gap"], drained["checkpoint"]) == (29, 0, str(stream))
    assert drained["seconds_since_commit"] >= 2.0
    assert (report["healthy"], report["measured"]["batch_id"]) == (True, 40)
    assert [check["ok"] for check in report["checks"]] == [True, True]


def test_deployment_that_runs_slowly_fails_without_retries(
    dags: dict[str, DAG], run_dag: RunDag, stream: DiskStream
) -> None:
    dag = deployed(dags["watch_stream"], lambda: ran(stream, range(30, 71), seconds=4.9))
    run = run_dag(dag)
    assert states(run)["healthy"] == "failed"
    assert run.get_task_instance("healthy").try_number == 1
    report = result(run, "healthy")
    assert [(check["what"], check["ok"]) for check in report["checks"]] == [
        ("seconds_per_batch", False),
        ("input_per_second of source 0", True),
    ]


def test_stuck_fails_without_retries(dags: dict[str, DAG], run_dag: RunDag, stream: DiskStream) -> None:
    ran(stream, range(30), ended=4000).log(30, age=3600)
    run = run_dag(dags["watch_stream"])
    assert states(run) == {"baseline": "success", "drained": "failed", "healthy": "upstream_failed"}
    assert run.get_task_instance("drained").try_number == 1
    assert result(run, "drained")["uncommitted"] == 1


#: A wait that is rescheduled between its looks: what it counts from has to survive in Airflow's task state.
RESCHEDULED = """
from airflow.sdk import DAG
from airflow_ckpt_provider.sensors.commit_gap import CommitGapSensor

with DAG("rescheduled", schedule=None):
    CommitGapSensor(
        task_id="wait",
        checkpoint="{{ var.value.ckpt_checkpoint }}",
        condition="progressed_by",
        value=5,
        mode="reschedule",
        poll_interval=1.0,
        timeout=600,
    )
"""


@pytest.fixture
def real_airflow(stream: DiskStream, tmp_path: Path) -> Iterator[RealAirflow]:
    home = tmp_path / "airflow"
    (home / "dags").mkdir(parents=True)
    shutil.copy(DAGS / "watch_stream.py", home / "dags")
    (home / "dags" / "rescheduled.py").write_text(RESCHEDULED)
    airflow = RealAirflow(home, CKPT_STUCK_SECONDS="30", CKPT_BEHIND_SECONDS="100000", CKPT_QUIET_SECONDS="1")
    yield airflow
    airflow.end()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_deferred_under_a_real_triggerer_that_is_killed_and_an_incident_that_starts_a_dag(
    real_airflow: RealAirflow, stream: DiskStream
) -> None:
    airflow = real_airflow
    airflow.wait_until_healthy()
    began = time.monotonic()
    for dag_id in ("watch_stream", "rescheduled"):
        airflow.wait_until(lambda: airflow.ask(f"dags/{dag_id}")["dag_id"], f"{dag_id} is known")  # noqa: B023
        airflow.ask(f"dags/{dag_id}/dagRuns", {"dag_run_id": "one", "logical_date": None})
    airflow.wait_until(lambda: airflow.task_states("watch_stream", "one")["healthy"] == "deferred", "deferred")
    assert airflow.task_states("watch_stream", "one")["drained"] == "success"
    airflow.wait_until(
        lambda: airflow.task_states("rescheduled", "one")["wait"] == "up_for_reschedule", "the other wait has looked"
    )

    airflow.kill("triggerer")
    ran(stream, range(30, 41), seconds=2.2)
    assert airflow.task_states("watch_stream", "one")["healthy"] == "deferred", (
        "nobody looks while there is no triggerer"
    )
    airflow.start("triggerer")
    airflow.wait_until(lambda: airflow.task_states("watch_stream", "one")["healthy"] == "success", "healthy again")
    report = airflow.ask("dags/watch_stream/dagRuns/one/taskInstances/healthy/xcomEntries/return_value")["value"]
    report = json.loads(report) if isinstance(report, str) else report
    assert (report["healthy"], report["measured"]["batch_id"]) == (True, 40)
    airflow.wait_until(lambda: airflow.task_states("rescheduled", "one")["wait"] == "success", "counted from batch 29")
    waited = time.monotonic() - began

    def incidents() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = airflow.ask("dags/stream_incident/dagRuns")["dag_runs"]
        return found

    assert incidents() == []
    stream.log(41, age=60)
    airflow.wait_until(lambda: [run for run in incidents() if run["state"] == "success"], "the DAG of the incident ran")
    (run,) = incidents()
    entry = airflow.ask(
        f"dags/stream_incident/dagRuns/{run['dag_run_id']}/taskInstances/tell/xcomEntries/return_value"
    )["value"]
    (payload,) = json.loads(entry) if isinstance(entry, str) else entry
    assert payload["incident"] == "stuck"
    assert "batch 41 was begun and is not committed" in payload["message"]

    # The asset's memory keeps a triggerer that is started again from announcing the same incident twice.
    airflow.kill("triggerer")
    airflow.start("triggerer")
    restarted = (airflow.home / "triggerer.log").stat().st_size
    airflow.wait_until(
        lambda: b"watchers currently running" in (airflow.home / "triggerer.log").read_bytes()[restarted:],
        "watching again",
    )
    assert len(incidents()) == 1
    print(f"\nreal triggerer: gate deferred, triggerer killed and started again, passed within {waited:.0f} s")
