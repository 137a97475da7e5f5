"""A Spark 4.2 or newer that runs one stateful query and repartitions its state offline, told by lines of JSON. Runs alone.

{"do": "run", "input": …, "checkpoint": …, "out": …, "faulty": false}     over all the input there is, one file a batch
{"do": "repartition", "checkpoint": …, "to": 3}
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def run(spark: SparkSession, request: dict[str, Any]) -> None:
    """Drop duplicate keys; a faulty version of the code writes wrong values."""
    rows = (
        spark.readStream.schema("k long, v long")
        .option("maxFilesPerTrigger", 1)
        .json(request["input"])
        .dropDuplicates(["k"])
        .withColumn("v", F.col("v") + (1000 if request["faulty"] else 0))
    )
    writer = rows.writeStream.format("json").option("checkpointLocation", request["checkpoint"])
    writer.trigger(availableNow=True).start(request["out"]).awaitTermination()


def main() -> None:
    """Answer one line for each request."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Java prints is no answer
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        # 4.2.1 fails by itself (BATCH_METADATA_NOT_FOUND) where it compacts the log over a repartition, which wrote no entry.
        .config("spark.sql.streaming.fileSink.log.compactInterval", "1000")
        .config("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
        # Short queries on few rows: compiling them well takes longer than running them.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.adaptive.enabled", "false")
        .getOrCreate()
    )
    print(json.dumps({"spark": spark.version}), file=answers, flush=True)
    for line in sys.stdin:
        request, answer = json.loads(line), {}
        try:
            if request["do"] == "run":
                run(spark, request)
            else:
                spark._streamingCheckpointManager.repartition(request["checkpoint"], request["to"])
        except Exception as e:
            answer = {"error": str(e)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
