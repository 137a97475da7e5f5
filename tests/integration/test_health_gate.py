"""The health gate reads what a real driver writes: a new version that crashes at its start is noticed without a batch."""

from __future__ import annotations

import tests.support.throwaway_airflow  # isort: skip  # noqa: F401

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.sensors.stream_health import StreamHealthSensor, mark_baseline, stream_baseline
from airflow_ckpt_provider.spark.stopping import clear_stop, request_stop
from tests.support.streams.data import put_files
from tests.support.upgrades.spark_worker import HDFS, QUERIES, SparkWorker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def gate(checkpoint: Path, baseline: dict[str, Any], **logs: str) -> Any:
    fields = {"new_batches": 1, "warm_up": 0, "timeout": 600.0, "poll_interval": 0.2, "input_within": None}
    made = StreamHealthSensor(task_id="gate", checkpoint=str(checkpoint), baseline=baseline, **fields, **logs)
    return made.execute({})  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_version_that_crashes_at_its_start(spark_worker: SparkWorker, tmp_path: Path):
    checkpoint, marker = tmp_path / "ck", str(tmp_path / "orders.stop")
    logs = {"progress_log": str(tmp_path / "orders.jsonl")}

    def run(query: str) -> dict[str, Any]:
        return spark_worker.ask(
            do="stream",
            build=QUERIES + query,
            conf={"tests.input": str(tmp_path / "in"), **HDFS},
            checkpoint=str(checkpoint),
            stop=marker,
            progress=logs["progress_log"],
            every="0 seconds",
        )

    put_files(tmp_path / "in", 30)
    request_stop(marker)
    assert run("plain")["stopped"] == ""
    clear_stop(marker)
    baseline = stream_baseline(str(checkpoint), **logs)
    assert (baseline["lag"], len(baseline["driver"]["runs"])) == ({}, 1)

    assert "error" in run("fails_in_a_batch")
    with pytest.raises(AirflowFailException) as e:
        gate(checkpoint, baseline, **logs)
    assert "no such customer" in str(e.value)
    assert "the query was terminated at" in str(e.value)

    # Rolled back: what the new version did is no fault of the old one.
    back = mark_baseline(baseline, **logs)
    request_stop(marker)
    assert run("plain")["stopped"] == ""
    report = gate(checkpoint, back, duration_within=None, **logs)
    assert (report["healthy"], report["checks"]) == (True, [_lag_unknown()])


def _lag_unknown() -> dict[str, Any]:
    # Files tell no lag in Spark 4.0.
    unknown = dict.fromkeys(("baseline", "measured", "change_percent", "ok"))
    return {"what": "lag", "allowed_percent": 20.0, **unknown}


_APPLICATION = """
import sys
from pyspark.sql import SparkSession
from airflow_ckpt_provider.spark.progress_lines import ProgressLines

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.streams.addListener(ProgressLines(sys.argv[1]))
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
bad = rows.selectExpr("if(value < 0, 1, raise_error('no such customer'))")
bad.writeStream.format("noop").option("checkpointLocation", sys.argv[2]).start().awaitTermination()
"""


@pytest.mark.slow
def test_a_driver_that_ends_with_its_query_still_tells(tmp_path: Path):
    """Spark informs its listeners later than whoever awaits the query; and what it prints is found as well."""
    progress, errors = tmp_path / "orders.jsonl", tmp_path / "driver.log"
    (tmp_path / "app.py").write_text(_APPLICATION)
    place = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(Path.cwd()), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, str(tmp_path / "app.py"), str(progress), str(tmp_path / "ck")]
    with errors.open("wb") as output:
        ended = subprocess.run(command, env=os.environ | place, stderr=output, check=False, timeout=200)
    assert ended.returncode == 1
    events = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [event["event"] for event in events] == ["started", "terminated"]
    assert "no such customer" in events[-1]["error"]
    baseline = {
        **{"checkpoint": "", "query_id": None, "batch_id": -1, "batches": 1, "seconds_per_batch": 1.0},
        **{"input_per_second": {}, "whole_seconds": False, "driver": {"at": None, "runs": [], "log": [0, "", 0]}},
    }
    for logs in ({"progress_log": str(progress)}, {"error_log": str(errors)}):
        with pytest.raises(AirflowFailException, match=r"query was terminated|uncaught error"):
            gate(tmp_path / "ck", baseline, **logs)
