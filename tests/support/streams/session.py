"""The Spark session of the test streams."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

_IVY = Path(".cache/ivy").absolute()


def start_session(*, packages: tuple[str, ...] = (), conf: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark with a maintenance thread that cleans up all the time.

    :param packages: Maven coordinates; `make jars` has fetched them.
    :param conf: more settings.
    """
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "3g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.ui.retainedExecutions": "1",
        "spark.sql.streaming.minBatchesToRetain": "3",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
        "spark.sql.streaming.stateStore.maintenanceInterval": "400ms",
        "spark.python.daemon.module": "tests.support.streams.worker_daemon",
        # Many short queries on few rows: compiling them well takes longer than running them.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
    }
    if packages:
        settings |= {"spark.jars.packages": ",".join(packages), "spark.jars.ivy": str(_IVY)}
    if any("delta" in package for package in packages):
        settings |= {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "1",
        }
    builder = SparkSession.builder.master("local[2]").appName("test streams").config(map={**settings, **(conf or {})})
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
