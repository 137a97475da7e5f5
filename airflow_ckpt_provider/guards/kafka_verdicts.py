"""The verdict on each partition, from what was seen of the broker: what Spark's Kafka source will do at its next start.

The rules are those of Spark's ``KafkaMicroBatchStream`` and ``KafkaOffsetReader``: whatever it would report as data loss ends the
query with ``failOnDataLoss=true`` and is passed over with a warning otherwise. What it cannot see, a topic that was
recreated and has grown past the checkpoint's offsets, loses records in either case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.guards.kafka_log import LogEnds, Partition, Record, Topic, TopicConfig
from airflow_ckpt_provider.guards.kafka_retention import TimeToLoss
from airflow_ckpt_provider.verdict import Verdict

#: Spark's words for positions in ``startingOffsets``.
LATEST, EARLIEST = -1, -2
_DROP_IT = "a rewind to the newest committed batch drops the plan (--to-latest)"
#: Partitions that a reason names.
_NAMED = 6

#: Why no position of Kafka is ``SAFE``: the numbers are right, but whether they still mean what they meant only a broker knows.
NO_BROKER = (
    "no broker was asked whether the topics still have these offsets, and are the same topics (`airflow-ckpt guard` asks); the "
    "native connector of Azure Event Hubs writes offsets of this form too, and takes no startingOffsets"
)
#: Why offsets may not be enough where nobody has said how many partitions there are now.
NOT_ALL_PARTITIONS = (
    "every partition of the topics has to be in startingOffsets, or Spark refuses to start: where partitions were added since, "
    "say how many there are now: --partitions TOPIC=N (kafka_partitions)"
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of the topics of one source, at one moment.

    :param now_ms: when, milliseconds since the epoch.
    :param topics: the topics that exist.
    :param ends: both ends of the partitions that answered.
    :param configs: settings of the topics.
    :param at_offset: the first record at or after the next offset to read, where there is one; of a partition that is new to the
        checkpoint its first one.
    :param holey: topics in which offsets without records were seen: compaction, or markers of transactions.
    :param made_again: topic -> why it is not the one that the checkpoint was reading.
    :param oldest: the first record of a log where its size limits it, and something was deleted already.
    :param newest: the newest timestamp in a partition; of an empty one that of its topic.
    :param unread: partitions whose record at that offset was asked for and not obtained: not in time, or the log
        was changed each time between two questions.
    :param not_compared: topic -> what of it was asked for and not obtained, so that it was not compared with a backup.
    """

    now_ms: int
    topics: Mapping[str, Topic]
    ends: Mapping[Partition, LogEnds]
    configs: Mapping[str, TopicConfig] = field(default_factory=dict)
    at_offset: Mapping[Partition, Record] = field(default_factory=dict)
    holey: frozenset[str] = frozenset()
    made_again: Mapping[str, str] = field(default_factory=dict)
    oldest: Mapping[Partition, Record] = field(default_factory=dict)
    newest: Mapping[Partition, int] = field(default_factory=dict)
    unread: frozenset[Partition] = frozenset()
    not_compared: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionVerdict:
    """One partition.

    :param partition: topic and number.
    :param verdict: what happens to it.
    :param code: which of the cases it is, one word.
    :param offset: the next offset to read; ``None`` for a partition that is new to the checkpoint.
    :param ends: both ends of its log; ``None`` where it has none.
    :param lost: offsets that would not be read; ``None`` where that cannot be counted.
    :param left: how long the offset will still be there.
    """

    partition: Partition
    verdict: Verdict
    code: str
    offset: int | None
    ends: LogEnds | None
    lost: int | None = 0
    left: TimeToLoss | None = None

    @property
    def name(self) -> str:
        """``topic-number``, as Kafka's own tools have it."""
        return f"{self.partition[0]}-{self.partition[1]}"

    def facts(self, seen: Seen) -> dict[str, Any]:
        """The numbers, as plain JSON."""
        topic, number = self.partition
        record = seen.at_offset.get(self.partition)
        at = record.timestamp_ms if record else None
        behind = max(0, self.ends.stable - self.offset) if self.ends and self.offset is not None else None
        return {
            "topic": topic,
            "partition": number,
            "finding": self.code,
            "offset": self.offset,
            "earliest": self.ends.earliest if self.ends else None,
            "latest": self.ends.stable if self.ends else None,
            "behind": behind,
            "lost": self.lost,
            "lost_exact": self.lost is not None and (self.lost == 0 or topic not in seen.holey),
            "timestamp": None if at is None else datetime.fromtimestamp(at / 1000, UTC).isoformat(),
            **(self.left.to_json() if self.left else {}),
        }


