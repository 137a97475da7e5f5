"""Kafka topics that MirrorMaker 2 copied to another cluster: the same position there, under the new names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from airflow_ckpt_provider.checkpoint.source_offsets import KafkaOffset
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.kafka_identity import KnownTopics
from airflow_ckpt_provider.guards.kafka_log import LogEnds, Partition
from airflow_ckpt_provider.guards.mirror_syncs import (
    DEFAULT,
    IDENTITY,
    SOURCE,
    TARGET,
    MirroredCluster,
    MirrorNames,
    SyncTrail,
    parse_sync,
    trails,
)
from airflow_ckpt_provider.recovery.positions.kafka import EARLIEST, kafka_position_by_clock, offsets_json
from airflow_ckpt_provider.recovery.positions.position import SourcePosition
from airflow_ckpt_provider.recovery.positions.translation import (
    MirroredPartition,
    TimedStart,
    Translation,
    translate,
)
from airflow_ckpt_provider.verdict import Verdict

#: Seconds by which a start by time is earlier than the last record that was read.
MARGIN = 600.0
#: Seconds that all questions to one cluster may take together: the topic of the syncs is read whole.
MIRROR_TIMEOUT = 60.0
#: Worst first. What is not known comes before what is counted: it may be a loss.
_WORST = (Verdict.WILL_LOSE, Verdict.UNKNOWN, Verdict.WILL_DUPLICATE, Verdict.SAFE)


@dataclass(frozen=True, slots=True)
class Mirror:
    """A mirror between two clusters.

    :param names: how it names topics.
    :param new: the cluster that the stream moves to.
    :param old: the cluster that the checkpoint's offsets are of; ``None`` where it does not answer any more.
    :param location: ``offset-syncs.topic.location``: ``source`` (the old cluster, MirrorMaker's default) or ``target``.
    :param margin: seconds by which a start by time is earlier than the last record that was read.
    :raises RefusedError: the location is neither, or is on a cluster that is not given.
    """

    names: MirrorNames
    new: MirroredCluster
    old: MirroredCluster | None = None
    location: str = SOURCE
    margin: float = MARGIN

    @property
    def doubt(self) -> str | None:
        """Why the syncs may be those of another mirror; ``None`` where the alias in their topic's name was given."""
        if self.location == TARGET or self.names.target is not None:
            return None
        return (
            "the syncs may be those of another mirror out of the old cluster: give the new cluster's alias in MirrorMaker "
            "(--mirrored-to, mirrored_to)"
        )

    def __post_init__(self) -> None:
        if self.location not in (SOURCE, TARGET):
            raise RefusedError(
                f"{self.location!r} is no offset-syncs.topic.location", hint=f"give {SOURCE} or {TARGET}"
            )
        if self.location == SOURCE and self.old is None:
            raise RefusedError(
                "the offset syncs are on the old cluster, and it is not given",
                hint="give the old cluster's brokers (--old-kafka-config, old_kafka_config_id); where MirrorMaker has "
                "offset-syncs.topic.location=target, say so (--offset-syncs-location target)",
            )


def mirrored_position(
    source: str, offset: KafkaOffset, mirror: Mirror, *, known: KnownTopics | None = None
) -> SourcePosition:
    """Start on the new cluster where the batch ended on the old one, or before.

    :param source: the source.
    :param offset: end offsets of the batch, on the old cluster.
    :param known: what a backup recorded of the old topics. Without it no position is better than ``UNKNOWN``.
    :raises RefusedError: a topic or partition is not on the new cluster, or the topic of the syncs is not found.
    :raises SourceError: a cluster cannot be asked.
    """
    numbers = _partitions_of_new(offset, mirror)
    syncs_topic, facts = _facts(offset, numbers, mirror, known or KnownTopics())
    found = {p: translate(each) for p, each in facts.items()}
    start: dict[str, dict[int, int]] = {}
    reasons = [_names(offset, mirror)]
    for (topic, number), there in sorted(found.items()):
        remote = mirror.names.remote(topic)
        start.setdefault(remote, {})[number] = there.offset
        reasons.append(f"{remote}-{number}: {_shown(there.offset)}, {there.verdict.value}: {there.reason}")
    reasons.append(
        f"the syncs are of topic {syncs_topic} of the {'new' if mirror.location == TARGET else 'old'} cluster"
    )
    return SourcePosition(
        source=source,
        kind=KafkaOffset.kind,
        options={"startingOffsets": offsets_json(start)},
        verdict=_worst(found.values()),
        reasons=tuple(reasons),
        repeats=_total(found.values()),
    )


def mirrored_position_by_clock(source: str, offset: KafkaOffset, mirror: Mirror, *, time: datetime) -> SourcePosition:
    """Start at the first record of each partition of the new cluster whose timestamp is at or after a time less the margin.

    :raises RefusedError: a topic is not on the new cluster.
    """
    numbers = _partitions_of_new(offset, mirror)
    names = mirror.names
    renamed = {names.remote(topic): dict.fromkeys(numbers[topic], 0) for topic in offset.partitions}
    early = datetime.fromtimestamp(time.timestamp() - mirror.margin, UTC)
    there = kafka_position_by_clock(source, replace(offset, partitions=renamed), time=early, partitions=None)
    why = (
        f"each partition starts {mirror.margin:g} s before the time: a record that is copied out of order, or has an older "
        "timestamp, is lost"
    )
    return replace(
        there,
        verdict=Verdict.UNKNOWN,
        repeats=None,
        reasons=(_names(offset, mirror), why, *there.reasons[:2]),
        until={},
    )


def _partitions_of_new(offset: KafkaOffset, mirror: Mirror) -> dict[str, tuple[int, ...]]:
    names = mirror.names
    topics = mirror.new.topics([names.remote(topic) for topic in offset.partitions])
    for topic, partitions in offset.partitions.items():
        remote = names.remote(topic)
        if remote not in topics:
            other = replace(names, policy=DEFAULT if names.policy == IDENTITY else IDENTITY)
            there = other.remote(topic) in mirror.new.topic_names()
            raise RefusedError(
                f"the new cluster has no topic {remote}",
                hint=f"it has {other.remote(topic)}: give the replication policy {other.policy} (--replication-policy), if "
                "that is the copy"
                if there
                else "check the alias of the old cluster (--mirrored-from), the separator, and that MirrorMaker copies it",
            )
        missing = sorted(set(partitions) - set(topics[remote].partitions))
        if missing:
            raise RefusedError(
                f"topic {remote} of the new cluster has no partition {missing[0]}",
                hint="wait until MirrorMaker has added it (refresh.topics.interval.seconds)",
            )
    return {topic: topics[names.remote(topic)].partitions for topic in offset.partitions}


def _facts(
    offset: KafkaOffset, numbers: Mapping[str, tuple[int, ...]], mirror: Mirror, recorded: KnownTopics
) -> tuple[str, dict[Partition, MirroredPartition]]:
    """Ask both clusters: the old one's ends before and after everything else, so that a write in between is seen.

    :return: the topic of the syncs, and the facts.
    """
    read = {(t, n): offset.partitions[t].get(n, 0) for t, ns in numbers.items() for n in ns}
    old_ends = mirror.old.ends(read) if mirror.old else {}
    syncs_topic, known = _trails(mirror)
    remote = {p: (mirror.names.remote(p[0]), p[1]) for p in read}
    new_ends = mirror.new.ends(list(remote.values()))
    same = _same(read, mirror.old, old_ends, recorded) if mirror.old else {}
    later = mirror.old.ends(read) if mirror.old else {}
    silent = sorted(there for there in remote.values() if there not in new_ends)
    if silent:
        raise RefusedError(
            f"partition {silent[0][1]} of topic {silent[0][0]} has no leader on the new cluster",
            hint="see that its brokers are up",
        )
    facts = {
        p: MirroredPartition(
            at,
            known.get(p),
            new_ends[remote[p]],
            later.get(p),
            p in later and old_ends.get(p) == later[p],
            same=same.get(p),
            doubt=mirror.doubt,
        )
        for p, at in read.items()
    }
    other = _other_copies(facts, mirror)
    facts = {p: replace(f, doubt=f.doubt or other.get(p)) for p, f in facts.items()}
    timed = _timed({p: f for p, f in facts.items() if f.needs_time}, old_ends, mirror)
    return syncs_topic, {p: replace(f, timed=timed.get(p)) for p, f in facts.items()}


def _same(
    read: Mapping[Partition, int], old: MirroredCluster, ends: Mapping[Partition, LogEnds], recorded: KnownTopics
) -> dict[Partition, bool | None]:
    """Say of each partition whether its topic is the one that a backup recorded; ``None``: that cannot be determined.

    The topic's id shows it, or the timestamp of a record. A backup that saw less of the log than was read is of another topic,
    or of an earlier time.
    """
    names = {topic for topic, _ in read} & {topic for topic, _ in recorded.fingerprints}
    if not names:
        return {}
    topics = old.topics(names)
    compared = recorded.to_compare(topics, ends)
    answers = old.read({p: (o, o) for p, o in compared.items()}) if compared else {}
    records = {p: found[0] for p, found in answers.items() if found}

    def same(partition: Partition, offset: int) -> bool | None:
        topic, seen = topics.get(partition[0]), recorded.fingerprints.get(partition)
        if topic is None:
            return None
        if recorded.recreated(topic, records):
            return False
        if seen is None or seen.latest < offset:
            return None
        if topic.topic_id and recorded.ids.get(topic.name) == topic.topic_id:
            return True
        there = records.get(partition)
        return True if there and (there.offset, there.timestamp_ms) == (seen.offset, seen.timestamp_ms) else None

    return {partition: same(partition, offset) for partition, offset in read.items()}


def _other_copies(facts: Mapping[Partition, MirroredPartition], mirror: Mirror) -> dict[Partition, str]:
    """Say of which partitions the sync that is used is not of these logs: record and copy have different timestamps.

    MirrorMaker copies timestamps. Where the new cluster sets its own, or one of both records is gone, nothing is said. Where one
    could not be read in time, that is not known.
    """
    if mirror.old is None:
        return {}
    remote = {p: (mirror.names.remote(p[0]), p[1]) for p in facts}
    used = {p: sync for p, f in facts.items() if f.usable and (sync := f.usable.below(f.offset))}
    configs = mirror.new.configs({remote[p][0] for p in used}) if used else {}
    used = {p: s for p, s in used.items() if (c := configs.get(remote[p][0])) and not c.append_time}
    if not used:
        return {}
    here = mirror.old.read({p: (s.upstream, s.upstream) for p, s in used.items()})
    there = mirror.new.read({remote[p]: (s.downstream, s.downstream) for p, s in used.items()})
    found = {}
    for p, sync in used.items():
        if p not in here or remote[p] not in there:
            found[p] = (
                f"record {sync.upstream} of the old log and record {sync.downstream} of the new one were not both read in time, "
                "so nothing shows that the sync is of these logs"
            )
            continue
        record, copy = (here.get(p) or (None,))[0], (there.get(remote[p]) or (None,))[0]
        if record is None or copy is None or (record.offset, copy.offset) != (sync.upstream, sync.downstream):
            continue
        if record.timestamp_ms != copy.timestamp_ms:
            found[p] = (
                f"record {sync.upstream} of the old log and record {sync.downstream} of the new one have different "
                "timestamps: the sync is of another mirror, or the old topic was recreated"
            )
    return found


def _trails(mirror: Mirror) -> tuple[str, dict[Partition, SyncTrail]]:
    cluster = mirror.new if mirror.location == TARGET or mirror.old is None else mirror.old
    topic = mirror.names.syncs_topic(mirror.location, cluster.topic_names())
    try:
        return topic, trails(parse_sync(key, value) for key, value in cluster.contents((topic, 0)))
    except ValueError as e:
        raise RefusedError(
            f"topic {topic} cannot be read: {e}", hint="see that it is MirrorMaker's topic of offset syncs"
        ) from e


def _timed(
    needing: Mapping[Partition, MirroredPartition], old_ends: Mapping[Partition, LogEnds], mirror: Mirror
) -> dict[Partition, TimedStart]:
    """Find starts by the time of the last record that was read, or of the first after it that the old log still has."""
    if mirror.old is None or not needing:
        return {}
    first = {
        p: max(facts.offset - 1, old_ends[p].earliest)
        for p, facts in needing.items()
        if p in old_ends and max(facts.offset - 1, old_ends[p].earliest) < old_ends[p].latest
    }
    records = mirror.old.read({p: (at, at) for p, at in first.items()})
    times = {p: found[0].timestamp_ms for p, found in records.items() if found and found[0].timestamp_ms is not None}
    margin = int(mirror.margin * 1000)
    names = {p: (mirror.names.remote(p[0]), p[1]) for p in times}
    starts = mirror.new.first_at({names[p]: max(ms - margin, 0) for p, ms in times.items() if ms is not None})
    topics = {p[0] for p in times}
    old_configs = mirror.old.configs(topics)
    new_configs = mirror.new.configs({mirror.names.remote(t) for t in topics})

    def rising(topic: str) -> bool:
        before, now = old_configs.get(topic), new_configs.get(mirror.names.remote(topic))
        return before is not None and before.append_time and now is not None and not now.append_time

    return {
        p: TimedStart(ms, margin, starts[names[p]], rising(p[0]))
        for p, ms in times.items()
        if ms is not None and names[p] in starts
    }


def _names(offset: KafkaOffset, mirror: Mirror) -> str:
    topics = ", ".join(sorted(mirror.names.remote(topic) for topic in offset.partitions))
    return f"the query has to subscribe to the topics of the new cluster: {topics}"


def _shown(offset: int) -> str:
    return "from its earliest offset" if offset == EARLIEST else f"from offset {offset}"


def _worst(found: Iterable[Translation]) -> Verdict:
    verdicts = {there.verdict for there in found}
    return next((v for v in _WORST if v in verdicts), Verdict.UNKNOWN)


def _total(found: Iterable[Translation]) -> dict[str, int] | None:
    total = 0
    for there in found:
        if there.repeats is None:
            return None
        total += there.repeats
    return {"records": total} if total else {}
