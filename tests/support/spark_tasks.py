"""Spark's tasks in this process: what an engine asks of a ``SparkContext``, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any


class Tasks:
    """Each task is sent by pickle, run, and its result comes back by pickle.

    :param before: called with the task's number before it runs.
    """

    defaultParallelism = 2  # noqa: N815

    def __init__(self, before: Callable[[int], None] = lambda number: None) -> None:
        self.before = before
        self.ran = 0
        self.parts: list[bytes] = []
        self.work = b""

    def getConf(self) -> dict[str, str]:  # noqa: N802, pyspark's name
        return {}

    def parallelize(self, items: list[Any], parts: int) -> Tasks:
        assert len(items) == parts
        self.parts = [pickle.dumps([item]) for item in items]
        return self

    def mapPartitions(self, work: Any) -> Tasks:  # noqa: N802, pyspark's name
        self.work = pickle.dumps(work)
        return self

    def collect(self) -> list[Any]:
        return list(self.results())

    def results(self) -> Iterator[Any]:
        for part in self.parts:
            self.before(self.ran)
            self.ran += 1
            yield from pickle.loads(pickle.dumps(list(pickle.loads(self.work)(iter(pickle.loads(part))))))

    @property
    def session(self) -> Any:
        """A session that has no more than this context."""
        return SimpleNamespace(sparkContext=self)
