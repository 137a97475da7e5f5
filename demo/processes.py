"""The processes that the demo starts, each in a group of its own, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from demo.interruptions import Interruptions

_CHECKOUT = Path(__file__).parents[1]


class ProcessFailedError(Exception):
    """A process of the demo ended in another way than it should."""


@dataclass
class Process:
    """A module of this checkout running as a process of its own.

    :param name: for people; its output is in ``<name>.log``.
    :param popen: the process.
    :param log: its output.
    """

    name: str
    popen: subprocess.Popen[str]
    log: Path

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self.popen.poll() is None

    def kill(self) -> None:
        """``kill -9`` it and what it has started (Spark's Java), by the id of its own process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()
            # Java is no child of ours, so nothing else shows that it is gone too.
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                os.killpg(self.popen.pid, 0)
                time.sleep(0.01)

    def wait(self, *, at_most: float) -> int:
        """Wait for its end and return the exit code.

        :param at_most: seconds.
        :raises ProcessFailedError: it has not ended by then.
        """
        try:
            return self.popen.wait(at_most)
        except subprocess.TimeoutExpired as e:
            raise ProcessFailedError(f"{self.name} has not ended after {at_most:g} s; see {self.log}") from e


@dataclass
class Processes:
    """All processes of a demo.

    :param logs: directory for their output.
    :param temporary: directory for their temporary files.
    :param interruptions: held while a process is started, so that none is forgotten.
    """

    logs: Path
    temporary: Path
    interruptions: Interruptions
    started: list[Process] = field(default_factory=list)

    def start(
        self, name: str, module: str, *arguments: object, env: Mapping[str, str] | None = None, talks: bool = False
    ) -> Process:
        """Start a module with this Python.

        :param name: for people and for the log.
        :param module: what ``python -m`` runs.
        :param arguments: its command line.
        :param env: more environment.
        :param talks: its standard input and output are pipes; else both streams go to the log.
        """
        log = self.logs / f"{name}.log"
        with log.open("w") as out, self.interruptions.held():
            popen = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, arguments)],
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else out,
                stderr=out,
                text=True,
                cwd=_CHECKOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": sys.executable,
                    "PYSPARK_DRIVER_PYTHON": sys.executable,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "TMPDIR": str(self.temporary),
                    **(env or {}),
                },
            )
            process = Process(name, popen, log)
            self.started.append(process)
        return process

    def end(self) -> None:
        """End whatever still runs."""
        for process in self.started:
            if process.is_running:
                process.kill()


def wait_until(condition: Callable[[], object], *, at_most: float, what: str, process: Process | None = None) -> None:
    """Wait for a condition.

    :param condition: called until it returns something true.
    :param at_most: seconds.
    :param what: is waited for, for the error.
    :param process: must stay alive meanwhile.
    :raises ProcessFailedError: the time is over, or the process ended.
    """
    deadline = time.monotonic() + at_most
    while not condition():
        if process and not process.is_running:
            raise ProcessFailedError(f"{process.name} ended by itself, waiting for {what}; see {process.log}")
        if time.monotonic() > deadline:
            raise ProcessFailedError(f"waited {at_most:g} s in vain for {what}")
        time.sleep(0.02)
