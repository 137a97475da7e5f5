"""Looks at a checkpoint again and again, as a sensor of the commit gap does."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from airflow_ckpt_provider.checkpoint.conditions import Condition, Wait
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.checkpoint.waiting import Answer, look
from airflow_ckpt_provider.checkpoint.waiting_memory import Memory
from tests.support.timed_store import Stream, at
from tests.support.watched_stores import watched

PATIENCE = timedelta(minutes=10)


def wait_for(kind: str = "drained", value: int | None = None, **more: Any) -> Wait:
    since = more.pop("since_batch", None)
    return Wait(Condition(kind, value, since).check(), **{"stuck_after": PATIENCE, **more})


class Watch:
    """Reads again and again; the memory goes through JSON each time, as between two processes."""

    def __init__(self, stream: Stream, wait: Wait, memory: Memory | None = None) -> None:
        self.location, self.store = watched(stream.location)
        self.wait = wait
        self.memory = memory or Memory()
        self.cost: list[tuple[int, int]] = []

    def look(self, now: datetime) -> Answer:
        before = len(self.store.requests)
        answer, memory = look(self.location, self.wait, self.memory, now=now)
        asked = [operation for operation, _ in self.store.requests[before:]]
        self.cost.append((asked.count("list"), asked.count("read")))
        assert set(asked) <= {"list", "read", "walk"}
        self.memory = Memory.from_json(json.loads(json.dumps(memory.to_json())))
        assert self.memory == memory
        assert json.loads(json.dumps(answer.progress)) == answer.progress
        return answer

    def states(self, *moments: float) -> list[str]:
        return [self.look(at(m)).state.value for m in moments]


def one_look(stream: Stream, wait: Wait, now: datetime) -> Answer:
    return Watch(stream, wait).look(now)


def seal(stream: Stream, number: int, reason: str = "an upgrade") -> Seal:
    mark = Seal(number, "7f3a", reason, "dag/run/task", at(10))
    stream.put(f"offsets/{number}", mark.sentence.encode(), at(10))
    return mark
