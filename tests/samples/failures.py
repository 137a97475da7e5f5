"""Starts queries that fail, under the plain Python of any Spark from 3.5 to 4.3, and says what they failed with.

    python failures.py serve     one JSON request a line, one JSON answer a line

A request is ``{"kind": …, "checkpoint": …, "input": …, "do": …}``: the query of a kind of ``kinds.py`` is started from a
checkpoint; ``do`` names another way to read it (:data:`WAYS`). The answer holds ``message``, as Python's
``str(exception)`` has it, and ``trace``, Java's own stack trace of all causes as a driver log shows it; both are empty
where nothing failed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kinds


def start(spark: Any, request: dict[str, Any]) -> None:
    """Start the query and wait for its end."""
    kind = kinds.KINDS[request["kind"]]
    run = kinds.Run(spark, kind, Path(request["input"]), Path(request["checkpoint"]))
    run.start(sink="rows" if kind.collects_when_going_on else "noop")


def _for_each_batch(spark: Any, request: dict[str, Any], write: Callable[[Any, int], None]) -> None:
    kind = kinds.KINDS[request["kind"]]
    frame = kind.query(spark, Path(request["input"]))
    writer = frame.writeStream.outputMode(kind.mode).option("checkpointLocation", request["checkpoint"])
    query = writer.trigger(availableNow=True).foreachBatch(write).start()
    query.awaitTermination()


def fail_in_python(spark: Any, request: dict[str, Any]) -> None:
    """Fail in the user's own function."""

    def write(frame: Any, batch: int) -> None:
        raise ValueError(f"no such customer in batch {batch}")

    _for_each_batch(spark, request, write)


def read_state_in_batch(spark: Any, request: dict[str, Any]) -> None:
    """Fail inside ``foreachBatch`` by an error of Spark."""

    def write(frame: Any, batch: int) -> None:
        read_state(spark, {**request, "batch": 4711, "checkpoint": request["other"]})

    _for_each_batch(spark, request, write)


def read_state(spark: Any, request: dict[str, Any]) -> None:
    """Read the state of a batch."""
    spark.read.format("statestore").option("batchId", request["batch"]).load(request["checkpoint"]).count()


def group_by_value(spark: Any, request: dict[str, Any]) -> None:
    """Start an aggregation with another key."""
    from pyspark.sql import functions as F

    kind = kinds.KINDS[request["kind"]]
    for key, value in {**kinds.COMMON, **kind.settings}.items():
        spark.conf.set(key, value)
    sums = kinds.files(spark, Path(request["input"])).groupBy("v").agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    writer = sums.writeStream.outputMode("update").format("noop").option("checkpointLocation", request["checkpoint"])
    writer.trigger(availableNow=True).start().awaitTermination()


def start_twice(spark: Any, request: dict[str, Any]) -> None:
    """Start a second query of the same name while the first runs."""
    kind = kinds.KINDS[request["kind"]]
    writer = kind.query(spark, Path(request["input"])).writeStream.outputMode(kind.mode).format("noop")
    writer = writer.option("checkpointLocation", request["checkpoint"]).queryName("orders")
    first = writer.start()
    try:
        first.processAllAvailable()
        writer.start().awaitTermination()
    finally:
        first.stop()


WAYS: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "start": start,
    "fail_in_python": fail_in_python,
    "read_state_in_batch": read_state_in_batch,
    "read_state": read_state,
    "group_by_value": group_by_value,
    "start_twice": start_twice,
}


def trace(error: Exception) -> str:
    """Java's stack trace, as far as there is one: in 4.x the exception has its origin, in 3.5 only texts."""
    origin = getattr(error, "_origin", None)
    if origin is None:
        return str(getattr(error, "_stackTrace", "") or getattr(error, "stackTrace", "") or "")
    lines = []
    cause, prefix = origin, ""
    while cause is not None:
        lines.append(f"{prefix}{cause.toString()}")
        frames = cause.getStackTrace()
        lines += [f"\tat {frames[i].toString()}" for i in range(len(frames))]
        cause, prefix = cause.getCause(), "Caused by: "
    return "\n".join(lines)


def serve() -> None:
    """Answer requests."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        spark = kinds.session()
        print(json.dumps({"spark": spark.version}), file=answers, flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            answer = {"message": "", "trace": ""}
            try:
                WAYS[request.get("do", "start")](spark, request)
            except Exception as e:
                answer = {"message": f"{type(e).__module__}.{type(e).__name__}: {e}", "trace": trace(e)}
            print(json.dumps(answer), file=answers, flush=True)
        spark.stop()


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    serve()
