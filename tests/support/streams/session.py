"""The Spark session of the test streams."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyspark.sql import SparkSession

from dev.class_archive import IVY, environment, not_on_class_path


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
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
    }
    if others := not_on_class_path(packages):
        settings |= {"spark.jars.packages": ",".join(others), "spark.jars.ivy": str(IVY)}
    if any("delta" in package for package in packages):
        settings |= {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "1",
        }
    os.environ.update(environment())
    builder = SparkSession.builder.master("local[2]").appName("test streams").config(map={**settings, **(conf or {})})
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
