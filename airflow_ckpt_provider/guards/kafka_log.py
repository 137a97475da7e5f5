"""What a Kafka broker says of the logs of its topics: plain values, and the questions that get them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

#: A partition: topic and number.
Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now.

    :param name: its name.
    :param topic_id: its identity (KIP-516), which a topic recreated under the same name does not have; ``None`` from
        brokers that have none.
    :param partitions: numbers of its partitions.
    """

    name: str
    topic_id: str | None
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Both ends of a partition's log, as offsets.

    :param earliest: the first that can be read.
    :param latest: the next that will be written (high watermark).
    :param stable: up to where a reader of committed transactions gets (last stable offset); ``latest`` where that was
        not asked for.
    """

    earliest: int
    latest: int
    stable: int


@dataclass(frozen=True, slots=True)
class Record:
    """A record that was really read.

    :param offset: its offset.
    :param timestamp_ms: its timestamp, milliseconds since the epoch; ``None`` where it has none.
    :param size: bytes of key and value, uncompressed.
    """

    offset: int
    timestamp_ms: int | None
    size: int = 0


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Settings of a topic that decide how long its records live.

    :param retention_ms: ``retention.ms``; ``None`` for -1, which is for ever.
    :param retention_is_inherited: whether ``retention.ms`` is the broker's default rather than the topic's own.
    :param retention_bytes: ``retention.bytes`` of each partition; ``None`` for -1, no limit.
    :param cleanup: ``delete``, ``compact`` or both.
    :param segment_ms: ``segment.ms``, after which a segment is closed.
    :param segment_bytes: ``segment.bytes``, likewise.
    :param append_time: whether timestamps are the broker's own (``message.timestamp.type=LogAppendTime``).
    :param tiered: whether older segments lie in remote storage (KIP-405).
    :param check_interval_ms: ``log.retention.check.interval.ms`` of the broker; ``None`` where it was not reported.
    :param delete_retention_ms: ``delete.retention.ms``: how long a compacted topic keeps a deletion, a record without a value.
    :param unreported: those of ``retention.ms``, ``retention.bytes`` and ``delete.retention.ms`` that the broker did not report,
        as some proxies and managed brokers do. What such a field holds is no setting.
    """

    retention_ms: int | None
    retention_is_inherited: bool
    retention_bytes: int | None
    cleanup: frozenset[str]
    segment_ms: int
    segment_bytes: int
    append_time: bool = False
    tiered: bool = False
    check_interval_ms: int | None = None
    delete_retention_ms: int = 86_400_000
    unreported: frozenset[str] = frozenset()

    @property
    def deletes(self) -> bool:
        """Whether records are deleted because of their age or of the log's size."""
        limited = self.retention_ms is not None or self.retention_bytes is not None
        return "delete" in self.cleanup and (limited or bool(self.limits_unreported))

    @property
    def limits_unreported(self) -> list[str]:
        """Limits of age and size that the broker did not report."""
        return [name for name in ("retention.ms", "retention.bytes") if name in self.unreported]

    @property
    def compacts(self) -> bool:
        """Whether records vanish because a newer one has their key, which leaves holes between offsets."""
        return "compact" in self.cleanup


class KafkaCluster(Protocol):
    """The questions. Each is one batched call with a time limit; none joins a group or commits."""

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        """Describe topics; those that do not exist are left out."""

    def ends(self, partitions: Collection[Partition], *, committed: bool = False) -> dict[Partition, LogEnds]:
        """Both ends of logs; partitions that cannot be asked (no leader) are left out.

        :param committed: ask for the last stable offset too.
        """

    def configs(self, topics: Collection[str]) -> dict[str, TopicConfig]:
        """Settings of topics."""

    def read(self, ranges: Mapping[Partition, tuple[int, int]]) -> dict[Partition, tuple[Record, ...] | None]:
        """Read from an offset on, until a record at or after a second offset or the end of the log.

        Holes (compaction, markers and aborted records of transactions) are passed over. Partitions of which nothing
        could be read in time are left out; one whose log ends before gets what there was, which may be nothing. ``None``: the
        log does not have the first offset (OFFSET_OUT_OF_RANGE), or the partition does not exist.
        """

    def set_retention(self, topic: str, retention_ms: int | None, *, inherit: bool = False) -> None:
        """Set ``retention.ms`` of a topic; with ``inherit``, remove the topic's own setting."""
