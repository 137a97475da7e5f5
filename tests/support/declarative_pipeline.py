"""A pipeline of Spark Declarative Pipelines, run by the real ``spark-pipelines`` of an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from airflow_ckpt_provider.recovery.flows.flow import Flow, flow_named, flows_of
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location

_DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

def read():
    return SparkSession.active().readStream.schema("id long").option("maxFilesPerTrigger", 1).json("{input}")

@dp.table
def first():
    return read()

dp.create_streaming_table("second")

@dp.append_flow(target="second")
def appended():
    return read()

@dp.table
def third():
    return read()
"""


@dataclass
class Pipeline:
    """Three tables of Parquet, each written by one flow from the same files.

    :param python: a Python with ``pyspark[pipelines]``.
    :param root: directory for all of it.
    """

    python: Path
    root: Path
    files: int = field(default=0)

    def __post_init__(self) -> None:
        (self.root / "input").mkdir(parents=True)
        (self.root / "conf").mkdir()
        (self.root / "definitions.py").write_text(_DEFINITIONS.format(input=self.root / "input"))
        (self.root / "spark-pipeline.yml").write_text(
            f"name: test\nstorage: file://{self.storage.root}\nlibraries:\n  - glob:\n      include: definitions.py\n"
        )
        # Tables that a later run knows again: the default catalog forgets them.
        settings = {
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": f"file://{self.root}/warehouse",
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={self.root}/metastore;create=true",
            "spark.ui.enabled": "false",
            "spark.local.dir": f"{self.root}/local",
        }
        lines = (f"{key} {value}" for key, value in settings.items())
        (self.root / "conf" / "spark-defaults.conf").write_text("\n".join(lines))

    @property
    def storage(self) -> Location:
        return open_location(str(self.root / "storage"))

    def put(self, count: int = 1) -> None:
        """Add input files, each with one row: its own number."""
        for number in range(self.files, self.files + count):
            file = self.root / "input" / f"f{number}.json"
            file.write_text(json.dumps({"id": number}) + "\n")
            os.utime(file, (1_704_067_200 + number,) * 2)
        self.files += count

    def run(self, *arguments: str) -> None:
        """``spark-pipelines run``."""
        environment = os.environ | {
            "SPARK_CONF_DIR": str(self.root / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
        }
        environment.pop("SPARK_HOME", None)
        done = subprocess.run(
            [self.python.parent / "spark-pipelines", "run", *arguments],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]

    def flow(self, name: str) -> Flow:
        return flow_named(flows_of(self.storage), name)

    def sink(self, table: str) -> Sink:
        return Sink(place=open_location(str(self.root / "warehouse" / table)))

    def rows(self, table: str) -> list[int]:
        """What the data files of a table hold."""
        found = (pq.read_table(file) for file in (self.root / "warehouse" / table).glob("*.parquet"))
        return sorted(number for rows in found for number in rows["id"].to_pylist())
