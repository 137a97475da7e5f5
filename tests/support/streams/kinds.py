"""The test streams, one for each way in which Spark keeps state. Most keep few batches, so that files vanish all the time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from tests.support.streams.data import SCHEMA

_P = "spark.sql.streaming."
_STATE = f"{_P}stateStore."
_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
_HDFS = {f"{_STATE}providerClass": f"{_PROVIDERS}HDFSBackedStateStoreProvider"}
_ROCKSDB = {f"{_STATE}providerClass": f"{_PROVIDERS}RocksDBStateStoreProvider"}
_CHANGELOG = {**_ROCKSDB, f"{_STATE}rocksdb.changelogCheckpointing.enabled": "true"}
_FORMAT_2 = {**_CHANGELOG, f"{_STATE}checkpointFormatVersion": "2"}
# Spark 4.0.0 spoils its own snapshots now and then when RocksDB compacts in the background (SPARK-52637, seen in 2 of 5 runs of
# 100 batches); compacting at each commit leaves nothing to do in the background.
_NO_BACKGROUND_COMPACTION = {f"{_STATE}rocksdb.compactOnCommit": "true"}
# So that there is something to return to, and an end to it.
_SOME_BATCHES = {f"{_P}minBatchesToRetain": "6"}
# The default: logs are long, so a copy spends more time on them and meets more batches on the way.
_SPARKS_OWN_RETENTION = {f"{_P}minBatchesToRetain": "100"}
_COMPACTION = {
    f"{_P}fileSource.log.compactInterval": "3",
    f"{_P}fileSource.log.cleanupDelay": "1ms",
    f"{_P}fileSource.log.deletion": "true",
}


#: Setting of a session under which every stream computes wrong values.
FAULT = "tests.fault"


@dataclass(frozen=True)
class Kind:
    """A kind of query.

    :param frame: makes the query from a session and the input directory.
    :param mode: output mode.
    :param conf: settings of its session.
    :param sink: ``batches``, ``merge`` or ``two tables`` for :mod:`tests.support.streams.sink`, or a sink of Spark by its
        format.
    :param options: options of its writer.
    """

    frame: Callable[[SparkSession, Path], DataFrame]
    mode: str = "append"
    conf: dict[str, str] = field(default_factory=dict)
    sink: str = "batches"
    options: dict[str, str] = field(default_factory=dict)

    @property
    def is_format_2(self) -> bool:
        """Whether it needs a JVM where format 2 comes first.

        Spark 4.0.0 marks the snapshots of RocksDB with the format that the first query of its JVM had, and refuses those with
        another mark (``Cannot read RocksDB checkpoint metadata. Expected v1, but found v2``).
        """
        return f"{_STATE}checkpointFormatVersion" in self.conf


def _read(spark: SparkSession, directory: Path) -> DataFrame:
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(directory))
    # The bug of yesterday's deployment: wrong values, in the state as well.
    return frame.withColumn("v", F.col("v") * 10 + 1) if spark.conf.get(FAULT, "") else frame


def _stateless(spark: SparkSession, source: Path) -> DataFrame:
    return _read(spark, source / "a").where("v % 7 != 3").select("id", "k", (F.col("v") * 2).alias("v"), "ts")


def _union(spark: SparkSession, source: Path) -> DataFrame:
    return _read(spark, source / "a").union(_read(spark, source / "b")).select("id", "k", "v")


def _totals(spark: SparkSession, source: Path) -> DataFrame:
    return _read(spark, source / "a").groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def _deduplicated(spark: SparkSession, source: Path, *, delay: str = "1 minute") -> DataFrame:
    events = _read(spark, source / "a").withWatermark("ts", delay)
    return events.dropDuplicates(["id", "ts"]).select("id", "k", "v", "ts")


def _windows(spark: SparkSession, source: Path) -> DataFrame:
    """Two stateful operators, one behind the other; a window comes out two or three files later."""
    return (
        _deduplicated(spark, source, delay="5 seconds")
        .groupBy(F.window("ts", "10 seconds"), "k")
        .agg(F.sum("v").alias("s"))
    )


def _joined(spark: SparkSession, source: Path) -> DataFrame:
    a = _read(spark, source / "a").withWatermark("ts", "30 seconds").alias("a")
    b = _read(spark, source / "b").withWatermark("ts", "30 seconds").alias("b")
    near = "a.id = b.id AND a.ts BETWEEN b.ts - interval 20 seconds AND b.ts + interval 20 seconds"
    return a.join(b, F.expr(near)).select("a.id", "a.k", "a.v", F.col("b.v").alias("w"))


def _counted_in_pandas(spark: SparkSession, source: Path) -> DataFrame:
    def count(key: tuple[str], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        n, s = state.get if state.exists else (0, 0)
        for frame in frames:
            n, s = n + len(frame), s + int(frame["v"].sum())
        state.update((n, s))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "s": [s]})

    groups = _read(spark, source / "a").groupBy("k")
    return groups.applyInPandasWithState(count, "k string, n long, s long", "n long, s long", "update", "NoTimeout")


class _Remember(StatefulProcessor):
    """Keeps a value, a list and a map for each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")
        self._values = handle.getListState("values", "v long")
        self._newest = handle.getMapState("newest", "name string", "v long")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[pd.DataFrame]:
        n = self._count.get()[0] if self._count.exists() else 0
        for frame in rows:
            for v in frame["v"]:
                n += 1
                self._values.appendValue((int(v),))
                self._newest.updateValue(("v",), (int(v),))
        self._count.update((n,))
        total = sum(row[0] for row in self._values.get())
        yield pd.DataFrame({"k": [key[0]], "n": [n], "s": [total], "v": [self._newest.getValue(("v",))[0]]})

    def close(self) -> None:
        pass


