"""Stores with S3's Object Lock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import ClassVar

import pytest

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location


class Locks(LocalStore):
    """A store with Object Lock, as far as who asks what is concerned."""

    locked: ClassVar[dict[str, datetime]] = {}
    fails: ClassVar[bool] = False

    def why_no_locks(self, path: str) -> None:
        if self.fails:
            raise StorageError("access denied")

    def lock(self, path: str, until: datetime) -> None:
        self.locked[path.partition("/backups/")[2]] = until

    def locked_until(self, path: str) -> datetime | None:
        return self.locked.get(path.partition("/backups/")[2])


@pytest.fixture
def lockable(tmp_path: Path) -> Iterator[Location]:
    yield Location(Locks(), str(tmp_path))
    Locks.locked.clear()
    Locks.fails = False
