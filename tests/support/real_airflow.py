"""A real Airflow with scheduler and triggerer as processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dev.run_airflow import environment, free_port, health
from tests.support.checkpoints import BEGAN, batch_metadata, compact, offsets_log
from tests.support.growing_streams import DiskStream


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

    def wait_until_healthy(self, *, within: float = 200.0) -> None:
        """Wait until all parts that report it are."""
        parts = ("scheduler", "triggerer", "dag_processor")
        self.wait_until(
            lambda: all((health(self.url).get(part) or {}).get("status") == "healthy" for part in parts),
            "Airflow is healthy",
            within=within,
        )

    def wait_until(self, condition: Callable[[], object], what: str, *, within: float = 200.0) -> None:
        deadline = time.monotonic() + within
        while True:
            with contextlib.suppress(OSError):
                if condition():
                    return
            assert time.monotonic() < deadline, f"{what}: see {self.home}"
            time.sleep(0.5)
