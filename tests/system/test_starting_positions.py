"""StartingPositionsOperator and the guards of Delta and files in a real Airflow, as the how-tos show them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_ckpt_provider.operators.delta_retention_guard import DeltaRetentionGuardOperator
from airflow_ckpt_provider.operators.file_source_guard import FileSourceGuardOperator
from airflow_ckpt_provider.operators.starting_positions import StartingPositionsOperator
from tests.support.airflow_runs import RunDag, result
from tests.support.delta_tables import delta_checkpoint, new_table, put
from tests.support.one_checkpoint import NEWEST

pytestmark = pytest.mark.airflow


def test_starting_positions(run_dag: RunDag, checkpoint: Path, tmp_path: Path) -> None:
    new = tmp_path / "orders-2"
    with DAG("positions", schedule=None) as dag:
        # [START howto_starting_positions]
        positions = StartingPositionsOperator(
            task_id="positions",
            checkpoint=str(checkpoint),
            # Where file sources are among the sources: an empty place, in which the new query will find what they have read.
            new_checkpoint=str(new),
        )
        # [END howto_starting_positions]
    run = run_dag(dag)
    assert run.state == "success"
    found: dict[str, Any] = result(run, positions.task_id)
    assert (found["batch_id"], found["verdict"], found["options"]) == (NEWEST, "SAFE", {"0": {}})
    assert (new / "sources" / "0" / "0").read_text().startswith("v1\n{")
    assert json.loads(json.dumps(found)) == found


def test_guards(run_dag: RunDag, tmp_path: Path) -> None:
    table = new_table(tmp_path / "table", 3)
    checkpoint = delta_checkpoint(tmp_path / "orders", table, version=2, files=put(tmp_path / "in", 0, 1, 2))
    with DAG("guards", schedule=None) as dag:
        # [START howto_delta_and_file_guards]
        delta = DeltaRetentionGuardOperator(
            task_id="delta",
            checkpoint=str(checkpoint),
            tables=str(table),
            max_downtime="24h",
        )
        files = FileSourceGuardOperator(
            task_id="files",
            checkpoint=str(checkpoint),
            reader_options={"cleanSource": "archive", "sourceArchiveDir": str(tmp_path / "archive")},
        )
        # [END howto_delta_and_file_guards]
    run = run_dag(dag)
    assert run.state == "success"
    assert result(run, delta.task_id)["verdict"] == "SAFE"
    assert result(run, files.task_id)["sources"][0]["planned_files"] == 1
