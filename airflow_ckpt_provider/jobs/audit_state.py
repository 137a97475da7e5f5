"""What is in the state of a stream: rows, bytes, spread over partitions, oldest and newest key, growth.

A Spark application for Spark 4.0 and later, in one file that needs nothing but pyspark (and fsspec for reports that are
not on a local disk), so that a cluster can run it as it is::

    spark-submit audit_state.py s3a://lake/checkpoints/orders --output s3a://lake/audits/orders/20261121.json

It reads by Spark's own ``state-metadata`` and ``statestore`` readers. They take no lock and write nothing: the stream
continues. Where its maintenance deletes a batch while that is read, the newest readable one is taken instead.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMAT, VERSION = "airflow-ckpt-state-audit", 1
#: Batches that are tried before the audit gives up.
_ATTEMPTS = 6
#: Spark's spelling of a scheme -> fsspec's.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "abfs"}
_JOIN_SIDES = ("left", "right")
_STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


@dataclass(frozen=True)
class View:
    """One way to read an operator's state: a store, a side of a join, or a variable of a stateful processor.

    :param name: as reports have it: ``default``, ``left``, ``total``, ``total timers``.
    :param kind: ``store``, ``join side``, ``variable`` or ``timers``.
    :param options: of the ``statestore`` reader.
    :param feed: of the same reader for the change feed, which knows no sides of a join; ``None`` if there is none.
    :param directories: last parts of the paths of its stores below a partition; ``""`` for the partition itself.
    """

    name: str
    kind: str
    options: tuple[tuple[str, str], ...]
    feed: tuple[tuple[str, str], ...] | None
    directories: tuple[str, ...]


@dataclass(frozen=True)
class Operator:
    """A stateful operator, as ``state-metadata`` has it.

    :param views: how its state is read.
    :param oldest_batch: oldest batch that can be read, as far as the logs tell.
    :param newest_batch: newest one.
    """

    operator_id: int
    name: str
    partitions: int
    views: tuple[View, ...]
    oldest_batch: int
    newest_batch: int


class NothingToRead(Exception):
    """None of the batches could be read."""


# ---- what there is ----------------------------------------------------------------------------


def operators_of(spark: SparkSession, checkpoint: str) -> list[Operator]:
    """Ask ``state-metadata`` for the stateful operators."""
    try:
        rows = spark.read.format("state-metadata").load(checkpoint).collect()
    except Exception as e:
        if "encountered v2" not in str(e) or spark.conf.get(_STATE_FORMAT, "1") == "2":
            raise
        # Readers, too, take the format of the commit log from the session.
        spark.conf.set(_STATE_FORMAT, "2")
        rows = spark.read.format("state-metadata").load(checkpoint).collect()
    by_operator: dict[int, list[Any]] = {}
    for row in rows:
        by_operator.setdefault(int(row["operatorId"]), []).append(row)
    return [_operator(number, stores) for number, stores in sorted(by_operator.items())]


def _operator(number: int, stores: list[Any]) -> Operator:
    first = stores[0]
    names = [str(row["stateStoreName"]) for row in stores]
    properties = json.loads(first["operatorProperties"] or "{}") if "operatorProperties" in first else {}
    return Operator(
        operator_id=number,
        name=str(first["operatorName"]),
        partitions=max(int(row["numPartitions"]) for row in stores),
        views=tuple(views_of(str(first["operatorName"]), names, properties)),
        oldest_batch=int(first["minBatchId"]),
        newest_batch=int(first["maxBatchId"]),
    )


def views_of(operator: str, stores: Sequence[str], properties: dict[str, Any]) -> Iterator[View]:
    """How the state of an operator is read.

    :param operator: its name.
    :param stores: names of its stores.
    :param properties: its ``operatorProperties``; those of transformWithState name the variables.
    """
    if operator == "symmetricHashJoin":
        for side in _JOIN_SIDES:
            own = tuple(name for name in stores if name.startswith(f"{side}-"))
            rows = f"{side}-keyWithIndexToValue"
            if rows in own:
                # One entry for each row of the side; and unlike joinSide it has a change feed.
                yield View(side, "join side", (("storeName", rows),), (("storeName", rows),), own)
            else:  # both sides in one store, from join state format 3 on
                yield View(side, "join side", (("joinSide", side),), None, ("",))
        return
    variables = properties.get("stateVariables")
    if isinstance(variables, str):
        variables = json.loads(variables)
    if not variables:
        for name in stores:
            options = (("storeName", name),) if name != "default" else ()
            yield View(name, "store", options, options, ("" if name == "default" else name,))
        return
    for variable in variables:
        name = str(variable["stateName"])
        if str(variable.get("stateVariableType", "")).lower() == "timerstate":
            yield View("timers", "timers", (("readRegisteredTimers", "true"),), None, ())
        else:
            yield View(name, "variable", (("stateVarName", name),), (("stateVarName", name),), ())


def sizes_of(spark: SparkSession, checkpoint: str) -> dict[tuple[int, int, str], tuple[int, int]]:
    """Files and bytes of the state by operator, partition and store, as Spark itself lists them.

    The reader of binary files is asked for sizes only and opens none of them.
    """
    from pyspark.sql import functions as F

    options = {"recursiveFileLookup": "true", "ignoreMissingFiles": "true"}
    listed = spark.read.format("binaryFile").options(**options).load(f"{checkpoint.rstrip('/')}/state")
    path = F.regexp_extract("path", r"/state/(\d+)/(\d+)/((?:[^/]+/)*)[^/]+$", 0)
    parts = [F.regexp_extract(path, r"/state/(\d+)/(\d+)/((?:[^/]+/)*)", n) for n in (1, 2, 3)]
    found = (
        listed.where(path != "")
        .where(~F.col("path").contains("/_metadata/"))  # schemas, which Spark's listing does not hide
        .select(*(part.alias(name) for part, name in zip(parts, ("op", "partition", "rest"), strict=True)), "length")
        .groupBy("op", "partition", "rest")
        .agg(F.count("*").alias("files"), F.sum("length").alias("bytes"))
        .collect()
    )
    sizes: dict[tuple[int, int, str], tuple[int, int]] = {}
    for row in found:
        store = str(row["rest"]).partition("/")[0]
        place = (int(row["op"]), int(row["partition"]), "" if store in ("SSTs", "logs") else store)
        files, size = sizes.get(place, (0, 0))
        sizes[place] = (files + int(row["files"]), size + int(row["bytes"]))
    return sizes


# ---- one batch --------------------------------------------------------------------------------


def read_view(spark: SparkSession, checkpoint: str, operator: int, view: View, batch: int) -> DataFrame:
    """The rows of a view as of a batch."""
    reader = spark.read.format("statestore").option("operatorId", operator).option("batchId", batch)
    for key, value in view.options:
        reader = reader.option(key, value)
    return reader.load(checkpoint)


def event_time_of(frame: DataFrame) -> tuple[str, Column] | None:
    """The event time in the keys of a view: the end of their window, or else their first timestamp.

    :return: how reports name it, and the column; ``None`` where keys have no time.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType, TimestampType

    key = frame.schema["key"].dataType if "key" in frame.columns else None
    if not isinstance(key, StructType):
        return None
    for field in key.fields:
        if isinstance(field.dataType, StructType) and {"start", "end"} <= set(field.dataType.names):
            return f"{field.name}.end", F.col(f"key.`{field.name}`.end")
    for field in key.fields:
        if isinstance(field.dataType, TimestampType):
            return field.name, F.col(f"key.`{field.name}`")
    return None


