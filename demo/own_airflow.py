"""Airflow as the demo uses it: a home to throw away, example DAGs of the repository, runs with what a form would hold."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.processes import Process, Processes, ProcessFailedError

DAGS = Path(__file__).parents[1] / "dags"


@dataclass(frozen=True)
class DagRun:
    """What a DAG run came to.

    :param tasks: state of each task.
    :param results: what each task returned.
    :param reports: what each task left as XCom ``report``, if it did: also of one that failed.
    :param times: when each task that ran began and ended, ISO 8601.
    """

    dag_id: str
    run_id: str
    state: str
    tasks: dict[str, str]
    results: dict[str, Any]
    reports: dict[str, Any]
    times: dict[str, tuple[str, str]]


@dataclass
class Airflow:
    """An Airflow that runs one DAG at a time.

    :param process: ``demo.dag_runner``.
    """

    process: Process

    @classmethod
    def start(cls, processes: Processes, home: Path, *dag_ids: str, **settings: str) -> Airflow:
        """Start it; it needs some seconds until it answers.

        :param processes: started in.
        :param home: its home.
        :param dag_ids: the example DAGs that it has. Not the whole folder: ``dag.test()`` reads all of it for each run.
        :param settings: what the DAGs take from the environment.
        """
        (home / "dags").mkdir(parents=True)
        for dag_id in dag_ids:
            shutil.copy(DAGS / f"{dag_id}.py", home / "dags")
        env = {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            # Whoever approves need not log in.
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(processes.logs / "airflow-tasks"),
            "AIRFLOW__API_AUTH__JWT_SECRET": "the secret of a database that exists for minutes " + "x" * 64,
            **settings,
        }
        return cls(processes.start("airflow", "demo.dag_runner", env=env, talks=True))

    def wait_until_ready(self) -> None:
        """Wait for its database."""
        self._answer()

    def run(self, dag_id: str, *, approve: str = "", to: str = "success", **form: Any) -> DagRun:
        """Run a DAG and wait for its end.

        :param dag_id: the DAG.
        :param approve: id of the task that asks for an approval, which is given; empty: none does.
        :param to: the state that it has to end in.
        :param form: what to enter in its form.
        :raises ProcessFailedError: the run ended in another state.
        """
        request = {"dag_id": dag_id, "conf": form, "approve": approve}
        print(json.dumps(request), file=self.process.popen.stdin, flush=True)
        run = DagRun(**self._answer())
        if run.state != to:
            raise ProcessFailedError(f"DAG {dag_id} {run.state}: {run.tasks}; see {self.process.log}")
        return run

    def _answer(self) -> dict[str, Any]:
        stdout = self.process.popen.stdout
        line = stdout.readline() if stdout else ""
        if not line:
            raise ProcessFailedError(f"Airflow ended by itself; see {self.process.log}")
        answer: dict[str, Any] = json.loads(line)
        return answer
