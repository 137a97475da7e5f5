"""The tests' end of :mod:`tests.support.upgrades.worker`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

QUERIES = "tests.support.upgrades.queries:"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
HDFS = {_PROVIDER: f"{_PROVIDERS}HDFSBackedStateStoreProvider"}
ROCKSDB = {
    _PROVIDER: f"{_PROVIDERS}RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


class SparkWorker:
    """A process with one Spark that does one thing at a time.

    :param log: where Spark's own output goes.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        environment = os.environ | {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(Path.cwd()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(log.parent / "spark-local"),
        }
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.upgrades.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,
            )
        assert self.answer()["spark"] == "4.0.0"

    def ask(self, **request: Any) -> dict[str, Any]:
        """Have it do something, and wait for what comes of it."""
        self.tell(**request)
        return self.answer()

    def tell(self, **request: Any) -> None:
        """Have it do something."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """What came of it."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"Spark is gone:\n{self._log.read_text()[-3000:]}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, query: str, *, checkpoint: Path, conf: dict[str, str], mode: str = "append", out: str = "") -> None:
        """Run a query until it has read all there is."""
        request = {
            "build": QUERIES + query,
            "checkpoint": str(checkpoint),
            "conf": conf,
            "output_mode": mode,
            "out": out,
        }
        answer = self.ask(do="run", **request)
        assert answer == {}, answer

    def describe(self, query: str, *, scratch: Path, conf: dict[str, str], mode: str = "append") -> dict[str, Any]:
        """Describe a query."""
        request = {"build": QUERIES + query, "scratch": str(scratch), "conf": conf, "output_mode": mode}
        return self.ask(do="describe", **request)

    def kill(self) -> None:
        """``kill -9``: the process, the JVM and its workers."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