def measure(spark: SparkSession, checkpoint: str, operator: Operator, view: View, batch: int) -> dict[str, Any]:
    """Count the rows of a view by partition, and find its oldest and newest key."""
    from pyspark.sql import functions as F

    frame = read_view(spark, checkpoint, operator.operator_id, view, batch)
    time = event_time_of(frame)
    wanted = [F.count("*").alias("rows")]
    if time:
        # Milliseconds, which need no time zone to be agreed upon.
        millis = F.unix_millis(time[1])
        wanted += [F.min(millis).alias("oldest"), F.max(millis).alias("newest")]
    rows = frame.groupBy("partition_id").agg(*wanted).collect()
    by_partition = {int(row["partition_id"]): int(row["rows"]) for row in rows}
    measured: dict[str, Any] = {"rows": sum(by_partition.values()), "by_partition": by_partition, "event_time": None}
    if time and rows:
        times = [row[name] for row in rows for name in ("oldest", "newest") if row[name] is not None]
        if times:
            measured["event_time"] = {"column": time[0], "oldest": _iso(min(times)), "newest": _iso(max(times))}
    return measured


def spread(by_partition: dict[int, int]) -> dict[str, Any] | None:
    """Smallest, median and largest, and the skew: the largest over the mean (1 where all are alike)."""
    if not by_partition:
        return None
    values = list(by_partition.values())
    mean = sum(values) / len(values)
    return {
        "partitions": len(values),
        "min": min(values),
        "median": median(values),
        "max": max(values),
        "largest_partition": max(by_partition, key=lambda p: by_partition[p]),
        "skew": round(max(values) / mean, 3) if mean else 1.0,
    }


