"""Is a topic still the one that a checkpoint was reading? What a backup records of it, and how that is compared.

A topic that was deleted and recreated under its name has new records under old offsets. Once it has grown past the checkpoint's
offsets Spark cannot tell. Its id (KIP-516) shows it, and where brokers have none, the timestamps of records already read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_ckpt_provider.errors import DamagedBackupError
from airflow_ckpt_provider.guards.kafka_log import LogEnds, Partition, Record, Topic
from airflow_ckpt_provider.units import zoned_time

KIND = "kafka"
#: The clocks of Spark and of who takes backups may differ by this much.
_CLOCKS = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A partition when a backup was taken.

    :param earliest: its first offset then.
    :param latest: its end then.
    :param offset: offset of the last record that the checkpoint had read; ``None`` where it was gone already.
    :param timestamp_ms: the record's timestamp.
    """

    earliest: int
    latest: int
    offset: int | None = None
    timestamp_ms: int | None = None

    @property
    def tells(self) -> bool:
        """Whether a record can be compared with it."""
        return self.offset is not None and self.timestamp_ms is not None


def _fingerprint(earliest: int, latest: int, offset: int | None = None, timestamp_ms: int | None = None) -> Fingerprint:
    if not type(earliest) is type(latest) is int or {type(offset), type(timestamp_ms)} - {int, type(None)}:
        raise ValueError("an offset is no number")
    return Fingerprint(earliest, latest, offset, timestamp_ms)


