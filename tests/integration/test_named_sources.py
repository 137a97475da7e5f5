"""A named file source of Spark 4.2 in a new checkpoint: it reads no file that the old one read."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from airflow_ckpt_provider.recovery.positions.asking import Question, ask
from airflow_ckpt_provider.recovery.positions.logs import logs_of_checkpoint
from airflow_ckpt_provider.recovery.positions.positions import put_seeds
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.samples.spark_versions import python_with

pytestmark = [pytest.mark.spark, pytest.mark.other_spark]

_STREAM = """
import sys
from pyspark.sql import SparkSession

files, checkpoint, out = sys.argv[1:]
settings = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
read = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).name("orders").json(files)
write = read.writeStream.format("json").option("checkpointLocation", checkpoint).trigger(availableNow=True)
write.start(out).awaitTermination()
"""


def run(place: Path, name: str) -> list[int]:
    """The rows that a query with a checkpoint of this name has written."""
    python, out = python_with("4.2.1"), place / f"{name}-out"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYTHONPATH"))}
    subprocess.run(
        [python, "-c", _STREAM, place / "in", place / name, out],
        env=environment | {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)},
        check=True,
        timeout=280,
    )
    return sorted(json.loads(line)["id"] for file in out.glob("part-*") for line in file.read_text().splitlines())


def test_a_seeded_checkpoint_reads_what_is_new(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / f"in/{number}.json").write_text(json.dumps({"id": number}))
    assert run(tmp_path, "old") == [0, 1, 2]
    assert [path.name for path in (tmp_path / "old/sources").iterdir()] == ["orders"]
    found = ask(logs_of_checkpoint(open_location(str(tmp_path / "old"))), Question())
    assert put_seeds(found, open_location(str(tmp_path / "seeded"))).verdict is Verdict.SAFE
    (tmp_path / "in/3.json").write_text(json.dumps({"id": 3}))
    assert run(tmp_path, "seeded") == [3]
    assert run(tmp_path, "control") == [0, 1, 2, 3]
