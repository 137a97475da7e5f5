"""What a backup is still good for, as far as its Kafka sources go: two batched calls for all backups of a repository."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.checkpoint.source_offsets import KafkaOffset
from airflow_ckpt_provider.guards.kafka_client import KafkaClient
from airflow_ckpt_provider.guards.kafka_identity import KnownTopics, compare_topics
from airflow_ckpt_provider.guards.kafka_log import LogEnds, Partition, Topic
from airflow_ckpt_provider.guards.kafka_verdicts import Seen, judge_partitions, reasons
from airflow_ckpt_provider.guards.query import from_facts
from airflow_ckpt_provider.verdict import Usefulness, Verdict


@dataclass(frozen=True, slots=True)
class BackupVerdict:
    """What a backup is good for.

    :param usefulness: in a word.
    :param reasons: why.
    :param lost: offsets that are deleted already; ``None`` where that cannot be counted.
    """

    usefulness: Usefulness
    reasons: tuple[str, ...]
    lost: int | None

    def to_json(self) -> dict[str, Any]:
        """The keys under ``source_verdict`` of ``airflow-ckpt backups --json``."""
        return {"verdict": self.usefulness.value, "reasons": list(self.reasons), "lost": self.lost}


def judge_backups(cluster: KafkaClient, facts: Sequence[Mapping[str, Any]]) -> list[BackupVerdict]:
    """Judge backups by the ``facts`` of their manifests.

    :raises SourceError: the broker could not be asked.
    """
    known = [_of_kafka(each) for each in facts]
    names = {topic for sources in known for offset, _ in sources for topic in offset.partitions}
    topics = cluster.topics(names)
    ends = cluster.ends([(name, n) for name, topic in topics.items() for n in topic.partitions])
    return [_judge(cluster, sources, topics, ends) for sources in known]


def _of_kafka(facts: Mapping[str, Any]) -> list[tuple[KafkaOffset, KnownTopics]]:
    sources = from_facts(facts, subject="", batch_id=0).sources
    return [
        (s.start.offset, KnownTopics.from_json(s.known)) for s in sources if isinstance(s.start.offset, KafkaOffset)
    ]


def _judge(
    cluster: KafkaClient,
    sources: list[tuple[KafkaOffset, KnownTopics]],
    topics: Mapping[str, Topic],
    ends: Mapping[Partition, LogEnds],
) -> BackupVerdict:
    if not sources:
        return BackupVerdict(Usefulness.UNKNOWN, ("it has no Kafka source",), None)
    codes: set[str] = set()
    why: list[str] = []
    lost: int | None = 0
    for offset, known in sources:
        recreated, unread = compare_topics(cluster.read, known, topics, ends)
        seen = Seen(int(time.time() * 1000), topics, ends, made_again=recreated, not_compared=unread)
        start = {(topic, n): o for topic, partitions in offset.partitions.items() for n, o in partitions.items()}
        found = judge_partitions(start, None, seen, if_gone=Verdict.WILL_FAIL)
        codes |= {p.code for p in found if p.verdict is not Verdict.SAFE}
        why += [
            text for verdict, text in reasons(found, seen, if_gone=Verdict.WILL_FAIL) if verdict is not Verdict.SAFE
        ]
        counts = [p.lost for p in found]
        lost = None if lost is None or None in counts else lost + sum(n or 0 for n in counts)
    return BackupVerdict(_usefulness(codes), tuple(why), lost)


def _usefulness(codes: set[str]) -> Usefulness:
    if codes & {"topic deleted", "topic recreated", "ahead of the log", "partition removed"}:
        return Usefulness.DEAD
    if codes & {"no leader", "not compared"}:
        return Usefulness.UNKNOWN
    return Usefulness.STATE_ONLY if codes else Usefulness.REPLAYABLE