def _iso(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat()


# ---- the audit --------------------------------------------------------------------------------


def audit(
    spark: SparkSession, checkpoint: str, *, batch: int | None = None, since: int | None = None
) -> dict[str, Any]:
    """Read all of the state, as of one batch.

    :param checkpoint: the checkpoint, as Spark names it.
    :param batch: the batch; by default the newest committed one that can be read.
    :param since: a batch to compare with; where it is no longer there the report says so.
    :raises NothingToRead: no batch could be read.
    """
    refused: list[dict[str, Any]] = []
    tried: set[int] = set()
    for _ in range(_ATTEMPTS if batch is None else 1):
        operators = operators_of(spark, checkpoint)
        if not operators:
            return _report(spark, checkpoint, None, [], refused)
        chosen = batch if batch is not None else _next_to_try(operators, tried)
        if chosen is None:
            break
        tried.add(chosen)
        try:
            found = [_operator_report(spark, checkpoint, operator, chosen, since) for operator in operators]
        except Exception as e:  # whatever a reader says of a batch that is going away
            refused.append({"batch_id": chosen, "reason": _first_line(e)})
            continue
        sizes = sizes_of(spark, checkpoint)
        for operator, report in zip(operators, found, strict=True):
            _add_sizes(operator, report, sizes)
        return _report(spark, checkpoint, chosen, found, refused)
    if spark.conf.get(_STATE_FORMAT, "1") == "2" and spark.version.startswith("4.0."):
        raise NothingToRead(
            f"Spark {spark.version} does not read the state of {checkpoint}, which is in state checkpoint format 2: run the "
            "audit with Spark 4.1 or later"
        )
    tries = "; ".join(f"batch {r['batch_id']}: {r['reason']}" for r in refused)
    raise NothingToRead(f"no batch of {checkpoint} could be read: {tries or 'nothing is committed'}")


def _next_to_try(operators: list[Operator], tried: set[int]) -> int | None:
    """The newest batch that was not tried yet; a stream that continues has a new one each time."""
    oldest = max(operator.oldest_batch for operator in operators)
    newest = min(operator.newest_batch for operator in operators)
    return next((batch for batch in range(newest, oldest - 1, -1) if batch not in tried), None)


def _operator_report(
    spark: SparkSession, checkpoint: str, operator: Operator, batch: int, since: int | None
) -> dict[str, Any]:
    views = []
    for view in operator.views:
        measured = measure(spark, checkpoint, operator, view, batch)
        growth = (
            None if since is None else growth_since(spark, checkpoint, operator, view, since, batch, measured["rows"])
        )
        views.append({"name": view.name, "kind": view.kind, **measured, "growth": growth})
    return {"id": operator.operator_id, "name": operator.name, "stores": views}


def growth_since(
    spark: SparkSession, checkpoint: str, operator: Operator, view: View, since: int, batch: int, rows: int
) -> dict[str, Any]:
    """Rows then and now, and by the change feed how many were put and removed in between.

    What can no longer be read is ``None``, with the reason.
    """
    then = changes = None
    unknown = []
    if since >= batch:
        return {
            "since_batch": since,
            "rows_then": None,
            "percent": None,
            "changes": None,
            "unknown": ["it is not older"],
        }
    try:
        then = read_view(spark, checkpoint, operator.operator_id, view, since).count()
    except Exception as e:
        unknown.append(f"rows at batch {since}: {_first_line(e)}")
    try:
        changes = _changes(spark, checkpoint, operator, view, since, batch)
    except Exception as e:
        unknown.append(f"changes since batch {since}: {_first_line(e)}")
    return {
        "since_batch": since,
        "rows_then": then,
        "percent": percent(then, rows),
        "changes": changes,
        "unknown": unknown,
    }


def _changes(
    spark: SparkSession, checkpoint: str, operator: Operator, view: View, since: int, batch: int
) -> dict[str, int]:
    if view.feed is None:
        raise ValueError(f"{view.kind} have no change feed")
    reader = spark.read.format("statestore").option("operatorId", operator.operator_id)
    reader = reader.option("readChangeFeed", "true").option("changeStartBatchId", since + 1)
    reader = reader.option("changeEndBatchId", batch)
    for key, value in view.feed:
        reader = reader.option(key, value)
    counted = reader.load(checkpoint).groupBy("change_type").count().collect()
    return {str(row["change_type"]): int(row["count"]) for row in counted}


def percent(before: int | None, after: int) -> float | None:
    """Growth in percent; ``None`` where it began with nothing, or where that is not known."""
    return round(100 * (after - before) / before, 2) if before else None


def _add_sizes(operator: Operator, report: dict[str, Any], sizes: dict[tuple[int, int, str], tuple[int, int]]) -> None:
    """Put bytes beside rows; a partition that has files and no rows counts too."""
    own = {place: size for place, size in sizes.items() if place[0] == operator.operator_id}
    report["files"] = sum(files for files, _ in own.values())
    report["bytes"] = sum(size for _, size in own.values())
    on_disk = {partition for _, partition, _ in own}
    for view, found in zip(operator.views, report["stores"], strict=True):
        mine = [size for (_, _, store), (_, size) in own.items() if store in view.directories]
        # Variables share a store: their bytes cannot be distinguished.
        found["bytes"] = sum(mine) if view.directories and _alone(operator, view) else None
        rows = {partition: found["by_partition"].get(partition, 0) for partition in sorted(on_disk)}
        found["by_partition"] = {str(p): n for p, n in {**rows, **found["by_partition"]}.items()}
        found["rows_per_partition"] = spread({int(p): n for p, n in found["by_partition"].items()})


def _alone(operator: Operator, view: View) -> bool:
    return all(other is view or not set(view.directories) & set(other.directories) for other in operator.views)


def _report(
    spark: SparkSession,
    checkpoint: str,
    batch: int | None,
    operators: list[dict[str, Any]],
    refused: list[dict[str, Any]],
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "checkpoint": checkpoint,
        "spark": spark.version,
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "batch_id": batch,
        "unreadable": refused,
        "rows": sum(store["rows"] for operator in operators for store in operator["stores"]),
        "bytes": sum(operator["bytes"] for operator in operators),
        "operators": operators,
        "compared_with": None,
    }


def compare(report: dict[str, Any], earlier: dict[str, Any], *, source: str) -> None:
    """Say in a report how it differs from an earlier one; only where both have something to compare.

    :param source: where the earlier one was found.
    """
    report["compared_with"] = {
        "report": source,
        "batch_id": earlier["batch_id"],
        "taken": earlier["taken"],
        "rows": earlier["rows"],
        "bytes": earlier["bytes"],
        "rows_percent": percent(earlier["rows"], report["rows"]),
        "bytes_percent": percent(earlier["bytes"], report["bytes"]),
    }
    before = {(o["id"], s["name"]): s["rows"] for o in earlier["operators"] for s in o["stores"]}
    for operator in report["operators"]:
        for store in operator["stores"]:
            rows = before.get((operator["id"], store["name"]))
            store["rows_before"] = rows
            store["rows_percent"] = percent(rows, store["rows"])


def _first_line(error: Exception) -> str:
    """What an error says. Py4J puts the name of a call into the first line and Java's words into the next."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    java = next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0])
    return java[:500]


# ---- reports ----------------------------------------------------------------------------------


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    head = f"{report['checkpoint']}  batch {report['batch_id']}  {report['rows']:,} rows  {report['bytes']:,} bytes"
    if not report["operators"]:
        return f"{report['checkpoint']}  no stateful operators"
    rows = [("operator", "store", "rows", "bytes", "min", "median", "max", "skew", "oldest", "newest", "growth")]
    for operator in report["operators"]:
        for store in operator["stores"]:
            spread_, time = store["rows_per_partition"] or {}, store["event_time"] or {}
            growth = store["growth"] or {}
            grown = growth.get("percent")
            grown = store.get("rows_percent") if grown is None else grown
            began_empty = store["rows"] > 0 and 0 in (growth.get("rows_then"), store.get("rows_before"))
            rows.append(
                (
                    f"{operator['id']} {operator['name']}",
                    store["name"],
                    f"{store['rows']:,}",
                    "" if store["bytes"] is None else f"{store['bytes']:,}",
                    *(f"{spread_.get(name, ''):,}" if spread_ else "" for name in ("min", "median", "max")),
                    str(spread_.get("skew", "")),
                    str(time.get("oldest", ""))[:19],
                    str(time.get("newest", ""))[:19],
                    f"{grown:+.1f} %" if grown is not None else "from 0" if began_empty else "",
                )
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    unread = [f"batch {r['batch_id']} could not be read: {r['reason']}" for r in report["unreadable"]]
    return "\n".join([head, "", *lines, *unread])


def _opened(uri: str) -> tuple[Any, str]:
    scheme, separator, rest = uri.partition("://")
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(f"{_SCHEMES.get(scheme, scheme)}://{rest}" if separator else uri)
    return filesystem, path


def write(report: dict[str, Any], uri: str) -> None:
    """Write a report."""
    filesystem, path = _opened(uri)
    filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    with filesystem.open(path, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)


def earlier_report(uri: str, *, than: str | None) -> tuple[dict[str, Any], str] | None:
    """Read an earlier report, and say where it was.

    :param uri: its file, or a directory: of that the last one by its name, before ``than``.
    :param than: where the new report goes; by its name, runs that are done again find the same earlier one.
    """
    filesystem, path = _opened(uri)
    filesystem.invalidate_cache()
    if not filesystem.exists(path):
        return None
    if filesystem.isdir(path):
        name = than.rstrip("/").rpartition("/")[2] if than else None
        names = sorted(str(p).rstrip("/").rpartition("/")[2] for p in filesystem.ls(path, detail=False))
        before = [n for n in names if n.endswith(".json") and (name is None or n < name)]
        if not before:
            return None
        path = f"{path.rstrip('/')}/{before[-1]}"
    with filesystem.open(path, "r", encoding="utf-8") as file:
        found = json.load(file)
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("version") != VERSION:
        raise ValueError(
            f"{path} is no report of this job: format {found.get('format') if isinstance(found, dict) else '?'}"
        )
    return found, str(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job.

    :return: the exit code: 0; 1 where no batch could be read.
    """
    parser = argparse.ArgumentParser(prog="audit_state", description="What is in the state of a stream.")
    parser.add_argument("checkpoint", help="the checkpointLocation, as Spark names it")
    parser.add_argument("--output", help="where the report goes: a path or a URI that fsspec knows")
    parser.add_argument("--batch", type=int, help="batch to read (default: the newest that can be read)")
    parser.add_argument("--since-batch", type=int, help="batch to compare with")
    parser.add_argument("--compare-with", help="an earlier report, or a directory of them: the one before --output")
    args = parser.parse_args(argv)

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("audit of state").getOrCreate()
    # RocksDB alone prints a thousand lines for each store at the level below.
    spark.sparkContext.setLogLevel("WARN")
    try:
        report = audit(spark, args.checkpoint, batch=args.batch, since=args.since_batch)
    except NothingToRead as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    earlier = earlier_report(args.compare_with, than=args.output) if args.compare_with else None
    if earlier:
        compare(report, earlier[0], source=earlier[1])
    if args.output:
        write(report, args.output)
    print(table(report), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
