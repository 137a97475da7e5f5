"""A stream that continues while its checkpoint is backed up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from airflow_ckpt_provider.backup.create import BackupResult, create_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import repository
from tests.support.checkpoints import Files, plant, rocksdb_aggregation
from tests.support.watched_stores import watched


def moving(place: Location, before: Callable[[str, str], None], **options: Any) -> BackupResult:
    """Back up a checkpoint that is changed from outside before requests to it."""
    location, _ = watched(place / "orders", before)
    return create_backup(Checkpoint.at(location), repository(place), **options)


class Spark:
    """A stream and its maintenance, as seen from a reader: moves on before requests to its checkpoint.

    :param newest: newest batch at the beginning.
    :param keep: how many batches are kept; state before the newest snapshot that serves them is deleted.
    """

    def __init__(self, place: Location, newest: int, *, keep: int = 2) -> None:
        self.location = place / "orders"
        self.newest = newest
        self.keep = keep
        self.lock = threading.Lock()
        plant(self.location, self.files())

    def files(self) -> Files:
        """The checkpoint as it would be if nothing ever failed: a snapshot every third version."""
        oldest = max(0, self.newest + 1 - self.keep)
        whole = all_of(self.newest)
        base = max((v for v in range(3, oldest + 2, 3)), default=0)
        return {path: data for path, data in whole.items() if not self._purged(path, oldest, base)}

    def _purged(self, path: str, oldest: int, base: int) -> bool:
        directory, _, name = path.rpartition("/")
        if directory in ("offsets", "commits"):
            return int(name) < oldest - 1
        number = name.partition(".")[0].partition("-")[0]
        return directory.startswith("state/0/") and number.isdigit() and int(number) < base

    def go_on(self, batches: int = 1) -> None:
        with self.lock:
            before = self.files()
            self.newest += batches
            after = self.files()
            plant(self.location, dict(after.items() - before.items()))
            for path in before.keys() - after.keys():
                self.location.delete(path)


def all_of(newest: int) -> Files:
    return rocksdb_aggregation(newest, zips=range(3, newest + 2, 3))
