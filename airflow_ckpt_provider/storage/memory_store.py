"""``memory://``, for tests and notebooks."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

from airflow_ckpt_provider.storage.fsspec_store import FsspecStore

#: fsspec keeps one memory for the whole process, so one lock guards it.
_CREATING = threading.Lock()


class MemoryStore(FsspecStore):
    """fsspec's memory filesystem. By itself it creates a file in two steps, a check and a write."""

    creates_if_absent = True

    def create(self, path: str, data: bytes) -> None:
        """Write a new file."""
        with _CREATING:
            super().create(path, data)

    def _identity(self, entry: dict[str, Any]) -> str | None:
        """Hash the content: it is at hand, and the filesystem's clock is too coarse to distinguish two versions."""
        return self._checksum(entry)

    def _checksum(self, entry: dict[str, Any]) -> str | None:
        file = self.fs.store.get(entry["name"])
        return f"sha256:{hashlib.sha256(file.getbuffer()).hexdigest()}" if file is not None else None