@dataclass(frozen=True, slots=True)
class KnownTopics:
    """What a backup recorded of the topics of a source.

    :param at: when.
    :param ids: topic -> id.
    :param fingerprints: partition -> what it was.
    :param others: topic -> the id of another topic under its name, and since when backups have seen that one.
    """

    at: datetime | None = None
    ids: Mapping[str, str] = field(default_factory=dict)
    fingerprints: Mapping[Partition, Fingerprint] = field(default_factory=dict)
    others: Mapping[str, tuple[str, datetime]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What the manifest of a backup holds under ``facts.sources.<source>``."""
        topics: dict[str, dict[str, Any]] = {}
        for (topic, number), f in sorted(self.fingerprints.items()):
            of_topic = topics.setdefault(topic, {"topic_id": self.ids.get(topic), "partitions": {}})
            of_topic["partitions"][str(number)] = [f.earliest, f.latest, f.offset, f.timestamp_ms]
        for topic, (other, since) in self.others.items():
            topics[topic]["other"] = {"topic_id": other, "since": since.isoformat()}
        return {"kind": KIND, "at": self.at.isoformat() if self.at else None, "topics": topics}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> KnownTopics:
        """Read it back; what is missing, or of another kind of source, is simply not known.

        :raises DamagedBackupError: it is not what a backup writes.
        """
        if value.get("kind") != KIND:
            return cls()
        try:
            return cls._of(value)
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            why = f"({type(e).__name__}: {e}): {value!r:.200}"
            raise DamagedBackupError(
                f"what a backup recorded of a Kafka source cannot be read, or is forged {why}",
                hint="choose another backup (`airflow-ckpt backups REPOSITORY`)",
            ) from e

    @classmethod
    def _of(cls, value: Mapping[str, Any]) -> KnownTopics:
        ids: dict[str, str] = {}
        fingerprints: dict[Partition, Fingerprint] = {}
        others: dict[str, tuple[str, datetime]] = {}
        for topic, of_topic in value.get("topics", {}).items():
            if of_topic.get("topic_id"):
                ids[topic] = of_topic["topic_id"]
            for number, values in of_topic.get("partitions", {}).items():
                fingerprints[topic, int(number)] = _fingerprint(*values)
            if other := of_topic.get("other"):
                others[topic] = other["topic_id"], zoned_time(other["since"])
        at = value.get("at")
        return cls(zoned_time(at) if at else None, ids, fingerprints, others)

    @classmethod
    def merged(cls, several: Sequence[KnownTopics]) -> KnownTopics:
        """What was recorded of several sources as one, topic by topic; of a topic that two of them read, what the first has."""
        ids: dict[str, str] = {}
        fingerprints: dict[Partition, Fingerprint] = {}
        others: dict[str, tuple[str, datetime]] = {}
        for known in reversed(several):
            ids |= known.ids
            fingerprints |= known.fingerprints
            others |= known.others
        return cls(max((known.at for known in several if known.at), default=None), ids, fingerprints, others)

    def continued(self, now: KnownTopics, *, recreated: Collection[str], planned: datetime | None) -> KnownTopics:
        """What the next backup records: of each topic what the stream has read.

        A stream that is down has not read a topic that was recreated meanwhile, whatever a backup of it sees. It has
        read the other topic once a backup has seen that one, and a batch was planned after that.

        :param now: what the next backup sees; topics that do not exist are left out.
        :param recreated: topics that are not those of this record.
        :param planned: when the batch was planned that the next backup pins; ``None``: not known.
        """
        ids, fingerprints, others = dict(now.ids), dict(now.fingerprints), {}
        there = {topic for topic, _ in now.fingerprints}
        for topic in {topic for topic, _ in self.fingerprints}:
            other = now.ids.get(topic)
            since = now.at
            if topic in self.others and self.others[topic][0] == other:
                since = self.others[topic][1]
                if planned is not None and planned > since + _CLOCKS:
                    continue
            if topic in there and topic not in recreated:
                continue
            ids = {t: i for t, i in ids.items() if t != topic} | {t: i for t, i in self.ids.items() if t == topic}
            kept = {p: f for p, f in self.fingerprints.items() if p[0] == topic}
            fingerprints = {p: f for p, f in fingerprints.items() if p[0] != topic} | kept
            if other and since:
                others[topic] = other, since
            elif topic in self.others:
                others[topic] = self.others[topic]
        return replace(now, ids=ids, fingerprints=fingerprints, others=others)

    def to_compare(self, topics: Mapping[str, Topic], ends: Mapping[Partition, LogEnds]) -> dict[Partition, int]:
        """Which records have to be read to compare: those of topics without an id that are still there."""
        found = {}
        for partition, f in self.fingerprints.items():
            topic = topics.get(partition[0])
            if topic is None or (topic.topic_id and partition[0] in self.ids) or f.offset is None or not f.tells:
                continue
            log = ends.get(partition)
            if log is not None and log.earliest <= f.offset < log.latest:
                found[partition] = f.offset
        return found

    def recreated(self, topic: Topic, read: Mapping[Partition, Record]) -> str | None:
        """Say why a topic is not the one that was recorded; ``None`` if nothing shows that it is not.

        :param topic: the topic now.
        :param read: the records that :meth:`to_compare` asked for.
        """
        before = self.ids.get(topic.name)
        if before and topic.topic_id:
            if before == topic.topic_id:
                return None
            return f"its id is {topic.topic_id}, at the backup it was {before}"
        for partition, record in read.items():
            f = self.fingerprints.get(partition)
            if f is None or partition[0] != topic.name or record.offset != f.offset:
                continue
            if record.timestamp_ms != f.timestamp_ms:
                return (
                    f"the record at offset {f.offset} of partition {partition[1]} is of {_moment(record.timestamp_ms)}, "
                    f"at the backup it was of {_moment(f.timestamp_ms)}"
                )
        return None


def compare_topics(
    read: Callable[[Mapping[Partition, tuple[int, int]]], Mapping[Partition, tuple[Record, ...] | None]],
    known: KnownTopics,
    topics: Mapping[str, Topic],
    ends: Mapping[Partition, LogEnds],
) -> tuple[dict[str, str], dict[str, str]]:
    """Compare topics with what was recorded of them.

    :param read: how records are read, as :meth:`~.kafka_log.KafkaCluster.read`.
    :param known: what was recorded.
    :param topics: the topics now.
    :param ends: both ends of their logs.
    :return: the topics that are not those that were recorded, and why; and those of which none of the records was read
        that would show it, and which.
    """
    wanted = known.to_compare(topics, ends)
    answers = read({p: (o, o) for p, o in wanted.items()}) if wanted else {}
    found = {p: records[0] for p, records in answers.items() if records}
    recreated = {name: why for name, topic in topics.items() if (why := known.recreated(topic, found))}
    compared = {p[0] for p, records in answers.items() if records is not None}
    unread: dict[str, str] = {}
    for (name, number), offset in wanted.items():
        if name not in compared:
            unread.setdefault(
                name, f"record {offset:,} of partition {number}, which a backup recorded, could not be read"
            )
    return recreated, unread


def _moment(ms: int | None) -> str:
    return "no time" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat()
