"""Streams on the local disk that do what a test says."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from tests.support.checkpoints import batch_metadata, commit_log, compact, metadata, offsets_log


class DiskStream:
    """A checkpoint as Spark writes it; ``age`` moves what was written into the past."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __str__(self) -> str:
        return str(self.place)

    def put(self, path: str, data: bytes, *, age: float = 0.0, now: float | None = None) -> None:
        file = self.place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        hidden = file.with_name(f".{file.name}.tmp")  # a poll in between must see neither a part of it nor another time
        hidden.write_bytes(data)
        at = (time.time() if now is None else now) - age
        os.utime(hidden, (at, at))
        hidden.replace(file)

    def start(self, query_id: str = "one") -> DiskStream:
        self.put("metadata", metadata(query_id))
        return self

    def log(self, batch: int, *, age: float = 0.0) -> DiskStream:
        entry = offsets_log(compact({"orders": {"0": 100 * (batch + 1)}}), metadata=batch_metadata(batch))
        self.put(f"offsets/{batch}", entry, age=age)
        return self

    def commit(self, batch: int, *, age: float = 0.0, now: float | None = None) -> DiskStream:
        self.put(f"commits/{batch}", commit_log(), age=age, now=now)
        return self

    def ran(self, batches: Iterable[int], *, age: float = 0.0) -> DiskStream:
        for batch in batches:
            self.log(batch, age=age).commit(batch, age=age)
        return self

    def rewind(self, newest: int) -> DiskStream:
        for log in ("offsets", "commits"):
            for file in (self.place / log).iterdir():
                if int(file.name) > newest:
                    file.unlink()
        return self
