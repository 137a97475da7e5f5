"""A stream for drills."""

from __future__ import annotations

from tests.support.streams.data import SCHEMA

#: The user's module, and an application that runs it until it has read all there is.
STREAM = f"""
from pyspark.sql import SparkSession

def build(spark):
    frame = spark.readStream.schema("{SCHEMA}").option("maxFilesPerTrigger", 1).json("@INPUT@")
    return frame.groupBy("k").count()

if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    writer = build(spark).writeStream.outputMode("update").format("noop").trigger(availableNow=True)
    writer.option("checkpointLocation", "@CHECKPOINT@").start().awaitTermination()
"""
