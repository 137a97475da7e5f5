"""A Kafka cluster in memory: for what a real broker does not do on demand, such as a deletion between two questions."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from airflow_ckpt_provider.guards.kafka import KafkaGuard
from airflow_ckpt_provider.guards.kafka_client import KafkaClient
from airflow_ckpt_provider.guards.kafka_log import LogEnds, Partition, Record, Topic, TopicConfig
from airflow_ckpt_provider.guards.query import from_kafka_offsets, guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.guards.report import GuardReport

HOUR = 3_600_000
#: What topics have that are given no other settings.
WEEK = TopicConfig(
    retention_ms=7 * 24 * HOUR,
    retention_is_inherited=True,
    retention_bytes=None,
    cleanup=frozenset({"delete"}),
    segment_ms=7 * 24 * HOUR,
    segment_bytes=1 << 30,
    append_time=True,
    check_interval_ms=300_000,
)


class KafkaLogs(KafkaClient):
    """Its topics, and what happens between two questions.

    :param logs: of each partition the ages of its records in hours, the oldest first.
    :param config: settings of all topics; ``None``: the cluster reports none.
    :param ids: ids of the topics; without one, of a broker that has none.
    :param default: the brokers' own ``retention.ms``.
    """

    def __init__(
        self,
        logs: Mapping[Partition, list[float]],
        config: TopicConfig | None = WEEK,
        ids: dict[str, str] | None = None,
        default: int | None = WEEK.retention_ms,
    ) -> None:
        super().__init__({"bootstrap.servers": "made:9092"})
        now = int(time.time() * 1000)
        self.logs = {p: [Record(o, now - int(age * HOUR), 100) for o, age in enumerate(a)] for p, a in logs.items()}
        self.ends_of = {p: (0, len(ages)) for p, ages in logs.items()}
        self.settings = {} if config is None else {name: config for name, _ in logs}
        self.ids, self.default = ids or {}, default
        #: Partitions that are not read in time.
        self.slow: set[Partition] = set()
        #: What happens after a question, each time.
        self.after: dict[str, Callable[[], object]] = {}

    def trim(self, partition: Partition, to: int) -> None:
        """Delete the records before an offset."""
        self.ends_of[partition] = (to, self.ends_of[partition][1])

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self.ends_of = {p: ends for p, ends in self.ends_of.items() if p[0] != topic}
        self.settings.pop(topic, None)

    def _answered(self, question: str) -> None:
        self.after.get(question, lambda: None)()

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        """Describe topics."""
        numbers = {name: tuple(sorted(n for t, n in self.ends_of if t == name)) for name in sorted(names)}
        found = {name: Topic(name, self.ids.get(name), there) for name, there in numbers.items() if there}
        self._answered("topics")
        return found

    def topic_names(self) -> frozenset[str]:
        """Names of all topics."""
        return frozenset(name for name, _ in self.ends_of)

    def ends(self, partitions: Collection[Partition], *, committed: bool = False) -> dict[Partition, LogEnds]:
        """Both ends."""
        found = {p: LogEnds(e[0], e[1], e[1]) for p in partitions if (e := self.ends_of.get(p))}
        self._answered("ends")
        return found

    def configs(self, topics: Collection[str]) -> dict[str, TopicConfig]:
        """Settings."""
        found = {name: self.settings[name] for name in topics if name in self.settings}
        self._answered("configs")
        return found

    def read(self, ranges: Mapping[Partition, tuple[int, int]]) -> dict[Partition, tuple[Record, ...] | None]:
        """Read records."""
        found: dict[Partition, tuple[Record, ...] | None] = {}
        for p, (first, last) in ranges.items():
            earliest, latest = self.ends_of.get(p, (0, -1))
            if p in self.slow:
                continue
            found[p] = tuple(self.logs[p][first : min(last + 1, latest)]) if earliest <= first <= latest else None
        return found

    def newest_timestamps(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The newest timestamps."""
        there = {p: self.logs[p][-1].timestamp_ms for p in partitions if self.logs[p] and p in self.ends_of}
        return {p: ms for p, ms in there.items() if ms is not None}

    def set_retention(self, topic: str, retention_ms: int | None, *, inherit: bool = False) -> None:
        """Set ``retention.ms``."""
        ms = self.default if inherit else retention_ms
        self.settings[topic] = replace(self.settings[topic], retention_ms=ms, retention_is_inherited=inherit)
        self._answered("set_retention")


def ask(cluster: KafkaLogs, offsets: dict[str, dict[str, int]], known: Any = None, **settings: Any) -> GuardReport:
    """Have offsets judged."""
    told = GuardSettings(**settings)
    return guard_query(from_kafka_offsets(offsets, known=known), told, guards=[KafkaGuard(told, cluster)])
