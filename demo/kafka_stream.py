"""The example stream of docker-compose.yml: orders from Kafka, each of them once, into a Delta table.

    spark-submit --conf spark.orders.brokers=kafka:9092 --conf spark.orders.topic=orders demo/kafka_stream.py \
        --checkpoint s3a://ckpt/checkpoints/orders --table s3a://ckpt/tables/orders \
        --stop s3a://ckpt/control/orders.stop --progress s3a://ckpt/progress/orders.jsonl

While the file `--stop` is there it ends after its batch, and does not begin: whatever starts it again and again (Docker,
Kubernetes, a supervisor) may continue to do so.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "order_id string, customer string, cents long, at timestamp"
_BETWEEN_LOOKS = 1.0


def build(spark: SparkSession) -> DataFrame:
    """Make the streaming frame: what a rehearsal and a restore drill run as well.

    :param spark: its settings name the brokers and the topic.
    """
    from pyspark.sql import functions as f

    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.orders.brokers"))
        .option("subscribe", spark.conf.get("spark.orders.topic"))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 10_000)
        .load()
    )
    orders = records.select(f.from_json(f.col("value").cast("string"), SCHEMA).alias("order")).select("order.*")
    return orders.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["order_id"])


# [START howto_stop_a_stream]
def run(checkpoint: str, table: str, stop: str, progress: str, every: str) -> str:
    """Run the stream until it is asked to stop; return why it was."""
    from pyspark.sql import SparkSession

    from airflow_ckpt_provider.spark.progress_lines import ProgressLines
    from airflow_ckpt_provider.spark.stopping import run_until_stopped, stop_requested

    if stop_requested(stop):
        print(f"waiting for the end of {stop}", flush=True)
        while stop_requested(stop):
            time.sleep(_BETWEEN_LOOKS)
    spark = SparkSession.builder.appName("orders").getOrCreate()
    spark.streams.addListener(ProgressLines(progress))
    writer = build(spark).writeStream.format("delta").outputMode("append").trigger(processingTime=every)
    query = writer.option("checkpointLocation", checkpoint).start(table)
    request = run_until_stopped(query, stop)
    spark.stop()
    return request.reason if request else "it ended by itself"


# [END howto_stop_a_stream]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, what in (
        ("checkpoint", "the checkpoint"),
        ("table", "the Delta table"),
        ("stop", "the file that stops it"),
        ("progress", "where its progress is written, as JSON lines"),
    ):
        made.add_argument(f"--{name}", required=True, metavar="URI", help=what)
    made.add_argument("--every", default="5 seconds", metavar="TIME", help="from batch to batch (default: %(default)s)")
    return made


def main(argv: Sequence[str]) -> int:
    """Run as the command line says; return the exit code."""
    chosen = parser().parse_args(argv)
    print(f"stopped: {run(chosen.checkpoint, chosen.table, chosen.stop, chosen.progress, chosen.every)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