def judge_partitions(
    start: Mapping[Partition, int],
    planned: Mapping[Partition, int] | None,
    seen: Seen,
    *,
    if_gone: Verdict,
    by_pattern: bool = False,
    also: Collection[str] = (),
    assigned: Collection[Partition] | None = None,
    left_out: Collection[Partition] = (),
) -> list[PartitionVerdict]:
    """Judge every partition of the checkpoint, and those that are new to it.

    :param start: the next offset to read of each partition; :data:`LATEST` and :data:`EARLIEST` are understood.
    :param planned: up to where the next batch reads, where it was planned before.
    :param seen: what the broker said.
    :param if_gone: what becomes of data that is gone: ``WILL_FAIL`` with Spark's default ``failOnDataLoss=true``.
    :param by_pattern: the query names its topics by ``subscribePattern``: one that is gone is then lost data like any other.
    :param also: topics that the query names, and the checkpoint may not know yet.
    :param assigned: the partitions that the query names (``assign``); ``None``: it names whole topics.
    :param left_out: partitions of the checkpoint that the query does not name any more.
    """
    no_topic = if_gone if by_pattern else Verdict.WILL_FAIL
    names = {topic for topic, _ in start}.union(also)
    live = {
        (name, n)
        for name in names
        if (topic := seen.topics.get(name))
        for n in topic.partitions
        if assigned is None or (name, n) in assigned
    }
    found = [
        # Spark asks for what the query names, and reports all else that the checkpoint has as gone.
        PartitionVerdict(p, if_gone, "not named", offset, seen.ends.get(p), None)
        if p in left_out
        else _of_checkpoint(p, offset, planned, seen, live, if_gone, no_topic)
        for p, offset in sorted(start.items())
    ]
    known = {topic for topic, _ in start}
    found += [
        PartitionVerdict((name, 0), Verdict.WILL_FAIL, "topic missing", None, None, None)
        for name in sorted({*also} - known - seen.topics.keys())
    ]
    dropped = {topic for topic, _ in left_out} if assigned is None else set()
    found += [_added(p, seen, if_gone) for p in sorted(live - set(start)) if p[0] not in dropped]
    return found


