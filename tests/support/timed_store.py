"""A store whose files have the times that a test gives them: a stream that ran at other hours than the test."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import Listing, Store, StoredFile
from tests.support.checkpoints import batch_metadata, commit_log, compact, metadata, offsets_log

#: The hour at which the streams of these tests begin; batch N is logged N minutes later and takes ten seconds.
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def at(minutes: float) -> datetime:
    """A moment of these tests."""
    return NOON + timedelta(minutes=minutes)


class TimedStore(Store):
    """Files in a dictionary, with the times they were given."""

    def __init__(self, *, tells_times: bool = True) -> None:
        self.files: dict[str, tuple[bytes, datetime]] = {}
        self.tells_times = tells_times
        self.now = NOON

    @property
    def protocol(self) -> str:
        return "memory"

    def list(self, path: str) -> Listing:
        prefix = path.rstrip("/") + "/"
        below = [name for name in self.files if name.startswith(prefix)]
        directories = {name[len(prefix) :].partition("/")[0] for name in below if "/" in name[len(prefix) :]}
        return Listing(
            tuple(self._file(name) for name in below if "/" not in name[len(prefix) :]), tuple(sorted(directories))
        )

    def walk(self, path: str) -> tuple[StoredFile, ...]:
        return tuple(self._file(name) for name in self.files if name.startswith(path.rstrip("/") + "/"))

    def read(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][0]

    def create(self, path: str, data: bytes) -> None:
        raise NotImplementedError

    def replace(self, path: str, data: bytes) -> None:
        self.files[path] = (data, self.now)

    def delete(self, path: str) -> None:
        self.files.pop(path, None)

    def remove_empty_directories(self, path: str) -> None:
        raise NotImplementedError

    def copy(self, source: str, target: str, size: int) -> None:
        raise NotImplementedError

    def _file(self, name: str) -> StoredFile:
        data, modified = self.files[name]
        return StoredFile(name, len(data), modified=modified if self.tells_times else None)


class Stream:
    """A stream that does what the test says, at the time it says."""

    def __init__(self, *, tells_times: bool = True) -> None:
        self.store = TimedStore(tells_times=tells_times)
        self.location = Location(self.store, "/ck/orders")

    def put(self, path: str, data: bytes, when: datetime) -> None:
        self.store.now = when
        self.location.replace(path, data)

    def start(self, query_id: str = "one") -> Stream:
        self.put("metadata", metadata(query_id), NOON)
        return self

    def log(self, batch: int, when: datetime | None = None) -> Stream:
        entry = offsets_log(compact({"orders": {"0": 100 * (batch + 1)}}), metadata=batch_metadata(batch))
        self.put(f"offsets/{batch}", entry, when or at(batch))
        return self

    def commit(self, batch: int, when: datetime | None = None) -> Stream:
        self.put(f"commits/{batch}", commit_log(), when or at(batch) + timedelta(seconds=10))
        return self

    def ran(self, batches: Iterable[int]) -> Stream:
        """Log and commit batches."""
        for batch in batches:
            self.log(batch).commit(batch)
        return self

    def drop(self, *paths: str) -> Stream:
        for path in paths:
            self.location.delete(path)
        return self
