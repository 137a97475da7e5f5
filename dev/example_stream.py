"""A running stream for `make airflow`: orders arrive as files, Spark counts them by customer, a repository awaits the backups."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.storage.opening import open_location
from demo.orders import Arrivals

ROOT = Path(__file__).resolve().parents[1]
#: Seconds from one file of orders to the next.
_EVERY = 10.0


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
    def variables(self) -> dict[str, str]:
        """What the page reads, and the Airflow Variables that the example DAGs fall back to, as environment."""
        return {
            "AIRFLOW__CKPT__REPOSITORY": str(self.repository),
            "AIRFLOW_VAR_CKPT_CHECKPOINT": str(self.checkpoint),
            "AIRFLOW_VAR_CKPT_DIRECTORIES": str(self.checkpoint.parent),
            "AIRFLOW_VAR_CKPT_NAME": "orders",
            "AIRFLOW_VAR_CKPT_REPOSITORY": str(self.repository),
        }


@contextlib.contextmanager
def running_stream(directory: Path) -> Iterator[ExampleStream]:
    """Run the stream, from its first batch, until the block is left.

    :param directory: its place; what was there of an earlier run is removed.
    """
    shutil.rmtree(directory, ignore_errors=True)
    stream, orders, temporary = ExampleStream(directory), directory / "orders", directory / "tmp"
    for each in (orders, temporary, stream.checkpoint.parent):
        each.mkdir(parents=True)
    Repository.open_or_create(open_location(str(stream.repository)))
    arrivals = Arrivals(orders, files=10_000_000, every=_EVERY)
    arrivals.start()
    command = [sys.executable, "-m", "demo.stream", orders, stream.checkpoint, directory / "table"]
    with (directory / "stream.log").open("wb") as log:
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=ROOT,
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield stream
    finally:
        arrivals.end()
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
