"""A stream into an Iceberg table, as a process of its own: reads JSON files until all are read, for each line of its input.

    {"input": …, "checkpoint": …, "warehouse": …, "catalog": "hadoop" | "sql" | "rest", …}

It answers each line with one of its own: ``done``. It always writes the rows of the table to the file ``rows``; with ``sql`` it
runs a statement first; with ``reader``, a checkpoint, a second stream reads the table into another one.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from dev.class_archive import environment

TABLE = "lake.sales.orders"
READER = "lake.sales.copies"


def session(about: dict[str, Any]) -> Any:
    from pyspark.sql import SparkSession

    os.environ.update(environment())
    warehouse = about["warehouse"]
    catalog = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".warehouse": f"file://{warehouse}",
        ".cache-enabled": "false",
    }
    if about["catalog"] == "sql":
        uri = f"jdbc:sqlite:{warehouse}/catalog.db?busy_timeout=30000"
        catalog |= {".type": "jdbc", ".uri": uri, ".jdbc.schema-version": "V1"}
    elif about["catalog"] == "rest":
        catalog = catalog | {".type": "rest", ".uri": about["uri"]}
        del catalog[".warehouse"]  # the catalog has its own
    else:
        catalog |= {".type": "hadoop"}
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder.config("spark.sql.shuffle.partitions", "1")
    builder.config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
    for name, value in catalog.items():
        builder.config(f"spark.sql.catalog.lake{name}", value)
    return builder.getOrCreate()


def run(about: dict[str, Any]) -> None:
    spark = session(about)
    if "sql" in about:
        spark.sql(about["sql"])
    if "input" in about:
        spark.sql(f"CREATE TABLE IF NOT EXISTS {TABLE} (id long, value long) USING iceberg")
        files = spark.readStream.schema("id long, value long").option("maxFilesPerTrigger", about["files"])
        sign = -1 if about["faulty"] else 1
        rows = files.json(about["input"]).selectExpr("id", f"{sign} * value AS value")
        writer = rows.writeStream.format("iceberg").option("checkpointLocation", about["checkpoint"])
        query = writer.trigger(availableNow=True).toTable(TABLE)
        query.awaitTermination()
    if "reader" in about:
        # A second stream, which reads the table and writes each row again into another one.
        spark.sql(f"CREATE TABLE IF NOT EXISTS {READER} (id long, value long) USING iceberg")
        rows = spark.readStream.format("iceberg").option("streaming-max-files-per-micro-batch", 1).load(TABLE)
        query = rows.writeStream.format("iceberg").option("checkpointLocation", about["reader"])
        query.trigger(availableNow=True).toTable(READER).awaitTermination()
        found = [tuple(row) for row in spark.table(READER).orderBy("id", "value").collect()]
        Path(about["rows"] + ".reader").write_text(json.dumps(found))
    rows = [tuple(row) for row in spark.table(TABLE).orderBy("id", "value").collect()]
    Path(about["rows"]).write_text(json.dumps(rows))


if __name__ == "__main__":
    for line in sys.stdin:
        run(json.loads(line))
        print("done", flush=True)
