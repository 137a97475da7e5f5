"""Runs queries until they are asked to stop, under the plain Python of any Spark from 3.5 to 4.3.

    python running.py serve     one JSON request a line, one JSON answer a line

    {"do": "listen", "lines": …}  writes the progress lines of all queries to a file
    {"do": "start", "name": "a", "kind": …, "checkpoint": …, "input": …, "out": …, "trigger": {…}, "conf": {…}}
    {"do": "wait", "name": "a"}   waits for its end
    {"do": "stop", "name": "a"}

``kind`` is one of ``kinds.py``. The rows of batch N are in ``out/b=N``, as JSON lists, sorted; continuous and asynchronous ones
keep no rows. Each answer holds ``message``, as Python's ``str(exception)`` has it, and ``trace``, the causes as Java names them;
both are empty if nothing failed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import failures
import kinds


def listen(spark: Any, request: dict[str, Any]) -> None:
    """Write progress lines, by this project's own listener: it needs no more than Python and pyspark."""
    sys.path.append(str(Path(__file__).parents[2]))
    from airflow_ckpt_provider.spark.progress_lines import ProgressLines

    spark.streams.addListener(ProgressLines(request["lines"]))


def start(spark: Any, request: dict[str, Any]) -> Any:
    """Start a query."""
    kind = kinds.KINDS[request["kind"]]
    out = Path(request["out"])
    out.mkdir(parents=True, exist_ok=True)

    def write(frame: Any, batch: int) -> None:
        rows = sorted(json.dumps(list(row), default=str) for row in frame.collect())
        whole = out / f".b={batch}.tmp"
        whole.write_text("".join(f"{row}\n" for row in rows))
        whole.replace(out / f"b={batch}")

    settings = {**kinds.COMMON, **kind.settings, **request["conf"]}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        writer = kind.query(spark, Path(request["input"])).writeStream.outputMode(kind.mode).options(**kind.options)
        writer = writer.option("checkpointLocation", request["checkpoint"]).trigger(
            **(kind.trigger or request["trigger"])
        )
        # Asynchronous and continuous queries allow no ``foreachBatch``.
        return (writer.foreachBatch(write) if kind.collects_when_going_on else writer.format("noop")).start()
    finally:
        for key in settings:
            spark.conf.unset(key)


def serve() -> None:
    """Answer requests."""
    queries: dict[str, Any] = {}
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        spark = kinds.session(conf={"spark.ui.enabled": "true", "spark.ui.port": "0"})
        context = spark.sparkContext
        ready = {"spark": spark.version, "application": context.applicationId, "ui": context.uiWebUrl}
        print(json.dumps(ready), file=answers, flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            name, answer = request.get("name"), {"message": "", "trace": ""}
            try:
                if request["do"] == "listen":
                    listen(spark, request)
                elif request["do"] == "start":
                    queries[name] = start(spark, request)
                elif request["do"] == "stop":
                    queries[name].stop()
                else:
                    queries[name].awaitTermination()
            except Exception as e:
                answer = {"message": f"{type(e).__module__}.{type(e).__name__}: {e}", "trace": failures.trace(e)}
            print(json.dumps(answer), file=answers, flush=True)
        spark.stop()


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    serve()
