"""Is the old topic of a mirror the one that a backup recorded? Two clusters that answer from memory."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from airflow_ckpt_provider.checkpoint.source_offsets import KafkaOffset, parse_offset
from airflow_ckpt_provider.guards.kafka_identity import Fingerprint, KnownTopics
from airflow_ckpt_provider.guards.kafka_log import LogEnds, Partition, Record, Topic, TopicConfig
from airflow_ckpt_provider.guards.mirror_syncs import MirroredCluster, MirrorNames
from airflow_ckpt_provider.recovery.positions.mirror import Mirror, mirrored_position

P = ("orders", 0)
KEY = struct.pack(">h", 6) + b"orders" + struct.pack(">i", 0)
OFFSET = parse_offset('{"orders":{"0":101}}')
BACKUP = KnownTopics(None, {"orders": "a"}, {P: Fingerprint(0, 150, 100, 1_700_000_000_100)})


@dataclass(frozen=True)
class Log:
    """A cluster with one topic of 200 records, one a millisecond, and the syncs of its mirror."""

    topic: str
    topic_id: str | None = "a"
    first_ms: int = 1_700_000_000_000
    append_time: bool = False
    answers: bool = True

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        return {self.topic: Topic(self.topic, self.topic_id, (0,))} if self.topic in names else {}

    def topic_names(self) -> frozenset[str]:
        return frozenset({self.topic, "mm2-offset-syncs.west.internal"})

    def ends(self, partitions: Collection[Partition]) -> dict[Partition, LogEnds]:
        return {p: LogEnds(0, 200, 200) for p in partitions}

    def read(self, ranges: Mapping[Partition, tuple[int, int]]) -> dict[Partition, tuple[Record, ...]]:
        assert ranges, "nothing is asked"
        if not self.answers:
            return {}
        return {p: (Record(start, self.first_ms + start),) for p, (start, _) in ranges.items()}

    def configs(self, topics: Collection[str]) -> dict[str, TopicConfig]:
        return {name: TopicConfig(None, False, None, frozenset(), 1, 1, self.append_time) for name in topics}

    def contents(self, partition: Partition) -> tuple[tuple[bytes, bytes], ...]:
        assert partition == ("mm2-offset-syncs.west.internal", 0)
        return tuple((KEY, struct.pack(">qq", at, at)) for at in (0, 100, 199))


def mirror(old: Log, target: str | None = "west", new: Log | None = None) -> Mirror:
    clusters: Any = old, new or Log("east.orders")
    return Mirror(
        MirrorNames("east", target), new=cast(MirroredCluster, clusters[1]), old=cast(MirroredCluster, clusters[0])
    )


@pytest.mark.parametrize(
    ("old", "known", "verdict", "words"),
    [
        (Log("orders"), BACKUP, "SAFE", "which is exact"),
        (Log("orders"), None, "UNKNOWN", "no backup shows that the old topic is the one that was read"),
        (Log("orders", "b"), BACKUP, "UNKNOWN", "the old topic was recreated since the backup"),
        # Brokers without ids: the record at the offset that the backup saw shows.
        (Log("orders", None), replace(BACKUP, ids={}), "SAFE", "which is exact"),
        (Log("orders", None, 1_800_000_000_000), replace(BACKUP, ids={}), "UNKNOWN", "recreated since the backup"),
        (Log("orders", None), replace(BACKUP, ids={}, fingerprints={P: Fingerprint(0, 150)}), "UNKNOWN", "no backup"),
        # A backup that saw less than was read.
        (
            Log("orders"),
            replace(BACKUP, fingerprints={P: Fingerprint(0, 50, 49, 1_700_000_000_049)}),
            "UNKNOWN",
            "no backup",
        ),
    ],
)
def test_safe_only_where_a_backup_recorded_the_same_topic(
    old: Log, known: KnownTopics | None, verdict: str, words: str
) -> None:
    assert isinstance(OFFSET, KafkaOffset)
    found = mirrored_position("0", OFFSET, mirror(old), known=known)
    assert found.verdict.value == verdict
    assert words in found.reasons[1]


@pytest.mark.parametrize(
    ("new", "verdict"),
    [
        (Log("east.orders"), "SAFE"),
        (Log("east.orders", first_ms=1_600_000_000_000), "UNKNOWN"),
        (Log("east.orders", first_ms=1_600_000_000_000, append_time=True), "SAFE"),  # its times are its own
    ],
)
def test_a_sync_whose_copy_is_of_another_record_proves_nothing(new: Log, verdict: str) -> None:
    assert isinstance(OFFSET, KafkaOffset)
    found = mirrored_position("0", OFFSET, mirror(Log("orders"), new=new), known=BACKUP)
    assert found.verdict.value == verdict
    assert ("record 100 of the old log and record 100 of the new one have different" in found.reasons[1]) == (
        verdict == "UNKNOWN"
    )


def test_a_copy_that_is_not_read_in_time_proves_nothing() -> None:
    """It was SAFE."""
    assert isinstance(OFFSET, KafkaOffset)
    found = mirrored_position("0", OFFSET, mirror(Log("orders"), new=Log("east.orders", answers=False)), known=BACKUP)
    assert found.verdict.value == "UNKNOWN"
    assert "record 100 of the old log and record 100 of the new one were not both read in time" in found.reasons[1]


def test_without_the_alias_of_the_new_cluster_the_syncs_may_be_of_another_mirror() -> None:
    assert isinstance(OFFSET, KafkaOffset)
    found = mirrored_position("0", OFFSET, mirror(Log("orders"), None), known=BACKUP)
    assert found.verdict.value == "UNKNOWN"
    assert "the syncs may be those of another mirror out of the old cluster" in found.reasons[1]
    assert found.reasons[-1] == "the syncs are of topic mm2-offset-syncs.west.internal of the old cluster"
