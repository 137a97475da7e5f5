"""A process with one Spark that runs many test streams at once, told what to do by JSON lines on its standard input.

    {"do": "start", "run": "r1", "kind": …, "input": …, "checkpoint": …, "out": …, "available_now": true}
    {"do": "drain", "run": "r1"}       stop it once it has read all there is
    {"do": "stop", "run": "r1"}
    {"do": "sql", "run": "r2", "statements": […]}   the rows of the last one come with the answer
    {"do": "application", "run": "r3", "build": "module:function", …}   a streaming application as users write it
    {"do": "describe", "run": "r4", "build": "module:function", …}   its description, into a file
    {"do": "rehearse", "run": "r5", "to": …, "request": {…}}   a rehearsal, its report into a file

For each run it answers with one line, when the query has ended: ``{"run": "r1", "error": null, "seconds": 1.2}``. Starting
Spark takes longer than running a short query, so tests that start hundreds of queries share one such process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.support.streams.application import run_application, write_description, write_rehearsal
from tests.support.streams.run import start_query
from tests.support.streams.session import start_session


class Host:
    """Runs queries, each watched by a thread."""

    def __init__(self, spark: SparkSession, answers: TextIO) -> None:
        self._spark = spark
        self._answers = answers
        self._lock = threading.Lock()
        self._queries: dict[str, StreamingQuery] = {}

    def serve(self, line: str) -> None:
        """Carry out one request."""
        request = json.loads(line)
        work = {
            "start": self._run,
            "drain": self._drain,
            "stop": self._stop,
            "sql": self._sql,
            "application": self._application,
            "describe": self._describe,
            "rehearse": self._rehearse,
        }[request.pop("do")]
        threading.Thread(target=work, args=(request,), daemon=True).start()

    def answer(self, **content: Any) -> None:
        """Write one line."""
        with self._lock:
            self._answers.write(json.dumps(content) + "\n")
            self._answers.flush()

    def _run(self, request: dict[str, Any]) -> None:
        run, began, error = request["run"], time.monotonic(), None
        try:
            query = start_query(
                self._spark,
                request["kind"],
                source=Path(request["input"]),
                checkpoint=request["checkpoint"],
                out=request["out"],
                available_now=request["available_now"],
                faulty=request.get("faulty", False),
            )
            self._queries[run] = query
            query.awaitTermination()
        except PySparkException as e:
            error = _whole(e)
        except Exception as e:
            error = f"{type(e).__name__}: {e}"
        self.answer(run=run, error=error, seconds=round(time.monotonic() - began, 3))

    def _application(self, request: dict[str, Any]) -> None:
        run = request.pop("run")
        self._work(
            run,
            lambda: run_application(self._spark, on_start=lambda query: self._queries.update({run: query}), **request),
        )

    def _describe(self, request: dict[str, Any]) -> None:
        self._work(request.pop("run"), lambda: write_description(self._spark, **request))

    def _rehearse(self, request: dict[str, Any]) -> None:
        self._work(request.pop("run"), lambda: write_rehearsal(self._spark, **request))

    def _work(self, run: str, work: Callable[[], object]) -> None:
        began, error = time.monotonic(), None
        try:
            work()
        except PySparkException as e:
            error = _whole(e)
        except Exception as e:
            error = f"{type(e).__name__}: {e}"
        self.answer(run=run, error=error, seconds=round(time.monotonic() - began, 3))

    def _drain(self, request: dict[str, Any]) -> None:
        query = self._queries[request["run"]]
        try:
            query.processAllAvailable()
        except PySparkException:
            return  # reported by the thread that runs it
        query.stop()

    def _sql(self, request: dict[str, Any]) -> None:
        began, error, rows = time.monotonic(), None, []
        try:
            # Tables are changed from outside too, and Delta keeps what it has seen of them in memory.
            self._spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
            session = self._spark.newSession()
            for statement in request["statements"]:
                rows = [list(row) for row in session.sql(statement).collect()]
        except Exception as e:
            error = f"{type(e).__name__}: {e}"
        seconds = round(time.monotonic() - began, 3)
        self.answer(run=request["run"], error=error, seconds=seconds, rows=json.loads(json.dumps(rows, default=str)))

    def _stop(self, request: dict[str, Any]) -> None:
        # One that has not begun yet cannot be stopped.
        if query := self._queries.get(request["run"]):
            query.stop()


def _whole(error: PySparkException) -> str:
    """The message with those of its causes, which say what really happened."""
    cause = getattr(error, "_origin", None)
    messages = [str(error)]
    while cause is not None:
        messages.append(str(cause.toString()))
        cause = cause.getCause()
    return "\n".join(line for line in "\ncaused by: ".join(messages).splitlines() if not line.startswith("\tat "))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--package", action="append", default=[])
    parser.add_argument("--conf", type=json.loads, default={})
    args = parser.parse_args()
    # Spark and its Python workers may print to standard output: keep it to ourselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    host = Host(start_session(packages=tuple(args.package), conf=args.conf), answers)
    host.answer(ready=True)
    for line in sys.stdin:
        host.serve(line)
    os._exit(0)  # without waiting for what still runs


if __name__ == "__main__":
    main()
