"""The tests' end of :mod:`tests.support.streams.host`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

_START_WITHIN = 120.0


def coordinates(listing: str) -> tuple[str, ...]:
    """The Maven coordinates that `make jars` fetches.

    :param listing: a file in ``dev/``.
    """
    lines = (line.partition("#")[0].strip() for line in Path("dev", listing).read_text().splitlines())
    return tuple(line for line in lines if line)


@dataclass
class Run:
    """One run of a query."""

    host: SparkHost
    name: str
    kind: str
    source: Path
    checkpoint: str
    out: Path
    ended: threading.Event = field(default_factory=threading.Event)
    error: str | None = None
    seconds: float = 0.0
    rows: list[list[Any]] = field(default_factory=list)

    def wait(self, timeout: float = 120.0) -> Run:
        """Wait until it has ended; failed or not."""
        if not self.ended.wait(timeout):
            raise TimeoutError(f"{self.kind} at {self.checkpoint} still runs after {timeout:g} s")
        return self

    def finished(self, timeout: float = 120.0) -> Run:
        """Wait until it has ended, without an error."""
        self.wait(timeout)
        if self.error:
            raise AssertionError(f"{self.kind} at {self.checkpoint} failed: {self.error}")
        return self

    @property
    def error_text(self) -> str:
        """What Spark said; there has to be something."""
        assert self.error, f"{self.kind} at {self.checkpoint} ended without an error"
        return self.error

    def drain(self) -> None:
        """Have it stop once it has read all there is."""
        self.host.tell(do="drain", run=self.name)

    def stop(self) -> None:
        """Have it stop."""
        self.host.tell(do="stop", run=self.name)


class SparkHost:
    """A process that runs test streams.

    :param log: where Spark's own output goes.
    :param packages: Maven coordinates of what Spark needs.
    :param conf: settings of Spark.
    """

    def __init__(self, log: Path, *, packages: tuple[str, ...] = (), conf: Mapping[str, str] | None = None) -> None:
        self.log = log
        self._runs: dict[str, Run] = {}
        self._lock = threading.Lock()
        self._ready: Queue[bool] = Queue()
        command = [sys.executable, "-m", "tests.support.streams.host", "--conf", json.dumps(dict(conf or {}))]
        command += [argument for package in packages for argument in ("--package", package)]
        environment = os.environ | {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(Path.cwd()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # One directory for all that Spark leaves when it is killed.
            "SPARK_LOCAL_DIRS": str(log.parent / "spark-local"),
        }
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,  # Python, the JVM and its workers: one group, killed as one
            )
        threading.Thread(target=self._listen, daemon=True).start()
        if not self._ready.get(timeout=_START_WITHIN):
            raise AssertionError(f"Spark did not start:\n{log.read_text()[-3000:]}")

    def start(
        self,
        kind: str,
        *,
        source: Path,
        checkpoint: Path | str,
        out: Path,
        available_now: bool = False,
        faulty: bool = False,
    ) -> Run:
        """Start a query; see :func:`tests.support.streams.run.start_query`."""
        run = Run(self, uuid.uuid4().hex, kind, source, str(checkpoint), out)
        self._runs[run.name] = run
        self.tell(
            do="start",
            run=run.name,
            kind=kind,
            input=str(source),
            checkpoint=run.checkpoint,
            out=str(out),
            available_now=available_now,
            faulty=faulty,
        )
        return run

    def application(self, build: str, *, checkpoint: Path, out: Path, **settings: Any) -> Run:
        """Start an application; see :func:`tests.support.streams.application.run_application`."""
        run = Run(self, uuid.uuid4().hex, build, Path(), str(checkpoint), out)
        self._runs[run.name] = run
        self.tell(do="application", run=run.name, build=build, checkpoint=run.checkpoint, table=str(out), **settings)
        return run

    def describe(self, build: str, **settings: Any) -> Run:
        """Describe a query; see :func:`tests.support.streams.application.write_description`."""
        return self._job("describe", build=build, **settings)

    def rehearse(self, to: Path, **request: Any) -> Run:
        """Rehearse; see :func:`tests.support.streams.application.write_rehearsal`."""
        return self._job("rehearse", to=str(to), request=request)

    def _job(self, do: str, **settings: Any) -> Run:
        run = Run(self, uuid.uuid4().hex, do, Path(), "", Path())
        self._runs[run.name] = run
        self.tell(do=do, run=run.name, **settings)
        return run

    def sql(self, *statements: str, timeout: float = 120.0) -> list[list[Any]]:
        """Run statements one after the other and return the rows of the last; also shows Delta to forget what it knows."""
        run = Run(self, uuid.uuid4().hex, "sql", Path(), "", Path())
        self._runs[run.name] = run
        self.tell(do="sql", run=run.name, statements=list(statements))
        return run.finished(timeout).rows

    def tell(self, **request: Any) -> None:
        """Send a request."""
        assert self.process.stdin
        with self._lock:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()

    def kill(self) -> None:
        """``kill -9``: the process, the JVM and its workers, in the middle of whatever they do."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _listen(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            answer = json.loads(line)
            if "ready" in answer:
                self._ready.put(True)
                continue
            run = self._runs[answer["run"]]
            run.error, run.seconds = answer["error"], answer["seconds"]
            run.rows = answer.get("rows", [])
            run.ended.set()
        self._ready.put(False)
        for run in list(self._runs.values()):
            if not run.ended.is_set():
                run.error = "the process is gone"
                run.ended.set()
