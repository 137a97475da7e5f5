"""A cluster of two workers on this machine, and a driver that takes backups with it: four processes of their own.

Run as a program it is the driver: it reads applications and their arguments as lines of JSON, and answers with exit codes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MASTER = "local-cluster[2,1,1024]"


class SparkCluster:
    """The tests' end of it.

    :param directory: an empty directory for all that Spark writes.
    :param conf: settings of Spark besides.
    """

    def __init__(self, directory: Path, conf: Mapping[str, str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "spark.log"
        settings = {
            "spark.ui.enabled": "false",
            "spark.local.dir": str(directory / "local"),
            "spark.executor.memory": "1g",
            **(conf or {}),
        }
        environment = os.environ | {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(Path.cwd()),
            "SPARK_HOME": str(_home(directory / "home")),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.spark_cluster", json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,
            )
        assert self.answer() == "ready"

    def run(self, *arguments: object, application: str = "copy_closure") -> int:
        """Have it take a backup, or run another application; return the exit code."""
        self.begin(*arguments, application=application)
        code: int = self.answer()
        return code

    def begin(self, *arguments: object, application: str = "copy_closure") -> None:
        """Have it begin a backup, or another application.

        :param application: its module in ``jobs/``.
        """
        assert self._process.stdin
        self._process.stdin.write(json.dumps([application, *(str(argument) for argument in arguments)]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Wait for what comes of it."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"Spark is gone:\n{self.log.read_text()[-3000:]}"
        return json.loads(line)

    def executors(self) -> list[int]:
        """Processes of executors."""
        found = []
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                mine = os.getpgid(int(process.name)) == self._process.pid
                if mine and b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
        return sorted(found)

    def kill(self) -> None:
        """``kill -9`` of all of it, executors' Python workers too, which outlive these for a moment."""
        while members := self._members():
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
        self._process.wait()

    def _members(self) -> list[int]:
        """Processes of its session that run still."""
        found = []
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
                if os.getsid(int(process.name)) == self._process.pid and state not in "ZX":
                    found.append(int(process.name))
        return found


def _home(place: Path) -> Path:
    """Spark's own directory by links: workers of a local cluster write into theirs, which is not to be the installed one."""
    import pyspark

    place.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        (place / path.name).symlink_to(path)
    return place


def main() -> None:
    """Be the driver."""
    from pyspark.sql import SparkSession

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed
    builder = SparkSession.builder.master(MASTER).appName("cluster")
    for key, value in json.loads(sys.argv[1]).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    print(json.dumps("ready"), file=answers)
    for line in sys.stdin:
        application, *arguments = json.loads(line)
        job = importlib.import_module(f"airflow_ckpt_provider.jobs.{application}")
        print(json.dumps(job.main(arguments)), file=answers)
    spark.stop()


if __name__ == "__main__":
    main()