def _transformed(spark: SparkSession, source: Path, mode: str = "update") -> DataFrame:
    groups = _read(spark, source / "a").groupBy("k")
    columns = "k string, n long, s long, v long"
    return groups.transformWithStateInPandas(_Remember(), columns, outputMode=mode, timeMode="None")


def _transformed_in_append_mode(spark: SparkSession, source: Path) -> DataFrame:
    return _transformed(spark, source, "append")


def _kafka(spark: SparkSession, source: Path) -> DataFrame:
    """Where each record came from; ``source/kafka.json`` holds the options of the reader."""
    options = json.loads((source / "kafka.json").read_text())
    return spark.readStream.format("kafka").options(**options).load().select("topic", "partition", "offset")


def _rate(spark: SparkSession, source: Path) -> DataFrame:
    return spark.readStream.format("rate").option("rowsPerSecond", 5).load()


def _of_a_table(spark: SparkSession, table: Path, **options: str) -> DataFrame:
    """The rows of a Delta table, one of its files in each batch, each row once."""
    rows = spark.readStream.format("delta").options(maxFilesPerTrigger=1, **options).load(str(table))
    return rows.withWatermark("ts", "1 minute").dropDuplicates(["id", "ts"])


def _of_a_table_without_changes(spark: SparkSession, table: Path) -> DataFrame:
    return _of_a_table(spark, table, skipChangeCommits="true")


def _totals_of_a_table(spark: SparkSession, table: Path) -> DataFrame:
    rows = spark.readStream.format("delta").load(str(table))
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def _described(spark: SparkSession, description: Path) -> DataFrame:
    """A query as a JSON file describes it, see :func:`tests.support.streams.described.describe`."""
    told = json.loads(description.read_text())
    for key, value in told["conf"].items():
        spark.conf.set(key, value)
    frames = []
    for source in told["sources"]:
        reader = spark.readStream.format(source["format"]).options(**source["options"])
        reader = reader.schema(source["schema"]) if source.get("schema") else reader
        frames.append(reader.load(source["path"]) if source.get("path") else reader.load())
    frames = [frame.selectExpr(*source["select"]) for frame, source in zip(frames, told["sources"], strict=True)]
    first, *others = frames
    for other in others:
        first = first.join(other, "id") if told["combine"] == "join" else first.union(other)
    if told["combine"] == "distinct":
        return first.dropDuplicates(["id"])
    return first.groupBy("id").count() if told["combine"] == "count" else first


