"""Queries of all kinds of triggers in one Spark, started and stopped by JSON lines on standard input.

    {"do": "start", "name": "a", "source": {"format": …}, "trigger": {…}, "checkpoint": …, "keep": 5}
    {"do": "stop", "name": "a"}

It answers ``{"name": "a", "active": true}`` after each start, ``false`` after each stop or end that was asked for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PROGRAM = "tests.support.resting_queries"


@dataclass
class RestingQueries:
    """The process, as a test sees it.

    :param place: a directory for all it writes.
    """

    place: Path
    application: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"PYTHONPATH": str(Path.cwd()), "SPARK_LOCAL_DIRS": str(self.place / "spark-local")}
        with (self.place / "spark.log").open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, str(self.place)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self.application = self._answer()

    @property
    def lines(self) -> Path:
        """The progress lines of all its queries."""
        return self.place / "progress.jsonl"

    def start(self, name: str, source: dict[str, Any], trigger: dict[str, Any], *, keep: int = 5) -> Path:
        """Start a query; return its checkpoint.

        :param keep: ``minBatchesToRetain``. 5: the first batches, which are slow in a new Spark, are soon removed.
        """
        checkpoint = self.place / name / "checkpoint"
        sent = {"source": source, "trigger": trigger, "checkpoint": str(checkpoint), "keep": keep}
        assert self._tell(do="start", name=name, **sent)["active"]
        return checkpoint

    def hold(self, name: str, batch: int) -> None:
        """Let this batch of a query, and each later one, last until a later one is held or the query is stopped."""
        new = self.place / f"{name}.hold.new"
        new.write_text(str(batch))
        new.rename(self.place / f"{name}.hold")

    def stop(self, name: str) -> None:
        """Stop a query."""
        (self.place / f"{name}.hold").unlink(missing_ok=True)
        assert not self._tell(do="stop", name=name)["active"]

    def end(self) -> None:
        """Have Spark end as an application does that has done its work."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)

    def kill(self) -> None:
        """``kill -9``, the JVM included."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _tell(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, (self.place / "spark.log").read_text()[-3000:]
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, answer
        return answer


def _is_held(hold: Path, batch: int) -> bool:
    try:
        return batch >= int(hold.read_text())
    except FileNotFoundError:
        return False


def main() -> None:
    place = Path(sys.argv[1])
    from pyspark.sql import DataFrame

    from airflow_ckpt_provider.spark.progress_lines import ProgressLines
    from tests.support.streams.data import SCHEMA
    from tests.support.streams.session import start_session

    (place / "events").mkdir()
    settings = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{place}/events",
        # In each batch, before it runs; else in a thread beside it, which leaves a batch out if it is late.
        "spark.sql.streaming.asyncLogPurge.enabled": "false",
    }
    spark = start_session(conf=settings)
    # On a busy machine the queries that ended first would else be forgotten before a test asks for them.
    spark.streams.addListener(ProgressLines(str(place / "progress.jsonl"), keep=10000))
    answers = sys.stdout
    context = spark.sparkContext
    print(json.dumps({"id": context.applicationId, "ui": context.uiWebUrl}), file=answers, flush=True)
    queries = {}
    for line in sys.stdin:
        request = json.loads(line)
        name = request["name"]
        try:
            if request["do"] == "stop":
                queries[name].stop()
                print(json.dumps({"name": name, "active": queries[name].isActive}), file=answers, flush=True)
                continue
            source = dict(request["source"])
            reader = spark.readStream.format(source.pop("format")).options(**source)
            reader = reader.schema(SCHEMA) if "path" in source else reader

            def write(frame: DataFrame, batch: int, hold: Path = place / f"{name}.hold") -> None:
                while _is_held(hold, batch):
                    time.sleep(0.01)

            writer = reader.load().writeStream.queryName(name).option("checkpointLocation", request["checkpoint"])
            writer = writer.trigger(**request["trigger"])
            spark.conf.set("spark.sql.streaming.minBatchesToRetain", request["keep"])
            is_continuous = "continuous" in request["trigger"]
            queries[name] = (writer.format("noop") if is_continuous else writer.foreachBatch(write)).start()
            print(json.dumps({"name": name, "active": True}), file=answers, flush=True)
        except Exception as e:
            print(json.dumps({"name": name, "error": str(e)}), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
