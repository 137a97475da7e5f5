"""Small streaming queries of every kind, and the checkpoints they leave.

Runs under the plain Python of any Spark from 3.5 to 4.3 and imports nothing of this project::

    python kinds.py list                       the kinds that the installed Spark knows
    python kinds.py make DIRECTORY [KIND ...]  make samples: DIRECTORY/<kind>/{ck,rows.json}
    python kinds.py go-on KIND --checkpoint CK --input DIRECTORY [--rows FILE]
                                               run the same query from CK over what lies in DIRECTORY
    python kinds.py serve                      the same as a service, one JVM for many requests (see ``serve``)

A sample can be judged without running its first half again: ``rows.json`` holds the rows that each batch of the sample
gave, and those of a run over all files (``files`` and ``further_files``) that never stopped. What a query gives when it
continues from batch N must then be the second less the rows of the first up to N.

Content of the input files depends on their number only, and one file is one batch, so rows do not differ between runs.
Neighbouring files share rows, and all keys come back in every file: a query that lost its state gives other rows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

_STREAMING = "spark.sql.streaming."
_STORE = _STREAMING + "stateStore."
_PROVIDER = "org.apache.spark.sql.execution.streaming.state."

#: The same for all, so that a sample stays small and its batches stay in it.
COMMON = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    _STREAMING + "minBatchesToRetain": "100",
    _STORE + "minDeltasForSnapshot": "10",
    _STORE + "maintenanceInterval": "60s",
}
HDFS = {_STORE + "providerClass": _PROVIDER + "HDFSBackedStateStoreProvider"}
ROCKSDB = {_STORE + "providerClass": _PROVIDER + "RocksDBStateStoreProvider"}
CHANGELOG = {**ROCKSDB, _STORE + "rocksdb.changelogCheckpointing.enabled": "true"}
FORMAT_2 = {**CHANGELOG, _STORE + "checkpointFormatVersion": "2"}
#: Snapshots and deletions within seconds.
MAINTAINED = {
    _STREAMING + "minBatchesToRetain": "3",
    _STORE + "minDeltasForSnapshot": "3",
    _STORE + "maintenanceInterval": "1s",
}

_COLUMNS = "k string, v long, ts timestamp"
#: Modification time of file 0 (2024-01-01); Spark takes files in this order.
_FIRST_FILE = 1_704_067_200
_NEW_ROWS, _OLD_ROWS = 5, 2


@dataclass(frozen=True)
class Kind:
    """A query and the settings it runs under.

    :param query: makes the query's DataFrame from a session and the directory with ``in/`` and ``in2/``.
    :param settings: of the session, beside :data:`COMMON`.
    :param since: the Spark version that brought the feature.
    :param files: number of input files of the sample, in ``in/`` and ``in2/``.
    :param further_files: how many more the query reads when it continues.
    :param mode: output mode.
    :param sink: where the sample's rows go: ``rows`` (collected), ``parquet`` (a file sink, next to the checkpoint) or
        ``noop``.
    :param options: of the writer.
    :param trigger: other than "available now".
    :param on_the_clock: what a batch holds depends on the time, so rows cannot be foretold.
    :param endless: Spark starts batches without data for ever, "available now" would not end.
    :param alone: needs a JVM of its own: the maintenance thread keeps the interval of a JVM's first stateful query.
    """

    query: Callable[[Any, Path], Any]
    settings: Mapping[str, str] = field(default_factory=dict)
    since: tuple[int, int] = (3, 5)
    files: tuple[int, int] = (6, 0)
    further_files: tuple[int, int] = (3, 0)
    mode: str = "append"
    sink: str = "rows"
    sink_name: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    trigger: Mapping[str, str] = field(default_factory=dict)
    on_the_clock: bool = False
    endless: bool = False
    alone: bool = False

    @property
    def jvm(self) -> str:
        """Kinds with the same name here can run in one JVM.

        Spark 4.0 takes the version that it writes into RocksDB snapshots from the state checkpoint format that was set when
        a JVM first wrote or read one (constant ``RocksDBCheckpointMetadata.VERSION``), and then reads no other.
        """
        return "state checkpoint format " + self.settings.get(_STORE + "checkpointFormatVersion", "1")

    @property
    def collects_when_going_on(self) -> bool:
        """Whether rows can be collected: asynchronous and continuous queries allow no ``foreachBatch``."""
        return not (self.options or self.trigger)


# ---- input --------------------------------------------------------------------------------------


def write_input(root: Path, kind: str, *, first: tuple[int, int], count: tuple[int, int]) -> None:
    """Write input files: ``count`` of them in ``in/`` and ``in2/``, numbered from ``first``."""
    for name, start, number in zip(("in", "in2"), first, count, strict=True):
        if any(KINDS[kind].files):
            (root / name).mkdir(parents=True, exist_ok=True)
        for file_number in range(start, start + number):
            _write_file(root / name, file_number)


def _write_file(directory: Path, number: int) -> None:
    rows = [_row(number, i) for i in range(_NEW_ROWS)]
    if number:
        rows += [_row(number - 1, i) for i in range(_OLD_ROWS)]
    file = directory / f"f{number:04d}.json"
    hidden = directory / f"_{file.name}"  # Spark reads no file whose name starts so
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(hidden, (_FIRST_FILE + number, _FIRST_FILE + number))
    hidden.rename(file)


def _row(number: int, i: int) -> dict[str, Any]:
    return {
        "k": f"k{(number + i) % 5}",
        "v": number * 100 + i,
        "ts": f"2024-01-01T{number // 60:02d}:{number % 60:02d}:{i:02d}",
    }


# ---- queries ------------------------------------------------------------------------------------


def files(spark: Any, root: Path, directory: str = "in") -> Any:
    return spark.readStream.schema(_COLUMNS).option("maxFilesPerTrigger", 1).json(f"{root / directory}")


def named_files(spark: Any, root: Path) -> Any:
    def source(name: str, directory: str) -> Any:
        reader = spark.readStream.schema(_COLUMNS).option("maxFilesPerTrigger", 1).name(name)
        return reader.format("json").load(f"{root / directory}")

    return source("orders", "in").union(source("returns", "in2"))


def two_sources(spark: Any, root: Path) -> Any:
    return files(spark, root).union(files(spark, root, "in2"))


def rate(spark: Any, root: Path) -> Any:
    return spark.readStream.format("rate").option("rowsPerSecond", 5).load()


def rate_per_batch(spark: Any, root: Path) -> Any:
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()


def sums(spark: Any, root: Path) -> Any:
    from pyspark.sql import functions as F

    return files(spark, root).groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def without_duplicates(spark: Any, root: Path) -> Any:
    return files(spark, root).withWatermark("ts", "1 minute").dropDuplicates(["k", "ts"])


def without_duplicates_within_watermark(spark: Any, root: Path) -> Any:
    return files(spark, root).withWatermark("ts", "1 minute").dropDuplicatesWithinWatermark(["k"])


def joined(spark: Any, root: Path) -> Any:
    from pyspark.sql import functions as F

    left = files(spark, root).withWatermark("ts", "2 minutes").alias("l")
    right = files(spark, root, "in2").withWatermark("ts", "2 minutes").alias("r")
    near = "l.k = r.k AND l.ts BETWEEN r.ts - INTERVAL 1 MINUTE AND r.ts + INTERVAL 1 MINUTE"
    return left.join(right, F.expr(near)).select("l.k", "l.v", F.col("r.v").alias("w"))


def sessions(spark: Any, root: Path) -> Any:
    from pyspark.sql import functions as F

    events = files(spark, root).withWatermark("ts", "1 minute")
    return events.groupBy(F.session_window("ts", "30 seconds"), "k").count()


def distinct_per_minute(spark: Any, root: Path) -> Any:
    from pyspark.sql import functions as F

    return without_duplicates(spark, root).groupBy(F.window("ts", "1 minute"), "k").count()


def first_ten(spark: Any, root: Path) -> Any:
    return files(spark, root).limit(10)


def counted_in_pandas(spark: Any, root: Path) -> Any:
    import pandas as pd

    def count(key: Any, frames: Iterable[Any], state: Any) -> Iterable[Any]:
        n = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
        state.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    return (
        files(spark, root)
        .groupBy("k")
        .applyInPandasWithState(count, "k string, n long", "n long", "update", "NoTimeout")
    )


def with_state_variables(spark: Any, root: Path) -> Any:
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor

    class Count(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "n long")
            self.values = handle.getListState("values", "v long", ttlDurationMs=24 * 3600 * 1000)
            self.seen = handle.getMapState("seen", "v long", "times long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            values = [int(v) for frame in rows for v in frame["v"]]
            n = (self.total.get()[0] if self.total.exists() else 0) + len(values)
            self.total.update((n,))
            again = 0
            for v in values:
                again += self.seen.containsKey((v,))
                self.seen.updateValue((v,), (1,))
                self.values.appendValue((v,))
            yield pd.DataFrame({"k": [key[0]], "n": [n], "again": [again]})

        def close(self) -> None:
            pass

    return (
        files(spark, root)
        .groupBy("k")
        .transformWithStateInPandas(
            Count(), outputStructType="k string, n long, again long", outputMode="update", timeMode="ProcessingTime"
        )
    )


def _join_format(version: int) -> dict[str, str]:
    return {_STREAMING + "join.stateFormatVersion": str(version)}


_PAIRED = {"files": (6, 6), "further_files": (3, 3)}
_ENDS_EARLIER = {"files": (6, 3), "further_files": (3, 1)}
#: Snapshots come with every third or fourth version, so the newest one is not the newest version.
_LONG = {"files": (23, 0), "alone": True}

KINDS: dict[str, Kind] = {
    # -- without state
    "file_to_file": Kind(files, sink="parquet"),
    "file_to_file_compact": Kind(
        files,
        {_STREAMING + "fileSource.log.compactInterval": "3", _STREAMING + "fileSink.log.compactInterval": "3"},
        files=(8, 0),
        sink="parquet",
    ),
    "file_to_noop": Kind(files, sink="noop"),
    "file_to_foreachbatch": Kind(files),
    "rate_to_console": Kind(rate, files=(0, 0), on_the_clock=True),
    "rate_micro_batch": Kind(rate_per_batch, files=(0, 0), on_the_clock=True),
    "rate_continuous": Kind(rate, files=(0, 0), sink="noop", trigger={"continuous": "1 second"}, on_the_clock=True),
    "rate_async_progress": Kind(
        rate,
        files=(0, 0),
        sink="noop",
        options={"asyncProgressTrackingEnabled": "true", "asyncProgressTrackingCheckpointIntervalMs": "2000"},
        on_the_clock=True,
    ),
    "two_sources_union": Kind(two_sources, **_ENDS_EARLIER),  # type: ignore[arg-type]
    "offset_log_v2": Kind(
        two_sources,
        {_STREAMING + "offsetLog.formatVersion": "2"},
        since=(4, 2),
        **_ENDS_EARLIER,  # type: ignore[arg-type]
    ),
    "named_sources": Kind(
        named_files,
        {_STREAMING + "queryEvolution.enableSourceEvolution": "true"},
        since=(4, 2),
        **_ENDS_EARLIER,  # type: ignore[arg-type]
    ),
    # -- one aggregation, in each way of keeping state
    "hdfs_agg": Kind(sums, HDFS, mode="update"),
    "hdfs_agg_maint": Kind(sums, {**HDFS, **MAINTAINED}, mode="update", **_LONG),  # type: ignore[arg-type]
    "rocks_agg": Kind(sums, ROCKSDB, mode="update"),
    "rocks_changelog_agg": Kind(sums, CHANGELOG, mode="update"),
    "rocks_changelog_maint": Kind(sums, {**CHANGELOG, **MAINTAINED}, mode="update", **_LONG),  # type: ignore[arg-type]
    "rocks_ckptv2_agg": Kind(sums, FORMAT_2, since=(4, 0), mode="update"),
    "rocks_ckptv2_maint": Kind(
        sums,
        {**FORMAT_2, **MAINTAINED},
        since=(4, 0),
        mode="update",
        **_LONG,  # type: ignore[arg-type]
    ),
    "no_checksum_files": Kind(
        sums, {**FORMAT_2, _STREAMING + "checkpoint.fileChecksum.enabled": "false"}, since=(4, 1), mode="update"
    ),
    "commit_log_v3": Kind(
        sums,
        {**FORMAT_2, _STREAMING + "queryEvolution.enableSinkEvolution": "true"},
        since=(4, 3),
        mode="update",
        sink_name="totals",
    ),
    "rocks_rowchecksum": Kind(sums, {**CHANGELOG, _STORE + "rowChecksum.enabled": "true"}, since=(4, 2), mode="update"),
    # -- other operators
    "hdfs_dedup": Kind(without_duplicates, HDFS),
    "rocks_dedup": Kind(without_duplicates, CHANGELOG),
    "rocks_dedup_within_watermark": Kind(without_duplicates_within_watermark, CHANGELOG),
    "hdfs_ssjoin": Kind(joined, HDFS, **_PAIRED),  # type: ignore[arg-type]
    "rocks_ssjoin_v2": Kind(joined, CHANGELOG, **_PAIRED),  # type: ignore[arg-type]
    "rocks_ssjoin_v3": Kind(joined, {**CHANGELOG, **_join_format(3)}, since=(4, 1), **_PAIRED),  # type: ignore[arg-type]
    "rocks_ssjoin_v4": Kind(
        joined,
        {**CHANGELOG, **_join_format(4), _STREAMING + "join.stateFormatV4.enabled": "true"},
        since=(4, 2),
        **_PAIRED,  # type: ignore[arg-type]
    ),
    "rocks_ckptv2_ssjoin": Kind(joined, FORMAT_2, since=(4, 0), **_PAIRED),  # type: ignore[arg-type]
    "hdfs_session_window": Kind(sessions, HDFS),
    "hdfs_two_operators": Kind(distinct_per_minute, HDFS),
    "hdfs_global_limit": Kind(first_ten, HDFS),
    "pandas_state": Kind(counted_in_pandas, HDFS, mode="update"),
    "tws_rocks": Kind(with_state_variables, ROCKSDB, since=(4, 0), mode="update", endless=True),
    "tws_rocks_ckptv2": Kind(with_state_variables, FORMAT_2, since=(4, 0), mode="update", endless=True),
}


# ---- running ------------------------------------------------------------------------------------


@dataclass
class Run:
    """One run of a query.

    :param root: where ``in/`` and ``in2/`` are.
    :param checkpoint: its checkpoint.
    :param pause: seconds between batches, for the maintenance thread.
    """

    spark: Any
    kind: Kind
    root: Path
    checkpoint: Path
    pause: float = 0

    def start(self, *, sink: str) -> dict[str, Any]:
        """Run until all input is read, or for a few batches where it never is.

        :return: ``rows`` by batch, ``batches`` with the offsets of each, from Spark's own progress reports.
        """
        rows: dict[int, list[str]] = {}
        for key, value in {**COMMON, **self.kind.settings}.items():
            self.spark.conf.set(key, value)
        try:
            query = self._started(sink, rows)
            try:
                self._wait(query)
            finally:
                query.stop()
            reports = [
                json.loads(report.json) if hasattr(report, "json") else report for report in query.recentProgress
            ]
        finally:
            for key in {**COMMON, **self.kind.settings}:
                self.spark.conf.unset(key)
        # A report of an idle moment has the number of the batch that comes next.
        by_batch = {report["batchId"]: _batch(report) for report in reports}
        return {"rows": rows, "batches": list(by_batch.values())}

    def _started(self, sink: str, rows: dict[int, list[str]]) -> Any:
        writer = self.kind.query(self.spark, self.root).writeStream.outputMode(self.kind.mode)
        for key, value in {"checkpointLocation": str(self.checkpoint), **self.kind.options}.items():
            writer = writer.option(key, value)
        steady = self.kind.endless or self.kind.on_the_clock
        writer = writer.trigger(
            **(self.kind.trigger or ({"processingTime": "0 seconds"} if steady else {"availableNow": True}))
        )
        if sink == "parquet":
            return writer.format("parquet").start(f"{self.checkpoint.parent / 'out'}")
        if sink == "noop":
            writer = writer.format("noop")
        else:
            writer = writer.foreachBatch(lambda frame, batch: self._collect(frame, batch, rows))
        if self.kind.sink_name:
            writer._jwrite.name(self.kind.sink_name)  # not public in PySpark 4.3
        return writer.start()

    def _collect(self, frame: Any, batch: int, rows: dict[int, list[str]]) -> None:
        from pyspark.sql import functions as F

        rows[batch] = sorted(row[0] for row in frame.select(F.to_json(F.struct("*"))).collect())
        time.sleep(self.pause)

    def _wait(self, query: Any) -> None:
        if not (self.kind.endless or self.kind.on_the_clock):
            query.awaitTermination()
            return
        before = newest(self.checkpoint, "commits")
        deadline = time.monotonic() + 90
        while not self._done(before):
            if query.exception():
                raise query.exception()
            if not query.isActive or time.monotonic() > deadline:
                raise TimeoutError(f"the query did not get on after batch {before}: {query.status}")
            time.sleep(0.1)

    def _done(self, before: int) -> bool:
        """Whether a committed batch has read the last file; on the clock, whether four batches were committed."""
        committed = newest(self.checkpoint, "commits")
        if self.kind.on_the_clock:
            wanted = 2 if self.kind.options else 4  # asynchronous: commits of every other second
            return sum(batch > before for batch in batches(self.checkpoint, "commits")) >= wanted
        if committed <= before:
            return False
        last = (self.checkpoint / "offsets" / str(committed)).read_text().splitlines()[-1]
        log = self.checkpoint / "sources" / "0" / str(json.loads(last)["logOffset"])
        newest_file = max((self.root / "in").glob("f*.json")).name
        return newest_file in log.read_text()


def _batch(report: Mapping[str, Any]) -> dict[str, Any]:
    sources = report["sources"]
    return {
        "batch": report["batchId"],
        "start": [source["startOffset"] for source in sources],
        "end": [source["endOffset"] for source in sources],
    }


def batches(checkpoint: Path, log: str) -> list[int]:
    """Batch ids in ``offsets/`` or ``commits/``."""
    return sorted(int(p.name) for p in (checkpoint / log).glob("*") if p.name.isdigit())


def newest(checkpoint: Path, log: str) -> int:
    """Newest batch id in a log; -1 without any."""
    return max(batches(checkpoint, log), default=-1)


def make(spark: Any, out: Path, name: str) -> None:
    """Make the sample of one kind, and the rows to judge it by."""
    kind = KINDS[name]
    root = out / name
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    write_input(root, name, first=(0, 0), count=kind.files)
    sample = Run(spark, kind, root, root / "ck", pause=0.7 if kind.alone else 0).start(sink=kind.sink)
    if kind.on_the_clock:
        return
    reference = root / "reference"
    total = (kind.files[0] + kind.further_files[0], kind.files[1] + kind.further_files[1])
    write_input(reference, name, first=(0, 0), count=total)
    never_stopped = Run(spark, kind, reference, reference / "ck").start(sink="rows")
    shutil.rmtree(reference)
    # Sinks that keep no rows are of stateless queries: the same batches of the other run gave the same.
    rows = sample["rows"] or {
        batch: of_batch for batch, of_batch in never_stopped["rows"].items() if batch <= newest(root / "ck", "commits")
    }
    (root / "rows.json").write_text(json.dumps({"sample": rows, "never_stopped": never_stopped["rows"]}, indent=0))


def go_on(spark: Any, name: str, checkpoint: Path, root: Path) -> dict[str, Any]:
    """Run a kind's query from a checkpoint, over the input below ``root``."""
    kind = KINDS[name]
    return Run(spark, kind, root, checkpoint).start(sink="rows" if kind.collects_when_going_on else "noop")