def _of_checkpoint(
    partition: Partition,
    offset: int,
    plan: Mapping[Partition, int] | None,
    seen: Seen,
    live: set[Partition],
    if_gone: Verdict,
    no_topic: Verdict,
) -> PartitionVerdict:
    topic = partition[0]
    if topic not in seen.topics:
        # Spark asks for the topic by name and fails whatever failOnDataLoss says; with a pattern it asks for no name.
        return PartitionVerdict(partition, no_topic, "topic deleted", offset, None, None)
    if partition not in live:
        return PartitionVerdict(partition, if_gone, "partition removed", offset, None, None)
    ends = seen.ends.get(partition)
    if ends is None:
        return PartitionVerdict(partition, Verdict.UNKNOWN, "no leader", offset, None, None)
    if offset < 0:
        at = ends.latest if offset == LATEST else ends.earliest
        if partition in seen.unread:
            return PartitionVerdict(partition, Verdict.UNKNOWN, "not read", at, ends)
        return PartitionVerdict(partition, Verdict.SAFE, "fine", at, ends)
    if topic in seen.made_again:
        loud = not ends.earliest <= offset <= ends.latest
        lost = max(min(offset, ends.latest), ends.earliest)
        return PartitionVerdict(
            partition, if_gone if loud else Verdict.WILL_LOSE, "topic recreated", offset, ends, lost
        )
    # Spark logs what it plans before it sees that data is gone, and replays that whatever the topic has by then.
    stops = if_gone is Verdict.WILL_FAIL
    if plan is not None and partition not in plan:
        again = Verdict.WILL_FAIL if stops else Verdict.WILL_DUPLICATE
        return PartitionVerdict(partition, again, "not planned", offset, ends)
    planned = plan[partition] if plan else None
    if planned is not None and planned < offset:
        then = Verdict.WILL_FAIL if stops else Verdict.UNKNOWN
        return PartitionVerdict(partition, then, "planned backwards", offset, ends)
    if offset > ends.latest:
        return PartitionVerdict(partition, if_gone, "ahead of the log", offset, ends, None)
    if offset < ends.earliest:
        return PartitionVerdict(partition, if_gone, "offsets deleted", offset, ends, ends.earliest - offset)
    if planned is not None and planned > ends.latest:
        return PartitionVerdict(partition, if_gone, "plan ahead of the log", offset, ends, None)
    if max(offset, planned or 0) > ends.stable:
        then = Verdict.WILL_FAIL if stops and offset > ends.stable else Verdict.UNKNOWN
        return PartitionVerdict(partition, then, "ahead of a transaction", offset, ends)
    if topic in seen.not_compared:
        return PartitionVerdict(partition, Verdict.UNKNOWN, "not compared", offset, ends)
    if partition in seen.unread:
        return PartitionVerdict(partition, Verdict.UNKNOWN, "not read", offset, ends)
    return PartitionVerdict(partition, Verdict.SAFE, "fine", offset, ends)


def _added(partition: Partition, seen: Seen, if_gone: Verdict) -> PartitionVerdict:
    ends = seen.ends.get(partition)
    if ends is None:
        return PartitionVerdict(partition, Verdict.UNKNOWN, "no leader", None, None, None)
    if not ends.earliest and partition in seen.unread:
        return PartitionVerdict(partition, Verdict.UNKNOWN, "not read", None, ends)
    verdict = if_gone if ends.earliest else Verdict.SAFE
    return PartitionVerdict(partition, verdict, "partition added", None, ends, ends.earliest)


def reasons(found: Iterable[PartitionVerdict], seen: Seen, *, if_gone: Verdict) -> list[tuple[Verdict, str]]:
    """Say what was found, once for each topic and case."""
    groups: dict[tuple[str, str, Verdict], list[PartitionVerdict]] = {}
    for p in found:
        if p.code != "fine":
            groups.setdefault((p.partition[0], p.code, p.verdict), []).append(p)
    return [(verdict, _reason(topic, code, group, seen, if_gone)) for (topic, code, verdict), group in groups.items()]


