"""A Spark that continues from checkpoints on request: ``kinds.py serve`` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dev.class_archive import environment


class SampleService:
    """One JVM that runs one query after the other.

    :param python: a Python with pyspark.
    :param log: where Spark's own output goes.
    """

    #: What runs in it, next to this file.
    script = "kinds.py"

    def __init__(self, python: Path, log: Path) -> None:
        self._log = log
        # The archive of classes is of the Spark that is installed here.
        shared = environment() if python == Path(sys.executable) else {}
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, Path(__file__).with_name(self.script), "serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=log.parent,
                env={**os.environ, **shared, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)},
            )
        try:
            #: What it says of itself when it is ready.
            self.ready = self._answer()
            self.spark_version = self.ready["spark"]
        except BaseException:
            self.close()
            raise

    def go_on(self, kind: str, checkpoint: Path, inputs: Path) -> dict[str, Any]:
        """Run a kind's query from a checkpoint, over the input in a directory; see ``kinds.go_on``.

        :return: its rows and batches, or ``{"error": …}`` with Spark's message.
        """
        return self.ask({"kind": kind, "checkpoint": str(checkpoint), "input": str(inputs)})

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer to it."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Spark is gone (exit status {self._process.wait()}):\n{self._log.read_text()[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Stop it."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
