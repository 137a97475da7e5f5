"""Settings of Spark in tests."""

from __future__ import annotations

from pathlib import Path

SETTINGS = {
    "spark.jars.ivy": str(Path(".cache/ivy").absolute()),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A table of a few rows: by the defaults it would take longer to plan than to do.
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.ui.enabled": "false",
}
