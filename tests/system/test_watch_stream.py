"""dags/watch_stream.py, run by Airflow: in this process, and once (marker `slow`) by a real scheduler and triggerer."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task

from dev.run_airflow import environment, free_port, health
from tests.support.checkpoints import BEGAN, batch_metadata, compact, offsets_log
from tests.support.growing_streams import DiskStream
from tests.system.conftest import DAGS, RunDag, result, states

pytestmark = pytest.mark.airflow


def ran(stream: DiskStream, batches: range, *, seconds: float = 2.0, ended: float = 0.0) -> DiskStream:
    """A batch every five seconds, 50 records a second; the newest was committed ``ended`` seconds ago."""
    for batch in batches:
        age = ended + 5.0 * (batches.stop - 1 - batch)
        about = batch_metadata(batch) | {"batchTimestampMs": BEGAN + 5000 * batch}
        entry = offsets_log(compact({"orders": {"0": 250 * batch}}), metadata=about)
        stream.put(f"offsets/{batch}", entry, age=age + seconds)
        stream.commit(batch, age=age)
    return stream


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskStream:
    """A stream whose newest batch was committed just now."""
    made = ran(DiskStream(tmp_path / "checkpoints" / "orders").start(), range(30))
    for name, value in {
        "AIRFLOW_VAR_CKPT_CHECKPOINT": str(made),
        "CKPT_WATCHED_CHECKPOINT": str(made),
        "CKPT_POLL_SECONDS": "0.2",
        "CKPT_QUIET_SECONDS": "2",
    }.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def dags(stream: DiskStream) -> dict[str, DAG]:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=str(DAGS / "watch_stream.py"))
    assert bag.import_errors == {}
    return dict(bag.dags)


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


class RealAirflow:
    """Scheduler, DAG processor, triggerer and API server, each a process of its own.

    :param home: its AIRFLOW_HOME; ``dags`` in it is the folder.
    """

    def __init__(self, home: Path, **settings: str) -> None:
        self.home = home
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.environment = environment(home, port) | {
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of the tests, long enough for the algorithm: " + "x" * 64,
            **settings,
        }
        self._parts: dict[str, subprocess.Popen[bytes]] = {}
        subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"], env=self.environment, check=True, capture_output=True
        )
        for part in ("api-server", "scheduler", "dag-processor", "triggerer"):
            self.start(part)

    def start(self, part: str) -> None:
        with (self.home / f"{part}.log").open("ab") as log:
            self._parts[part] = subprocess.Popen(
                [sys.executable, "-m", "airflow", part],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, part: str) -> None:
        """``kill -9`` a part and what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._parts[part].pid, signal.SIGKILL)
        self._parts[part].wait()

    def end(self) -> None:
        for part in self._parts:
            self.kill(part)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        with urllib.request.urlopen(f"{self.url}/auth/token", timeout=20) as answer:
            token = json.load(answer)["access_token"]
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/v2/{path}", data, headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str]:
        found = self.ask(f"dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {ti["task_id"]: ti["state"] for ti in found}

    def wait_until(self, condition: Callable[[], object], what: str, *, within: float = 200.0) -> None:
        deadline = time.monotonic() + within
        while True:
            with contextlib.suppress(OSError):
                if condition():
                    return
            assert time.monotonic() < deadline, f"{what}: see {self.home}"
            time.sleep(0.5)


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
    parts = ("scheduler", "triggerer", "dag_processor")
    airflow.wait_until(
        lambda: all((health(airflow.url).get(part) or {}).get("status") == "healthy" for part in parts), "healthy"
    )
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
