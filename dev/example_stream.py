"""A running stream for `make airflow`: orders arrive as files, Spark counts them by customer, a repository awaits the backups.

It is declared in a `streams.yaml`, so that the page and the DAGs `ckpt_*` are about it. They stop and start it by two files:
whoever runs it ends it while one of them exists, and makes the other one then.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.storage.opening import open_location
from demo.orders import Arrivals

ROOT = Path(__file__).resolve().parents[1]
#: Seconds from one file of orders to the next.
_EVERY = 10.0
#: Seconds that the stream has to end by itself.
_TO_END = 15.0
#: Seconds before a stream that has ended by itself is started again.
_AGAIN = 10.0
_BUNDLE = "airflow.dag_processing.bundles.local.LocalDagBundle"
_DECLARATION = """\
# The stream of `make airflow`.
defaults: {{repository: {repository}}}
streams:
  orders:
    checkpoint: {checkpoint}
    sources: {{file: {{}}}}
    sinks: [foreachBatch]
    objectives: {{rpo: 2h, rto: 15m}}
    backup: {{schedule: "@hourly"}}
    retention: {{last: 10, daily: 7}}
    stop: {stop}
    start: {start}
    tags: [example]
"""
_DAGS = """\
\"\"\"The DAGs of the stream of `make airflow`.\"\"\"

from airflow_ckpt_provider.dag_factory.stream_dags import stream_dags

stream_dags({declaration!r})
"""


@dataclass(frozen=True)
class ExampleStream:
    """Where the stream is.

    :param directory: of all that belongs to it.
    """

    directory: Path

    @property
    def checkpoint(self) -> Path:
        """Its checkpoint."""
        return self.directory / "checkpoints" / "orders"

    @property
    def repository(self) -> Path:
        """The repository for its backups."""
        return self.directory / "backups"

    @property
    def declaration(self) -> Path:
        """The file that declares it."""
        return self.directory / "streams.yaml"

    @property
    def to_stop(self) -> Path:
        """While this file exists, the stream is to be stopped."""
        return self.directory / "stop"

    @property
    def stopped(self) -> Path:
        """While this file exists, the stream is stopped."""
        return self.directory / "stopped"

    @property
    def variables(self) -> dict[str, str]:
        """What the page reads, the folders of DAGs, and the Variables that the example DAGs fall back to, as environment."""
        bundles = {"dags-folder": {}, "declared": {"path": str(self.directory / "dags")}}
        listed = [{"name": name, "classpath": _BUNDLE, "kwargs": more} for name, more in bundles.items()]
        return {
            "AIRFLOW__CKPT__REPOSITORY": str(self.repository),
            "AIRFLOW__CKPT__STREAMS": str(self.declaration),
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(listed),
            "AIRFLOW_VAR_CKPT_CHECKPOINT": str(self.checkpoint),
            "AIRFLOW_VAR_CKPT_DIRECTORIES": str(self.checkpoint.parent),
            "AIRFLOW_VAR_CKPT_NAME": "orders",
            "AIRFLOW_VAR_CKPT_REPOSITORY": str(self.repository),
        }

    def prepare(self) -> None:
        """Make its directory, the repository, the declaration and the file of its DAGs; an earlier run is removed."""
        shutil.rmtree(self.directory, ignore_errors=True)
        for each in (
            self.checkpoint.parent,
            self.directory / "orders",
            self.directory / "tmp",
            self.directory / "dags",
        ):
            each.mkdir(parents=True)
        Repository.open_or_create(open_location(str(self.repository)))
        to_stop, stopped = shlex.quote(str(self.to_stop)), shlex.quote(str(self.stopped))
        declaration = _DECLARATION.format(
            # A text of JSON is one of YAML too, whatever is in the path.
            repository=json.dumps(str(self.repository)),
            checkpoint=json.dumps(str(self.checkpoint)),
            stop=json.dumps(f"touch {to_stop}; until [ -e {stopped} ]; do sleep 0.2; done"),
            start=json.dumps(f"rm -f {to_stop}; while [ -e {stopped} ]; do sleep 0.2; done"),
        )
        self.declaration.write_text(declaration)
        (self.directory / "dags" / "declared.py").write_text(_DAGS.format(declaration=str(self.declaration)))


class Running(threading.Thread):
    """Runs the stream for as long as it is not to be stopped.

    :param stream: where it is.
    :param command: runs it.
    """

    def __init__(self, stream: ExampleStream, command: Sequence[str]) -> None:
        super().__init__(name="stream", daemon=True)
        self._stream = stream
        self._command = command
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Start and stop it as the files say; one that has ended by itself is started again."""
        start_at = 0.0
        while not self._over.wait(0.1):
            is_running = self._process is not None and self._process.poll() is None
            if self._stream.to_stop.exists():
                self._end()
                self._stream.stopped.touch()
                start_at = 0.0
            elif not is_running and time.monotonic() >= start_at:
                self._end()  # what is left of it
                self._start()
                self._stream.stopped.unlink(missing_ok=True)
                start_at = time.monotonic() + _AGAIN
        self._end()

    def end(self) -> None:
        """Stop it, and start it no more."""
        self._over.set()
        self.join()

    def _start(self) -> None:
        with (self._stream.directory / "stream.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(self._stream.directory / "tmp")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _end(self) -> None:
        """End the process and what it has started: Spark's Java writes the checkpoint."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_TO_END)
        end = time.monotonic() + _TO_END
        with contextlib.suppress(ProcessLookupError):
            # Where nobody collects ended processes, the group remains: then there is nothing more to wait for.
            while time.monotonic() < end:
                os.killpg(process.pid, signal.SIGKILL)
                process.poll()
                time.sleep(0.05)


@contextlib.contextmanager
def running_stream(directory: Path) -> Iterator[ExampleStream]:
    """Run the stream, from its first batch, until the block is left.

    :param directory: its place; what was there of an earlier run is removed.
    """
    stream = ExampleStream(directory)
    stream.prepare()
    orders = directory / "orders"
    arrivals = Arrivals(orders, files=10_000_000, every=_EVERY)
    arrivals.start()
    command = [sys.executable, "-m", "demo.stream", orders, stream.checkpoint, directory / "table"]
    running = Running(stream, list(map(str, command)))
    running.start()
    try:
        yield stream
    finally:
        arrivals.end()
        running.end()