def session(scratch: Path | None = None, *, conf: Mapping[str, str] | None = None) -> Any:
    """Start Spark.

    :param conf: more settings.
    """
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        # A JVM of short queries spends its time on compiling: spare it what does not pay within seconds.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.ui.enabled": "false",
        **({"spark.sql.warehouse.dir": str(scratch / "warehouse"), "spark.local.dir": str(scratch)} if scratch else {}),
        **(conf or {}),
    }
    builder = SparkSession.builder.master("local[2]").appName("samples")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


# ---- command line -------------------------------------------------------------------------------


def known_here() -> list[str]:
    """Names of the kinds that the installed Spark has."""
    import pyspark

    version = tuple(map(int, pyspark.__version__.split(".")[:2]))
    return [name for name, kind in KINDS.items() if kind.since <= version]


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer requests, one JSON object a line, with one line each: ``{"error": ...}`` or what :func:`go_on` returns.

    A request is ``{"kind": ..., "checkpoint": ..., "input": ...}``. All run in one JVM, which has never loaded state from
    a checkpoint that is new to it: each start is a cold one.
    """
    spark = session()
    print(json.dumps({"spark": spark.version}), file=answers, flush=True)
    for line in requests:
        request = json.loads(line)
        try:
            answer = go_on(spark, request["kind"], Path(request["checkpoint"]), Path(request["input"]))
        except Exception as e:
            answer = {"error": str(e)[:20_000]}
        print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


def _make_all(out: Path, names: list[str]) -> int:
    jvms: dict[str, list[str]] = {}
    for name in names:
        jvms.setdefault(name if KINDS[name].alone else KINDS[name].jvm, []).append(name)
    if len(jvms) > 1:
        return max(
            subprocess.run([sys.executable, __file__, "make", str(out), *of_jvm], check=False).returncode
            for of_jvm in jvms.values()
        )
    failed = 0
    spark = session()
    for name in names:
        started = time.monotonic()
        try:
            make(spark, out, name)
            print(f"made   {name} ({time.monotonic() - started:.1f} s)", flush=True)
        except Exception:
            traceback.print_exc()
            print(f"FAILED {name}", flush=True)
            failed += 1
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Streaming queries of every kind and the checkpoints they leave.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    making = commands.add_parser("make")
    making.add_argument("directory", type=Path)
    making.add_argument("kinds", nargs="*", choices=[[], *KINDS], metavar="KIND")
    going_on = commands.add_parser("go-on")
    going_on.add_argument("kind", choices=list(KINDS), metavar="KIND")
    going_on.add_argument("--checkpoint", type=Path, required=True)
    going_on.add_argument("--input", type=Path, required=True)
    going_on.add_argument("--rows", type=Path)
    commands.add_parser("serve")
    args = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if args.command == "list":
        print("\n".join(known_here()))
    elif args.command == "make":
        return _make_all(args.directory.absolute(), args.kinds or known_here())
    elif args.command == "go-on":
        text = json.dumps(go_on(session(), args.kind, args.checkpoint.absolute(), args.input.absolute()), indent=1)
        args.rows.write_text(text) if args.rows else print(text)
    else:
        # Workers and the JVM write to standard output as they like: keep it for the answers.
        with os.fdopen(os.dup(1), "w") as answers:
            os.dup2(2, 1)
            serve(sys.stdin, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
