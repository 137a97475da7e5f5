"""A query that runs, or does not, in a world with a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from airflow_ckpt_provider.change.rest import RestClock
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import batch_metadata, commit_log, compact, metadata, offsets_log
from tests.support.timed_store import TimedStore

_BEGAN = datetime(2026, 11, 1, tzinfo=UTC)
_KEPT = 100


class World:
    """A checkpoint, its query, and the time. Whoever sleeps lets the query do what it does meanwhile.

    :param suspended: how long a sleep takes in addition, by number of the sleep.
    """

    def __init__(self, suspended: dict[int, float] | None = None) -> None:
        self.store = TimedStore()
        self.location = Location(self.store, "/ck/orders")
        self.passed = 0.0
        self.awake = 0.0
        self.sleeps = 0
        self.next_batch = 0
        self._suspended = suspended or {}
        self._pending: list[tuple[float, Callable[[], object]]] = []
        self._plan: Iterator[float] = iter(())
        self._next_at = float("inf")

    @property
    def clock(self) -> RestClock:
        return RestClock(lambda: self.awake, lambda: self.passed, self.sleep, lambda: self.now)

    @property
    def now(self) -> datetime:
        return _BEGAN + timedelta(seconds=self.passed)

    def sleep(self, seconds: float) -> None:
        """Let time pass; a suspended computer's query does nothing meanwhile, and everybody else's does."""
        assert seconds >= 0
        suspended = self._suspended.get(self.sleeps, 0.0)
        self.sleeps += 1
        self.awake += seconds
        self._pass(seconds + suspended)

    def at(self, seconds: float, act: Callable[[], object]) -> World:
        """Do something so many seconds from now."""
        self._pending.append((self.passed + seconds, act))
        self._pending.sort(key=lambda each: each[0])
        return self

    def put(self, path: str, data: bytes = b"x") -> None:
        self.store.now = self.now
        self.location.replace(path, data)

    def log(self) -> None:
        """Log the next batch, and remove what is too old, as Spark does."""
        self.put("metadata", metadata())
        about = batch_metadata(self.next_batch) | {"batchTimestampMs": int(self.now.timestamp() * 1000)}
        self.put(f"offsets/{self.next_batch}", offsets_log(compact({"logOffset": self.next_batch}), metadata=about))
        for log in ("offsets", "commits"):
            self.location.delete(f"{log}/{self.next_batch - _KEPT - 1}")
        self.next_batch += 1

    def commit(self) -> None:
        self.put(f"commits/{self.next_batch - 1}", commit_log())

    def batch(self) -> None:
        self.log()
        self.commit()

    def ran(self, pauses: Sequence[float]) -> World:
        """A batch, and another one after each of these seconds."""
        self.batch()
        for pause in pauses:
            self._pass(pause)
            self.batch()
        return self

    def runs_on(self, pauses: Iterator[float]) -> World:
        """From now on a batch after each of these seconds."""
        self._plan = pauses
        self._next_at = self.passed + next(pauses, float("inf"))
        return self

    def _pass(self, seconds: float) -> None:
        until = self.passed + seconds
        while True:
            event = self._pending[0][0] if self._pending else float("inf")
            if min(event, self._next_at) > until:
                break
            if event <= self._next_at:
                self.passed, act = self._pending.pop(0)
                act()
                continue
            self.passed = self._next_at
            self.batch()
            self._next_at = self.passed + next(self._plan, float("inf"))
        self.passed = until
