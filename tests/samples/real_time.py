"""Runs a query in real-time mode, under the plain Python of Spark 4.1 or newer.

    python real_time.py serve     one JSON request a line, one JSON answer a line

    {"do": "start", "name": "a", "checkpoint": …, "out": …}
    {"do": "wait", "name": "a"}   waits for its end
    {"do": "stop", "name": "a"}
    {"do": "add", "rows": […]}    gives it rows to read
    {"do": "source", "name": "a", "format": …, "checkpoint": …, "out": …}   reads another source, until it fails

The rows are lines of the file ``out``, as soon as they are given: also those of a batch that is not committed later.
Real-time mode reads Kafka, and a source in memory that is in Spark's own jar. Here it reads the latter, which keeps all rows that
it was given, for each start in this process. Each answer holds ``message``, as Python's ``str(exception)`` has it, and ``trace``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import failures
import kinds

#: How long a batch of real-time mode lasts. Spark asks for five seconds at least, unless it is told otherwise.
BATCH = "2 seconds"
_SETTINGS = {
    "spark.sql.streaming.realTimeMode.minBatchDuration": "1000",
    "spark.sql.streaming.minBatchesToRetain": "100",
}
_SOURCE = "org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream"


class RealTime:
    """The source, and the queries that read it.

    :param spark: the session.
    """

    def __init__(self, spark: Any) -> None:
        self._spark, self._jvm = spark, spark._jvm
        self._queries: dict[str, Any] = {}
        self._source = getattr(self._jvm, _SOURCE).apply(
            spark._jsparkSession, 2, self._jvm.org.apache.spark.sql.Encoders.STRING()
        )

    def serve(self, request: dict[str, Any]) -> None:
        """Carry a request out."""
        do = request["do"]
        if do == "start":
            from pyspark.sql import DataFrame

            self._start(request, DataFrame(self._source.toDF(), self._spark))
        elif do == "source":
            self._start(request, self._spark.readStream.format(request["format"]).option("rowsPerBatch", 1).load())
            self._queries[request["name"]].awaitTermination()
        elif do == "add":
            self._source.addData(self._jvm.PythonUtils.toSeq(request["rows"]))
        elif do == "stop":
            self._queries[request["name"]].stop()
        else:
            self._queries[request["name"]].awaitTermination()

    def _start(self, request: dict[str, Any], frame: Any) -> None:
        out = request["out"]

        def write(row: Any) -> None:
            with open(out, "a") as lines:
                lines.write(f"{row[0]}\n")

        writer = frame.writeStream.outputMode("update").foreach(write)
        writer = writer.option("checkpointLocation", request["checkpoint"])
        # PySpark 4.1 has no word for it.
        trigger = getattr(self._jvm, "org.apache.spark.sql.streaming.Trigger").RealTime(BATCH)
        writer._jwrite = writer._jwrite.trigger(trigger)
        self._queries[request["name"]] = writer.start()


def serve() -> None:
    """Answer requests."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        spark = kinds.session(conf=_SETTINGS)
        print(json.dumps({"spark": spark.version}), file=answers, flush=True)
        real_time = RealTime(spark)
        for line in sys.stdin:
            answer = {"message": "", "trace": ""}
            try:
                real_time.serve(json.loads(line))
            except Exception as e:
                answer = {"message": f"{type(e).__module__}.{type(e).__name__}: {e}", "trace": failures.trace(e)}
            print(json.dumps(answer), file=answers, flush=True)
        spark.stop()


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    serve()
