"""A stream is stopped by a file, on real Spark: at a batch boundary, and soon even where its next trigger is far."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.spark.stopping import clear_stop, request_stop, stop_requested
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.streams.data import put_files
from tests.support.upgrades.spark_worker import HDFS, QUERIES, SparkWorker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def committed(checkpoint: Path) -> int:
    return len([p for p in (checkpoint / "commits").glob("*") if p.name.isdigit()])


def wait_for_batches(checkpoint: Path, count: int, *, within: float = 120.0) -> None:
    deadline = time.monotonic() + within
    while committed(checkpoint) < count:
        assert time.monotonic() < deadline, f"{committed(checkpoint)} of {count} batches"
        time.sleep(0.02)


@pytest.mark.parametrize("every", ["0 seconds", pytest.param("1 hour", marks=pytest.mark.slow)])
def test_it_stops_after_its_batch(every: str, spark_worker: SparkWorker, tmp_path: Path):
    files = 40
    put_files(tmp_path / "in", files)
    checkpoint, marker, progress = tmp_path / "ck", str(tmp_path / "orders.stop"), tmp_path / "orders.jsonl"
    spark_worker.tell(
        do="stream",
        build=f"{QUERIES}plain",
        conf={"tests.input": str(tmp_path / "in"), **HDFS},
        checkpoint=str(checkpoint),
        stop=marker,
        progress=str(progress),
        every=every,
    )
    # Back to back, the marker falls into the middle of a batch; else into an hour of waiting.
    wait_for_batches(checkpoint, 3 if every.startswith("0") else 1)
    request_stop(marker, reason="upgrade to version 2", made_by="test")
    assert spark_worker.answer() == {"stopped": "upgrade to version 2", "active": False}
    found = Checkpoint.at(open_location(str(checkpoint))).progress()
    assert (found.gap, found.uncommitted) == (0, ())
    assert found.latest_committed is not None
    assert found.latest_committed + 1 < files
    events = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [e["event"] for e in events if e["event"] != "progress"] == ["started", "terminated"]
    assert events[-1]["error"] is None
    batches = [e["batch_id"] for e in events if e["event"] == "progress" and e["input_rows"]]
    assert batches == list(range(len(batches)))
    assert batches
    assert stop_requested(marker) is not None
    clear_stop(marker)
    assert stop_requested(marker) is None


@pytest.mark.slow
def test_a_query_that_ends_by_itself_was_not_stopped(spark_worker: SparkWorker, tmp_path: Path):
    put_files(tmp_path / "in", 1)
    request_stop(str(tmp_path / "s"), reason="from before")
    answer = spark_worker.ask(
        do="stream",
        build=f"{QUERIES}fails_in_a_batch",
        conf={"tests.input": str(tmp_path / "in"), **HDFS},
        checkpoint=str(tmp_path / "ck"),
        stop=str(tmp_path / "other"),
        progress=str(tmp_path / "p.jsonl"),
        every="0 seconds",
    )
    assert "error" in answer
    events = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "terminated"
    assert events[-1]["error"]