def _reason(topic: str, code: str, group: list[PartitionVerdict], seen: Seen, if_gone: Verdict) -> str:
    spark = (
        "Spark stops (failOnDataLoss=true)"
        if if_gone is Verdict.WILL_FAIL
        else "Spark continues and only logs a warning"
    )
    partitions = _list([str(p.partition[1]) for p in group])
    lost = sum(p.lost or 0 for p in group)
    each = _list([f"{p.partition[1]}: {p.lost:,}" for p in group if p.lost])
    about = "up to " if topic in seen.holey else ""
    why = " (offsets without a record, of compaction or transactions, are among them)" if about else ""
    match code:
        case "topic missing":
            return f"topic {topic}, which the query names, does not exist: the query fails at its start"
        case "topic deleted" if group[0].verdict is not Verdict.WILL_FAIL:
            return (
                f"topic {topic} does not exist any more; what was unread there is lost; {spark} (subscribePattern with "
                "failOnDataLoss=false)"
            )
        case "topic deleted":
            return f"topic {topic} does not exist any more: the query fails at its start"
        case "partition removed":
            return f"topic {topic} has no partition {partitions} any more; what was unread there is lost; {spark}"
        case "no leader":
            return f"topic {topic}: partition {partitions} did not answer, it may have no leader"
        case "topic recreated" if group[0].verdict is Verdict.WILL_LOSE:
            return (
                f"topic {topic} was deleted and recreated: {seen.made_again[topic]}. Spark cannot see it, takes the old offsets "
                f"for the new log and skips its first {about}{lost:,} records (by partition {each}), besides all that was unread "
                "in the old one"
            )
        case "topic recreated":
            return (
                f"topic {topic} was deleted and recreated: {seen.made_again[topic]}. The offsets of partition {partitions} "
                f"are not in the new log; what was unread in the old one is lost; {spark}"
            )
        case "ahead of the log":
            first = group[0]
            end = first.ends.latest if first.ends else 0
            return (
                f"topic {topic}: the checkpoint is ahead of the log in partition {partitions} (at {first.offset:,}, the log of "
                f"{first.partition[1]} ends at {end:,}): it was recreated, or cut by an unclean election; {spark}"
            )
        case "plan ahead of the log":
            return (
                f"topic {topic}: the batch to be run again was planned beyond the end of the log in partition {partitions}; "
                f"{spark}"
            )
        case "ahead of a transaction":
            first = group[0]
            end = first.ends.stable if first.ends else 0
            what = (
                "the query fails until the transaction ends (failOnDataLoss=true)"
                if first.verdict is Verdict.WILL_FAIL
                else "a batch that was planned beyond it fails until the transaction ends, and one that is planned now may begin "
                "at that offset again"
            )
            return (
                f"topic {topic}: the checkpoint is beyond an open transaction in partition {partitions} (committed records of "
                f"{first.partition[1]} end at {end:,}): the query read uncommitted records before, or a broker lost some; {what}"
            )
        case "not planned":
            then = (
                f"Spark stops again (failOnDataLoss=true), whatever the topic has; {_DROP_IT}"
                if if_gone is Verdict.WILL_FAIL
                else "Spark only logs a warning, and reads it from its beginning in the next batch"
            )
            return (
                f"topic {topic}: the batch to be run again was planned without partition {partitions}, which was gone then, or "
                f"not named by the query; {then}"
            )
        case "planned backwards":
            then = (
                f"Spark stops again (failOnDataLoss=true), whatever the topic has; {_DROP_IT}"
                if if_gone is Verdict.WILL_FAIL
                else "Spark only logs a warning, and continues at that end"
            )
            return (
                f"topic {topic}: the batch to be run again was planned while the log of partition {partitions} ended before the "
                f"offsets that were read: it was recreated, or cut by an unclean election; {then}"
            )
        case "not named":
            return (
                f"topic {topic}: partition {partitions} is in the checkpoint, and the query does not name it any more: what was "
                f"unread there is not read; {spark}"
            )
        case "not compared":
            return (
                f"topic {topic}: {seen.not_compared[topic]}: whether it is the topic that the checkpoint has read is not known; "
                "run the guard again, with more time"
            )
        case "not read":
            return (
                f"topic {topic}: the next record of partition {partitions} could not be read, in time or before it was deleted: "
                "whether the offset is still there, and for how long, is not known; run the guard again, with more time"
            )
        case "offsets deleted":
            return f"topic {topic}: {about}{lost:,} records are gone already (by partition {each}){why}; {spark}"
        case _:
            if not lost:
                return f"topic {topic}: partition {partitions} is new and will be read from offset 0"
            return (
                f"topic {topic}: partition {partitions} is new, and its first {about}{lost:,} records are gone already "
                f"(by partition {each}){why}; {spark}"
            )


def _list(words: list[str]) -> str:
    more = len(words) - _NAMED
    return ", ".join(words[:_NAMED]) + (f" and {more} more" if more > 0 else "")
