"""Declared actions under a real scheduler and triggerer: the task that stops a stream by a DAG holds no worker meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_airflow import RealAirflow

pytestmark = pytest.mark.airflow

STREAMS = """
streams:
  orders: {checkpoint: /checkpoints/orders, stop: {dag: stop_job}}
  clicks: {checkpoint: /checkpoints/clicks, stop: {dag: refuse_to_stop}}
  visits: {checkpoint: /checkpoints/visits, stop: {operator: {operator: waits.Waits, arguments: {path: SAID}}}}
"""

#: In the folder of DAGs, which is on the path of workers.
WAITS = """
from pathlib import Path

from airflow.providers.standard.triggers.file import FileTrigger
from airflow.sdk import BaseOperator


class Waits(BaseOperator):
    def __init__(self, *, path, **kwargs):
        super().__init__(**kwargs)
        self.path = path

    def execute(self, context):
        trigger = FileTrigger(filepath=self.path + ".asked", poke_interval=0.5)
        self.defer(trigger=trigger, method_name="then", kwargs={"words": "carried"})

    def then(self, context, words, event=None):
        Path(self.path).write_text(words)
"""

DAGS = """
from airflow.sdk import DAG, task
from pathlib import Path

from airflow_ckpt_provider.operators.stream_action import StreamActionOperator

for name in ("orders", "clicks", "visits"):
    with DAG(f"ask_{name}", schedule=None):
        StreamActionOperator(task_id="stop", stream=name, action="stop", streams_file="STREAMS", deferrable=True)

with DAG("stop_job", schedule=None):

    @task.sensor(poke_interval=0.5, timeout=300, mode="poke")
    def until_the_test_says_so():
        return Path("GO").exists()

    until_the_test_says_so()

with DAG("refuse_to_stop", schedule=None):

    @task
    def refuse():
        raise ValueError("no such job")

    refuse()
"""


@pytest.fixture
def real_airflow(tmp_path: Path) -> Iterator[RealAirflow]:
    home = tmp_path / "airflow"
    (home / "dags").mkdir(parents=True)
    streams = tmp_path / "streams.yaml"
    streams.write_text(STREAMS.replace("SAID", str(tmp_path / "said")))
    (home / "dags" / "waits.py").write_text(WAITS)
    dags = DAGS.replace('"STREAMS"', repr(str(streams))).replace('"GO"', repr(str(tmp_path / "go")))
    (home / "dags" / "actions.py").write_text(dags)
    airflow = RealAirflow(home)
    yield airflow
    airflow.end()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stop_by_a_dag_or_an_operator_is_waited_for_in_the_triggerer(
    real_airflow: RealAirflow, tmp_path: Path
) -> None:
    airflow = real_airflow
    airflow.wait_until_healthy()
    names = ("orders", "clicks", "visits")
    for dag_id in ("stop_job", "refuse_to_stop", *(f"ask_{name}" for name in names)):
        airflow.wait_until(lambda: airflow.ask(f"dags/{dag_id}")["dag_id"], f"{dag_id} is known")  # noqa: B023
    for name in names:
        airflow.ask(f"dags/ask_{name}/dagRuns", {"dag_run_id": "one", "logical_date": None})

    def state(name: str) -> str:
        return airflow.task_states(f"ask_{name}", "one")["stop"]

    def returned(name: str) -> Any:
        value = airflow.ask(f"dags/ask_{name}/dagRuns/one/taskInstances/stop/xcomEntries/return_value")["value"]
        return json.loads(value) if isinstance(value, str) else value

    airflow.wait_until(lambda: state("orders") == "deferred", "the task is deferred while the DAG runs")
    airflow.wait_until(lambda: state("clicks") == "failed", "the task fails with its DAG")
    # Airflow takes a task for failed that is resumed before its scheduler has heard of the end of the first part.
    heard = "state success for task instance TaskInstanceKey(dag_id='ask_visits'"
    airflow.wait_until(lambda: heard in (airflow.home / "scheduler.log").read_text(), "the operator has deferred")
    (tmp_path / "said.asked").touch()
    airflow.wait_until(lambda: state("visits") == "success", "the operator was resumed")
    assert (tmp_path / "said").read_text() == "carried"
    assert returned("visits") == {"stream": "visits", "action": "stop", "way": "operator"}
    assert state("orders") == "deferred", "its DAG has not ended"
    (tmp_path / "go").touch()
    airflow.wait_until(lambda: state("orders") == "success", "the task ends with its DAG")
    assert returned("orders") == {"stream": "orders", "action": "stop", "way": "dag"}
