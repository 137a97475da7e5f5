"""Where the demo's stream lies, what is deployed there, and whether its driver runs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """A directory with a stream.

    :param root: the directory.
    """

    root: Path

    @property
    def orders(self) -> Path:
        """What it reads."""
        return self.root / "orders"

    @property
    def checkpoint(self) -> Path:
        """Its checkpoint."""
        return self.root / "checkpoints" / "orders"

    @property
    def table(self) -> Path:
        """The Delta table."""
        return self.root / "table"

    @property
    def stop(self) -> Path:
        """The stop marker."""
        return self.root / "orders.stop"

    @property
    def progress(self) -> Path:
        """Its progress, as JSON lines."""
        return self.root / "orders.jsonl"

    @property
    def log(self) -> Path:
        """What its newest driver wrote."""
        return self.root / "driver.log"

    @property
    def descriptions(self) -> Path:
        """Descriptions of the versions, one file each."""
        return self.root / "descriptions"

    # What is deployed: the versions, one a line, the newest last.

    @property
    def deployed(self) -> list[str]:
        """Versions in the order of their deployment."""
        return self._releases.read_text().split() if self._releases.exists() else []

    def set_deployed(self, versions: list[str]) -> None:
        """Say what is deployed."""
        unfinished = self._releases.with_suffix(".new")
        unfinished.write_text("".join(f"{version}\n" for version in versions))
        unfinished.replace(self._releases)

    @property
    def _releases(self) -> Path:
        return self.root / "releases"

    # The driver: it holds a lock as long as it runs, which no crash leaves behind.

    @property
    def _lock(self) -> Path:
        return self.root / "driver.lock"

    @contextmanager
    def driver_runs(self) -> Iterator[None]:
        """Be the driver.

        :raises BlockingIOError: another one runs.
        """
        with self._lock.open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    @property
    def driver(self) -> int | None:
        """Process id of the driver, and of its group; ``None``: none runs."""
        if not self._lock.exists():
            return None
        with self._lock.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read() or 0) or None
            return None