#: Those of the soak: at least one for each operator, each provider and each format of state.
SOAK = {
    "stateless": Kind(_stateless, conf=_SPARKS_OWN_RETENTION),
    "compacted_sources": Kind(_union, conf=_COMPACTION),
    "agg_hdfs": Kind(_totals, "update", _HDFS),
    "agg_rocksdb": Kind(_totals, "update", _ROCKSDB),
    "agg_changelog": Kind(_totals, "update", _CHANGELOG),
    "agg_format2": Kind(_totals, "update", _FORMAT_2 | _NO_BACKGROUND_COMPACTION),
    "dedup": Kind(_deduplicated, conf=_CHANGELOG | _SPARKS_OWN_RETENTION),
    "two_operators": Kind(_windows, conf=_HDFS),
    "join_hdfs": Kind(_joined, conf=_HDFS),
    "join_format2": Kind(_joined, conf=_FORMAT_2),
    "pandas_state": Kind(_counted_in_pandas, "update", _HDFS),
    "transform_with_state": Kind(_transformed, "update", _CHANGELOG),
}

#: Those that are rewound, with sinks that remember their batches.
REWOUND = {
    "stateless_to_delta": Kind(_stateless, conf=_SOME_BATCHES, sink="delta"),
    "compacted_to_delta": Kind(_union, conf=_COMPACTION | _SOME_BATCHES, sink="delta"),
    "complete_to_delta": Kind(_totals, "complete", _CHANGELOG | _SOME_BATCHES, sink="delta"),
    "dedup_to_delta": Kind(_deduplicated, conf=_CHANGELOG | _SOME_BATCHES, sink="delta"),
    "dedup_rocksdb_to_delta": Kind(_deduplicated, conf=_ROCKSDB | _SOME_BATCHES, sink="delta"),
    "windows_to_delta": Kind(_windows, conf=_HDFS | _SOME_BATCHES, sink="delta"),
    "join_to_delta": Kind(_joined, conf=_HDFS | _SOME_BATCHES, sink="delta"),
    "join_format2_to_delta": Kind(_joined, conf=_FORMAT_2 | _SOME_BATCHES, sink="delta"),
    "transform_to_delta": Kind(_transformed_in_append_mode, conf=_CHANGELOG | _SOME_BATCHES, sink="delta"),
    "dedup_to_files": Kind(_deduplicated, conf=_HDFS | _SOME_BATCHES, sink="json"),
    "windows_to_files": Kind(_windows, conf=_CHANGELOG | _SOME_BATCHES, sink="json"),
    "totals_by_merge": Kind(_totals, "update", _CHANGELOG | _SOME_BATCHES, sink="merge"),
}

KINDS = {
    **SOAK,
    "described": Kind(_described),
    "described_updates": Kind(_described, "update"),
    "described_to_delta": Kind(_described, sink="delta"),
    "described_to_files": Kind(_described, sink="json"),
    **REWOUND,
    "kafka": Kind(_kafka),
    "stateless_to_iceberg": Kind(_stateless, conf=_SPARKS_OWN_RETENTION, sink="iceberg"),
    "stateless_merged_into_iceberg": Kind(_stateless, conf=_SPARKS_OWN_RETENTION, sink="iceberg merge"),
    "dedup_to_iceberg": Kind(_deduplicated, conf=_CHANGELOG | _SOME_BATCHES, sink="iceberg"),
    "windows_to_iceberg": Kind(_windows, conf=_HDFS | _SOME_BATCHES, sink="iceberg"),
    "join_to_iceberg": Kind(_joined, conf=_ROCKSDB | _SOME_BATCHES, sink="iceberg"),
    "delta_sink": Kind(_stateless, conf=_SPARKS_OWN_RETENTION, sink="delta"),
    "silver": Kind(_of_a_table, conf=_CHANGELOG | _SPARKS_OWN_RETENTION, sink="delta"),
    "silver_skipping": Kind(_of_a_table_without_changes, conf=_CHANGELOG | _SPARKS_OWN_RETENTION, sink="delta"),
    "gold": Kind(_totals_of_a_table, "complete", _HDFS | _SPARKS_OWN_RETENTION, sink="delta"),
    "dedup_to_two_tables": Kind(_deduplicated, conf=_CHANGELOG | _SOME_BATCHES, sink="two tables"),
    "async_progress": Kind(
        _rate,
        sink="noop",
        options={"asyncProgressTrackingEnabled": "true", "asyncProgressTrackingCheckpointIntervalMs": "1000"},
    ),
}
