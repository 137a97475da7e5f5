"""Queries as users write them for a rehearsal, ``build(spark) -> DataFrame``, in their versions.

They read the test input below the setting ``tests.input``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from tests.support.streams.data import SCHEMA

INPUT = "tests.input"
Build = Callable[[SparkSession], DataFrame]


def read(spark: SparkSession, directory: str = "a", *, files: int = 1) -> DataFrame:
    place = f"{spark.conf.get(INPUT)}/{directory}"
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files).json(place)


# ---- without state ----------------------------------------------------------------------------


def plain(spark: SparkSession) -> DataFrame:
    return read(spark).select("id", "k", "v")


def plain_filtered(spark: SparkSession) -> DataFrame:
    return plain(spark).where("v % 2 = 0")


def plain_wider(spark: SparkSession) -> DataFrame:
    return read(spark).select("id", "k", "v", "ts")


def plain_faster(spark: SparkSession) -> DataFrame:
    return read(spark, files=4).select("id", "k", "v")


def plain_elsewhere(spark: SparkSession) -> DataFrame:
    return read(spark, "b").select("id", "k", "v")


def plain_of_rate(spark: SparkSession) -> DataFrame:
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    return rate.selectExpr("string(value) id", "'k' k", "value v")


def both(spark: SparkSession) -> DataFrame:
    return read(spark, "a").union(read(spark, "b")).select("id", "k", "v")


def both_turned(spark: SparkSession) -> DataFrame:
    return read(spark, "b").union(read(spark, "a")).select("id", "k", "v")


# ---- aggregation ------------------------------------------------------------------------------


def totals(spark: SparkSession) -> DataFrame:
    return read(spark).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def totals_refactored(spark: SparkSession) -> DataFrame:
    counted = F.count("*").alias("n"), F.sum(F.col("v")).alias("s")
    return read(spark).where("k is not null").select("k", "v").groupBy(F.col("k")).agg(*counted)


def totals_renamed(spark: SparkSession) -> DataFrame:
    return totals(spark).withColumnRenamed("s", "total")


def totals_more(spark: SparkSession) -> DataFrame:
    return read(spark).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.max("v").alias("m"))


def totals_fewer(spark: SparkSession) -> DataFrame:
    return read(spark).groupBy("k").agg(F.sum("v").alias("s"))


def totals_of_doubles(spark: SparkSession) -> DataFrame:
    return read(spark).groupBy("k").agg(F.count("*").alias("n"), F.sum(F.col("v").cast("double")).alias("s"))


def totals_by_two(spark: SparkSession) -> DataFrame:
    return read(spark).groupBy("k", "id").agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def totals_by_number(spark: SparkSession) -> DataFrame:
    keyed = read(spark).withColumn("k", F.length("k"))
    return keyed.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def totals_by_id(spark: SparkSession) -> DataFrame:
    return read(spark).groupBy("id").agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def totals_maximum(spark: SparkSession) -> DataFrame:
    return read(spark).groupBy("k").agg(F.count("*").alias("n"), F.max("v").alias("s"))


def totals_doubled(spark: SparkSession) -> DataFrame:
    return read(spark).groupBy("k").agg(F.count("*").alias("n"), F.sum(F.col("v") * 2).alias("s"))


# ---- deduplication, windows -------------------------------------------------------------------


def distinct(spark: SparkSession) -> DataFrame:
    return read(spark).withWatermark("ts", "1 minute").dropDuplicates(["id", "ts"]).select("id", "k", "v", "ts")


def distinct_by_three(spark: SparkSession) -> DataFrame:
    return read(spark).withWatermark("ts", "1 minute").dropDuplicates(["id", "k", "ts"]).select("id", "k", "v", "ts")


def distinct_by_other(spark: SparkSession) -> DataFrame:
    return read(spark).withWatermark("ts", "1 minute").dropDuplicates(["k", "ts"]).select("id", "k", "v", "ts")


def distinct_within(spark: SparkSession) -> DataFrame:
    events = read(spark).withWatermark("ts", "1 minute")
    return events.dropDuplicatesWithinWatermark(["id", "ts"]).select("id", "k", "v", "ts")


def windows(spark: SparkSession) -> DataFrame:
    return distinct(spark).groupBy(F.window("ts", "10 seconds"), "k").agg(F.sum("v").alias("s"))


def windows_only(spark: SparkSession) -> DataFrame:
    events = read(spark).withWatermark("ts", "1 second")
    return events.groupBy(F.window("ts", "10 seconds"), "k").agg(F.sum("v").alias("s"))


def windows_longer(spark: SparkSession) -> DataFrame:
    events = read(spark).withWatermark("ts", "1 second")
    return events.groupBy(F.window("ts", "20 seconds"), "k").agg(F.sum("v").alias("s"))


def windows_later(spark: SparkSession) -> DataFrame:
    events = read(spark).withWatermark("ts", "30 seconds")
    return events.groupBy(F.window("ts", "10 seconds"), "k").agg(F.sum("v").alias("s"))


def sessions(spark: SparkSession) -> DataFrame:
    events = read(spark).withWatermark("ts", "1 minute")
    return events.groupBy(F.session_window("ts", "10 seconds"), "k").agg(F.sum("v").alias("s"))


# ---- joins ------------------------------------------------------------------------------------


def _joined(spark: SparkSession, *, by: str, how: str, seconds: int = 20, more: tuple[str, ...] = ()) -> DataFrame:
    a = read(spark, "a").withWatermark("ts", "30 seconds").alias("a")
    b = read(spark, "b").withWatermark("ts", "30 seconds").alias("b")
    near = f"a.ts BETWEEN b.ts - interval {seconds} seconds AND b.ts + interval {seconds} seconds"
    return a.join(b, F.expr(f"{by} AND {near}"), how).select("a.id", "a.v", F.col("b.v").alias("w"), *more)


def joined(spark: SparkSession) -> DataFrame:
    return _joined(spark, by="a.id = b.id", how="inner")


def joined_by_two(spark: SparkSession) -> DataFrame:
    return _joined(spark, by="a.id = b.id AND a.k = b.k", how="inner")


def joined_by_other(spark: SparkSession) -> DataFrame:
    return _joined(spark, by="a.k = b.k", how="inner")


def joined_outer(spark: SparkSession) -> DataFrame:
    return _joined(spark, by="a.id = b.id", how="left")


def joined_nearer(spark: SparkSession) -> DataFrame:
    return _joined(spark, by="a.id = b.id", how="inner", seconds=1)


def joined_wider(spark: SparkSession) -> DataFrame:
    return _joined(spark, by="a.id = b.id", how="inner", more=("a.k",))


# ---- a user's own state -----------------------------------------------------------------------


def _counted(spark: SparkSession, state_schema: str, *, timeout: str = "NoTimeout") -> DataFrame:
    wide = "s" in state_schema

    def count(key: tuple[str], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        n, s = (*state.get, 0)[:2] if state.exists else (0, 0)
        for frame in frames:
            n, s = n + len(frame), s + int(frame["v"].sum())
        state.update((n, s) if wide else (n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    groups = read(spark).groupBy("k")
    return groups.applyInPandasWithState(count, "k string, n long", state_schema, "update", timeout)


def counted(spark: SparkSession) -> DataFrame:
    return _counted(spark, "n long")


def counted_more(spark: SparkSession) -> DataFrame:
    return _counted(spark, "n long, s long")


def counted_timed(spark: SparkSession) -> DataFrame:
    return _counted(spark, "n long", timeout="ProcessingTimeTimeout")


class _Remember(StatefulProcessor):
    """Keeps a count for each key, and what a version adds to it."""

    def __init__(self, version: str = "") -> None:
        self._version = version

    def init(self, handle: StatefulProcessorHandle) -> None:
        wide = self._version == "wider"
        if self._version == "list":
            self._count = handle.getListState("count", "n long")
        else:
            self._count = handle.getValueState("count", "n long, s long" if wide else "n long")
        if self._version != "fewer":
            self._seen = handle.getMapState("seen", "id string", "v long")
        if self._version == "more":
            self._last = handle.getValueState("last", "v long")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[pd.DataFrame]:
        n = sum(len(frame) for frame in rows)
        if self._version == "list":
            self._count.appendValue((n,))
        else:
            n += self._count.get()[0] if self._count.exists() else 0
            self._count.update((n, 0) if self._version == "wider" else (n,))
        if self._version != "fewer":
            self._seen.updateValue(("n",), (n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    def close(self) -> None:
        pass


def _remembered(spark: SparkSession, version: str = "", *, time: str = "None") -> DataFrame:
    groups = read(spark).groupBy("k")
    processor = _Remember(version)
    return groups.transformWithStateInPandas(processor, "k string, n long", outputMode="update", timeMode=time)


def remembered(spark: SparkSession) -> DataFrame:
    return _remembered(spark)


def remembered_more(spark: SparkSession) -> DataFrame:
    return _remembered(spark, "more")


def remembered_fewer(spark: SparkSession) -> DataFrame:
    return _remembered(spark, "fewer")


def remembered_list(spark: SparkSession) -> DataFrame:
    return _remembered(spark, "list")


def remembered_wider(spark: SparkSession) -> DataFrame:
    return _remembered(spark, "wider")


def remembered_timed(spark: SparkSession) -> DataFrame:
    return _remembered(spark, time="ProcessingTime")


# ---- what is wrong with the code itself -------------------------------------------------------


def raises(spark: SparkSession) -> DataFrame:
    raise ValueError("no such table: customers")


def gives_nothing(spark: SparkSession) -> None:
    spark.range(1)


def fails_in_a_batch(spark: SparkSession) -> DataFrame:
    return plain(spark).withColumn("v", F.expr("if(v < 0, v, raise_error('no such customer'))"))


def hangs(spark: SparkSession) -> DataFrame:
    def slow(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        import time

        for frame in frames:
            time.sleep(600)
            yield frame

    return read(spark).select("id", "k", "v").mapInPandas(slow, "id string, k string, v long")


def moves_its_input(spark: SparkSession) -> DataFrame:
    place = f"{spark.conf.get(INPUT)}/a"
    return spark.readStream.schema(SCHEMA).option("cleanSource", "delete").json(place).select("id", "k", "v")


def unreachable(spark: SparkSession) -> DataFrame:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders", "kafka.default.api.timeout.ms": "3000"}
    options |= {"kafka.request.timeout.ms": "2000", "startingOffsets": "earliest", "fetchOffset.numRetries": "1"}
    frame = spark.readStream.format("kafka").options(**options).load()
    return frame.selectExpr("string(value) id", "'k' k", "offset v")
