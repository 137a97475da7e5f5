"""The versions of a stream from Kafka to Delta that keeps each event once: the old one, good ones and bad ones.

The topic is that of the settings below; an event's ``v`` is its number.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

BROKERS, TOPIC = "tests.brokers", "tests.topic"
#: Where to begin; empty: with the earliest event.
STARTING = "tests.starting"
#: Events a batch.
PER_BATCH = "tests.per.batch"
#: Number of the first event that a version with a fault cannot take.
FAULT_FROM = "tests.fault.from"
_EVENT = "id string, k string, v long, ts timestamp"


def read(spark: SparkSession) -> DataFrame:
    records = spark.readStream.format("kafka").option("startingOffsets", spark.conf.get(STARTING) or "earliest")
    records = records.option("kafka.bootstrap.servers", spark.conf.get(BROKERS))
    records = records.option("subscribe", spark.conf.get(TOPIC))
    records = records.option("maxOffsetsPerTrigger", spark.conf.get(PER_BATCH))
    return records.load().select(F.from_json(F.col("value").cast("string"), _EVENT).alias("e")).select("e.*")


def old(spark: SparkSession) -> DataFrame:
    return read(spark).withWatermark("ts", "1 hour").dropDuplicatesWithinWatermark(["id"]).select("id", "k", "v")


# ---- good ones: the same rows -------------------------------------------------------------------


def refactored(spark: SparkSession) -> DataFrame:
    once = read(spark).where("v is not null").withWatermark("ts", "1 hour").dropDuplicatesWithinWatermark(["id"])
    return once.selectExpr("id", "upper(lower(k)) as k", "v + 0 as v")


def old_again(spark: SparkSession) -> DataFrame:
    return old(spark)


# ---- without state, for a new checkpoint --------------------------------------------------------


def plain(spark: SparkSession) -> DataFrame:
    return read(spark).select("id", "k", "v")


def plain_again(spark: SparkSession) -> DataFrame:
    return plain(spark)


# ---- bad ones -----------------------------------------------------------------------------------


def crash_at_start(spark: SparkSession) -> DataFrame:
    raise KeyError("a setting is missing")


def crash_later(spark: SparkSession) -> DataFrame:
    failing = F.raise_error(F.concat(F.lit("cannot take event "), "id")).cast("long")
    return old(spark).withColumn("v", F.when(_fault(spark), failing).otherwise(F.col("v")))


def stall(spark: SparkSession) -> DataFrame:
    asked = F.expr("cast(reflect('java.lang.Thread', 'sleep', 86400000L) as long)")
    return old(spark).withColumn("v", F.when(_fault(spark), asked).otherwise(F.col("v")))


def drops_rows(spark: SparkSession) -> DataFrame:
    return old(spark).where("v % 7 != 3")


def doubles_rows(spark: SparkSession) -> DataFrame:
    return old(spark).selectExpr("*", "explode(if(v % 7 = 3, array(1, 2), array(1))) as n").drop("n")


def wrong_values(spark: SparkSession) -> DataFrame:
    return old(spark).selectExpr("id", "k", "if(v % 7 = 3, -v, v) as v")


def other_state(spark: SparkSession) -> DataFrame:
    """The key of the state is another one."""
    events = read(spark).withWatermark("ts", "1 hour").withColumn("n", F.col("v").cast("int"))
    return events.dropDuplicatesWithinWatermark(["id", "n"]).select("id", "k", "v")


def no_state(spark: SparkSession) -> DataFrame:
    return read(spark).select("id", "k", "v")


def _fault(spark: SparkSession) -> Column:
    return F.col("v") >= F.lit(int(spark.conf.get(FAULT_FROM) or 0))
