"""dags/restore_drill.py: its form, and the whole of it in a real Airflow with a real spark-submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.sdk import DAG

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.drills import last_drill
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.jobs import rehearse
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.airflow_runs import RunDag, result, states
from tests.support.drilled_stream import STREAM
from tests.support.streams.data import put_files

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]


def test_the_form_and_the_arguments_of_the_job(example_dags: dict[str, DAG]):
    dag = example_dags["restore_drill"]
    assert [task.task_id for task in dag.topological_sort()] == ["drill", "proven"]
    drill = dag.get_task("drill")
    assert drill.application == rehearse.__file__
    arguments = drill.application_args
    assert "--drill" in arguments
    # What the templates give for the form's choices, the job understands.
    given = {"{{ params.output_mode }}": "update", "{{ params.batches }}": "3"}
    found = rehearse._parser().parse_args([given.get(argument, argument) for argument in arguments])
    assert (found.drill, found.output_mode, found.batches) == (True, "update", 3)
    assert set(dag.params) >= {"repository", "name", "scratch", "build", "checkpoint"}


@pytest.mark.slow
@pytest.mark.spark
def test_a_backup_is_proven_restorable(
    example_dags: dict[str, DAG], run_dag: RunDag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    production, module = tmp_path / "production" / "orders", tmp_path / "orders_stream.py"
    module.write_text(STREAM.replace("@INPUT@", str(tmp_path / "in" / "a")).replace("@CHECKPOINT@", str(production)))
    put_files(tmp_path / "in", 3)
    subprocess.run([sys.executable, module], check=True, timeout=240, cwd=tmp_path)
    repository = Repository.open_or_create(open_location(str(tmp_path / "backups")))
    create_backup(Checkpoint.at(open_location(str(production))), repository)
    put_files(tmp_path / "in", 2, start=3)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    # As in a worker whose environment is activated.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    form = {
        "repository": str(tmp_path / "backups"),
        "name": "orders",
        "scratch": str(tmp_path / "scratch"),
        "build": f"{module}:build",
        "checkpoint": str(production),
        "output_mode": "update",
        "batches": 2,
    }
    run = run_dag(example_dags["restore_drill"], run_conf=form)
    assert states(run) == {"drill": "success", "proven": "success"}
    proof = last_drill(repository, "orders")
    assert proof is not None
    assert result(run, "proven") == proof.to_json()
    assert (proof.report["verdict"], proof.to_json()["batches"]) == ("SAFE", 2)
    assert proof.report["production"][0]["unchanged"] is True
    assert not list((tmp_path / "scratch").glob("*"))
