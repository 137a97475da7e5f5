"""Take a step in a process of its own, and say how much memory it needed: ``benchmarks.growth`` and ``benchmarks.memory``."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.fetching import HOME
from benchmarks.steps import Step
from benchmarks.tools import ALL
from tests.support.s3_server import S3Server


def alone(port: int, tool: str, step: Step, source: str, target: str, back: str) -> dict[str, Any]:
    """Take a step in a process of its own.

    :param port: of the server, or of a gate before it.
    :param tool: name of one that runs in process.
    :return: ``seconds``, without the start of Python; ``before`` and ``peak``: the most memory, in bytes, until the step
        began and until it ended.
    """
    return run("benchmarks.alone", str(port), tool, str(step), source, target, back)


def run(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module of this project that prints JSON."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def peak() -> int:
    """The most memory that this process has had so far, in bytes."""
    # Not getrusage: its high-water mark is inherited from the process that started this one.
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024


def main() -> None:
    """The process."""
    port, name, step, source, target, back = sys.argv[1:]
    kind = next(kind for kind in ALL if kind.name == name)
    with tempfile.TemporaryDirectory() as scratch:
        tool, before, began = kind(S3Server(int(port), 0), Path(scratch)), peak(), time.monotonic()
        tool.take(Step(step), source, target, back)
        seconds = time.monotonic() - began
    print(json.dumps({"seconds": round(seconds, 4), "before": before, "peak": peak()}))


if __name__ == "__main__":
    main()
