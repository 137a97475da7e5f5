"""The stream that the demo backs up: orders arrive as files, running totals by customer are merged into a Delta table.

    python -m demo.stream INPUT CHECKPOINT TABLE

Runs as a process of its own, as a stream does in production, and ends by itself when the input is complete.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from demo.orders import is_complete
from dev.class_archive import IVY, environment, not_on_class_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = "order_id string, customer string, cents long, at timestamp"
STATE_PARTITIONS = "spark.sql.shuffle.partitions"

DELTA = "io.delta:delta-spark_4.0_2.13:4.4.0"
CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # The state: RocksDB with changelog checkpointing.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Chosen so that the copy beside the backup has a chance to tear: many small state files, cleaned up fast. With Spark's own
    # defaults it takes many thousand files, or a store far slower than this disk, for the same.
    STATE_PARTITIONS: "12",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",
    "spark.sql.streaming.stateStore.maintenanceInterval": "500ms",
    # Small batches on two cores: what makes large ones faster makes these slower.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.stats.collect": "false",
    "spark.databricks.delta.properties.defaults.checkpointInterval": "100",
    "spark.sql.adaptive.enabled": "false",
}
#: A Spark that runs for seconds: compiling less saves half of its processor time.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"


def start_spark(more: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark in this process.

    :param more: settings, before those of :data:`CONF`.
    """
    from pyspark.sql import SparkSession

    # What elsewhere is `spark.jars.packages`: here the jars are on the class path, and Spark starts in half the time.
    os.environ.update(environment())
    builder = SparkSession.builder.master("local[2]").appName("orders")
    if packages := not_on_class_path([DELTA]):
        builder = builder.config("spark.jars.packages", ",".join(packages)).config("spark.jars.ivy", str(IVY))
    for key, value in {**CONF, **(more or {})}.items():
        builder = builder.config(key, value)
    options = JAVA_OPTIONS
    if temporary := os.environ.get("TMPDIR"):
        # Java does not read TMPDIR. After kill -9 nobody clears RocksDB's working directories.
        options += f" -Djava.io.tmpdir={temporary}"
        builder = builder.config("spark.local.dir", temporary)
    return builder.config("spark.driver.extraJavaOptions", options).getOrCreate()


@dataclass(frozen=True)
class TotalsTable:
    """The Delta table with one row for each customer.

    Totals are merged by key, so a batch may come twice: after a restore the stream repeats what it did since the
    backup, and the last word on every customer is the right one. With Delta's plain streaming sink it would not be:
    that one remembers the last batch id of the query and silently skips every batch up to it, and after a restore the
    same ids are repeated, with other rows in them.

    :param spark: the session that merges. Not the stream's own, whose settings belong to its state.
    :param path: where the table is.
    """

    spark: SparkSession
    path: Path

    def create(self) -> None:
        """Make the table if it does not exist."""
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS delta.`{self.path}` "
            "(customer STRING, orders BIGINT, cents BIGINT, last_order TIMESTAMP, ids BIGINT) USING delta"
        )

    def merge(self, totals: DataFrame, batch_id: int) -> None:
        """Write the totals that a batch has changed.

        :param totals: the new totals.
        :param batch_id: the batch; not needed, as it may come twice.
        """
        # Few rows: two tasks are enough, each for half of the state.
        totals.coalesce(2).createOrReplaceGlobalTempView("totals")
        self.spark.sql(
            f"MERGE INTO delta.`{self.path}` t USING global_temp.totals s ON t.customer = s.customer "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )


def start_stream(
    spark: SparkSession, orders: Path, checkpoint: Path, table: Path, *, available_now: bool = False
) -> StreamingQuery:
    """Start the stream, or continue where its checkpoint says.

    :param spark: a Spark from :func:`start_spark`.
    :param orders: directory the orders arrive in.
    :param checkpoint: the checkpoint of the stream.
    :param table: the Delta table.
    :param available_now: stop at the end of the input that is there now.
    """
    from pyspark.sql import functions as f

    sink = TotalsTable(spark.newSession(), table)
    sink.spark.conf.set(STATE_PARTITIONS, "2")
    sink.create()
    totals = (
        spark.readStream.schema(SCHEMA)
        .json(str(orders))
        .groupBy("customer")
        .agg(
            f.count("*").alias("orders"),
            f.sum("cents").alias("cents"),
            f.max("at").alias("last_order"),
            # A fingerprint of which orders were counted: one lost and another one doubled do not cancel out.
            f.bit_xor(f.xxhash64("order_id")).alias("ids"),
        )
    )
    writer = totals.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint))
    writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
    return writer.foreachBatch(sink.merge).start()


def main(orders: Path, checkpoint: Path, table: Path) -> int:
    """Run the stream until the input is complete and all of it is in the table.

    :param orders: directory the orders arrive in.
    :param checkpoint: the checkpoint of the stream.
    :param table: the Delta table.
    """
    parent = os.getppid()
    spark = start_spark()
    query = start_stream(spark, orders, checkpoint, table)
    while query.isActive and not is_complete(orders):
        if os.getppid() != parent:
            return 1  # the demo is gone
        time.sleep(0.2)
    query.processAllAvailable()
    query.stop()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*(Path(argument).absolute() for argument in sys.argv[1:4])))
