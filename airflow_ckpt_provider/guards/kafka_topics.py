"""What the guard of Kafka reads of the topics of a source: a fixed number of calls, however many partitions there are."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from airflow_ckpt_provider.guards.kafka_client import KafkaClient
from airflow_ckpt_provider.guards.kafka_identity import KnownTopics, compare_topics
from airflow_ckpt_provider.guards.kafka_log import LogEnds, Partition, Record, Topic, TopicConfig
from airflow_ckpt_provider.guards.kafka_verdicts import EARLIEST, LATEST, Seen
from airflow_ckpt_provider.guards.registry import GuardedSource

#: A record that was read cannot be younger than the batch that read it; clocks may differ by this much.
_CLOCKS_MS = 300_000
#: How often topics are read that change while they are read.
_TRIES = 3


def read_topics(
    cluster: KafkaClient,
    start: Mapping[Partition, int],
    source: GuardedSource,
    known: KnownTopics,
    *,
    also: Collection[str] = (),
    committed: bool = False,
) -> Seen:
    """Ask for all that is needed to judge a source.

    If records or a topic are deleted between two of the calls, everything is asked again, a few times.

    :param start: the next offset to read of each partition.
    :param also: topics that are new to the checkpoint.
    :param committed: the query reads committed records only.
    :return: what was seen. What was asked for and not obtained is named in it.
    :raises SourceError: the broker could not be asked in time.
    """
    names = {topic for topic, _ in start}.union(also)
    for _ in range(_TRIES):
        seen, changed = _read(cluster, names, start, source, known, committed=committed)
        if not changed:
            break
    return seen


def _read(
    cluster: KafkaClient,
    names: Collection[str],
    start: Mapping[Partition, int],
    source: GuardedSource,
    known: KnownTopics,
    *,
    committed: bool,
) -> tuple[Seen, bool]:
    """Ask once.

    :return: what was seen, and whether it was deleted in part between two of the calls.
    """
    gone: set[Partition] = set()

    def read(ranges: Mapping[Partition, tuple[int, int]]) -> dict[Partition, tuple[Record, ...] | None]:
        answers = cluster.read(ranges)
        gone.update(p for p, records in answers.items() if records is None)
        return answers

    topics = cluster.topics(names)
    live = [(name, n) for name, topic in topics.items() for n in topic.partitions]
    ends = cluster.ends(live, committed=committed)
    configs = cluster.configs(topics)
    # Spark reads a partition that is new to the checkpoint from its earliest offset.
    positions = {p: _position(start.get(p, EARLIEST), log) for p, log in ends.items()}
    # From the last record that was read to the first that was not: its age, and whether offsets without a record lie there.
    wanted = {
        p: (max(ends[p].earliest, offset - 1), offset)
        for p, offset in positions.items()
        if offset <= ends[p].latest and ends[p].earliest < ends[p].latest
    }
    answers = read(wanted)
    at_start = {p: records for p, records in answers.items() if records is not None}
    lost = {p: ends[p] for p, offset in start.items() if p in ends and 0 <= offset < ends[p].earliest}
    lost |= {p: ends[p] for p in ends if p not in start and ends[p].earliest}
    tails = read({p: (e.latest - 1, e.latest - 1) for p, e in lost.items() if e.latest > e.earliest})
    recreated, not_compared = compare_topics(read, known, topics, ends)
    by_size = {name for name, config in configs.items() if config.retention_bytes is not None}
    trimmed = [p for p in wanted if ends[p].earliest and p[0] in by_size]
    oldest = {p: r[0] for p, r in read({p: (ends[p].earliest,) * 2 for p in trimmed}).items() if r}
    newest = cluster.newest_timestamps([p for p in wanted if p[0] in configs and configs[p[0]].deletes])
    of_topic: dict[str, int] = {}
    for (name, _), ms in newest.items():
        of_topic[name] = max(ms, of_topic.get(name, 0))
    # An empty partition has none: those beside it show what timestamps producers write.
    empty = {p: of_topic[p[0]] for p in ends if p not in newest and p[0] in of_topic}
    seen = Seen(
        now_ms=int(time.time() * 1000),
        topics=topics,
        ends=ends,
        configs=configs,
        at_offset={p: r[-1] for p, r in at_start.items() if r and r[-1].offset >= positions[p]},
        holey=frozenset(
            {name for name, config in configs.items() if config.compacts}
            | {p[0] for p, records in at_start.items() if _has_holes(records, wanted[p], ends[p])}
            | {p[0] for p, records in tails.items() if not records}
        ),
        made_again={**_too_young(topics, configs, at_start, start, source), **recreated},
        oldest=oldest,
        newest={**empty, **newest},
        unread=frozenset(wanted.keys() - at_start.keys()),
        not_compared=not_compared,
    )
    return seen, bool(gone) or topics.keys() != configs.keys()


def _position(offset: int, ends: LogEnds) -> int:
    """The next offset to read, also where it is one of Spark's words."""
    return {EARLIEST: ends.earliest, LATEST: ends.latest}.get(offset, offset)


def _has_holes(records: tuple[Record, ...], wanted: tuple[int, int], ends: LogEnds) -> bool:
    """Whether offsets that were read over had no record."""
    first, last = wanted
    offsets = {r.offset for r in records}
    return any(o not in offsets for o in range(first, min(last + 1, ends.latest)))


def _too_young(
    topics: Mapping[str, Topic],
    configs: Mapping[str, TopicConfig],
    read: Mapping[Partition, tuple[Record, ...]],
    start: Mapping[Partition, int],
    source: GuardedSource,
) -> dict[str, str]:
    """Find topics whose "last read record" was written after the batch that is said to have read it.

    Only where the broker itself writes the timestamps: a producer may write any.
    """
    if source.logged_at is None:
        return {}
    logged_ms = int(source.logged_at.timestamp() * 1000)
    found = {}
    for p, records in read.items():
        before = [r for r in records if p in start and r.offset < start[p] and r.timestamp_ms is not None]
        append_time = p[0] in configs and configs[p[0]].append_time
        if before and append_time and (before[-1].timestamp_ms or 0) > logged_ms + _CLOCKS_MS:
            at = datetime.fromtimestamp((before[-1].timestamp_ms or 0) / 1000, UTC).isoformat()
            found[p[0]] = (
                f"offset {before[-1].offset} of partition {p[1]} was written at {at}, after the batch of "
                f"{source.logged_at.isoformat()} that is logged to have read it"
            )
    return {name: why for name, why in found.items() if name in topics}
