"""A Spark that runs, describes and rehearses queries on request, one JSON line for each.

python -m tests.support.upgrades.worker
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.jobs.build_function import load_build, session_of
from airflow_ckpt_provider.jobs.describe_query import describe
from airflow_ckpt_provider.jobs.rehearsal import Request, rehearse
from airflow_ckpt_provider.spark.progress_lines import ProgressLines
from airflow_ckpt_provider.spark.stopping import run_until_stopped, stop_after_batch
from tests.support.streams.session import start_session
from tests.support.streams.spark_host import coordinates


def stream(
    spark: SparkSession, build: str, conf: dict[str, str], checkpoint: str, stop: str, progress: str, every: str
) -> dict[str, Any]:
    """Run a query as an application does that can be stopped by a file."""
    # Listeners are those of a session.
    session = session_of(spark, conf)
    lines, ends = ProgressLines(progress), _ends(progress)
    session.streams.addListener(lines)
    writer = load_build(build)(session).writeStream.format("noop")
    query = writer.option("checkpointLocation", checkpoint).trigger(processingTime=every).start()
    try:
        request = run_until_stopped(query, stop, poll_interval=0.2)
        return {"stopped": request and request.reason, "active": query.isActive}
    finally:
        query.stop()
        # Spark informs its listeners a little later.
        deadline = time.monotonic() + 30
        while _ends(progress) == ends and time.monotonic() < deadline:
            time.sleep(0.05)
        session.streams.removeListener(lines)


def _ends(progress: str) -> int:
    return Path(progress).read_text().count('"terminated"') if Path(progress).exists() else 0


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spark = start_session(packages=coordinates("spark-jars.txt"))
    print(json.dumps({"spark": spark.version}), file=answers, flush=True)
    running: dict[str, StreamingQuery] = {}
    for line in sys.stdin:
        request = json.loads(line)
        do = request.pop("do")
        answer: dict[str, Any]
        try:
            if do == "run":
                frame = load_build(request["build"])(session_of(spark, request["conf"]))
                writer = frame.writeStream.outputMode(request["output_mode"]).trigger(availableNow=True)
                writer = writer.option("checkpointLocation", request["checkpoint"])
                out = request.get("out")
                (writer.format("delta").start(out) if out else writer.format("noop").start()).awaitTermination()
                answer = {}
            elif do == "begin":
                frame = load_build(request["build"])(session_of(spark, request["conf"]))
                writer = frame.writeStream.format("delta").trigger(processingTime="0 seconds")
                writer = writer.option("checkpointLocation", request["checkpoint"])
                running[request["checkpoint"]] = writer.start(request["out"])
                answer = {}
            elif do == "end":
                stop_after_batch(running.pop(request["checkpoint"]))
                answer = {}
            elif do == "stream":
                answer = stream(spark, **request)
            elif do == "describe":
                session = session_of(spark, request.pop("conf"))
                build = load_build(request["build"])
                answer = describe(session, build, given=request.pop("build"), **request).to_json()
            else:
                answer = rehearse(Request(**request), spark).to_json()
        except CkptError as e:
            answer = {"refused": str(e)}
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {e}"[:3000]}
        print(json.dumps(answer), file=answers, flush=True)
    # Streams of Python workers keep a session from ending in time.
    os._exit(0)


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    main()
