"""The guard of Kafka sources: reads the live topics in a few batched calls, and judges."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.checkpoint.kafka_start import FILE, parse_kafka_start
from airflow_ckpt_provider.checkpoint.offsets import SourceOffset
from airflow_ckpt_provider.checkpoint.source_offsets import KafkaOffset, Offset
from airflow_ckpt_provider.errors import RefusedError, UnreadableLogError
from airflow_ckpt_provider.guards.kafka_client import TIMEOUT, KafkaClient
from airflow_ckpt_provider.guards.kafka_identity import KIND, Fingerprint, KnownTopics, compare_topics
from airflow_ckpt_provider.guards.kafka_log import Partition, TopicConfig
from airflow_ckpt_provider.guards.kafka_named import NamedTopics
from airflow_ckpt_provider.guards.kafka_retention import Movement, TimeToLoss, retention_needed_ms, time_to_loss
from airflow_ckpt_provider.guards.kafka_topics import read_topics
from airflow_ckpt_provider.guards.kafka_verdicts import PartitionVerdict, Seen, judge_partitions, reasons
from airflow_ckpt_provider.guards.registry import GuardedSource, GuardSettings, not_guarded
from airflow_ckpt_provider.guards.report import Judgement, PartReport, SourceReport
from airflow_ckpt_provider.source_settings import SourceSettings
from airflow_ckpt_provider.units import format_duration
from airflow_ckpt_provider.verdict import Verdict

#: Where retention is by size, the estimate has to be this many times the time that is needed.
_MARGIN = 2.0
_NOT_KNOWN = KnownTopics()
#: Of which partitions it is asked for how long they will have what is read next.
_THERE = frozenset({"fine", "partition added", "not read", "not compared"})
_NO_SETTINGS = "the broker did not report the settings of the topic"
_DELETIONS = "delete.retention.ms"
#: ``kafka.isolation.level`` of a query.
ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
_NO_START = (
    "{}/0 is missing: from which offsets the first batch reads is not recorded. Spark evaluates the reader's startingOffsets "
    "again, by default the end of the topics: records that the batch was planned to read are lost then. Restore the file from a "
    "backup, or start with a new checkpoint and startingOffsets"
)


class KafkaGuard:
    """Judges Kafka sources.

    :param settings: its own options, under ``kafka``: ``config`` (librdkafka's settings), ``timeout`` (seconds for one
        poll, by default 10), ``isolation_level`` (the query's ``kafka.isolation.level``), ``warn_only`` (a retention that
        is too short for the planned downtime is a warning, and no verdict), ``options`` (source -> options of the query's
        reader that matter here: ``subscribePattern``, ``subscribe``, ``assign``). Without ``config`` every answer is ``UNKNOWN``.
    :param cluster: the cluster, where it is open already.
    :raises RefusedError: a setting is not known, or not of its form.
    """

    kind = KIND

    def __init__(self, settings: GuardSettings, cluster: KafkaClient | None = None) -> None:
        self._settings = settings
        told = SourceSettings(
            KIND,
            settings.options.get(KIND, {}),
            single=("config", "timeout", "isolation_level", "warn_only"),
            mappings=("options",),
        )
        timeout = told.seconds("timeout") or TIMEOUT
        self._cluster = cluster
        if cluster is None and (config := told.get("config")):
            if not isinstance(config, Mapping):
                raise RefusedError(
                    f"{KIND}.config is {config!r}, and not settings of librdkafka by their names",
                    hint="give a mapping, or from a shell a file of them: --kafka-config FILE",
                )
            self._cluster = KafkaClient(config, timeout=timeout)
        self._committed = told.one_of("isolation_level", ISOLATION_LEVELS) == "read_committed"
        self._warn_only = told.is_on("warn_only")
        self._options = told.reader_options()

    @property
    def servers(self) -> str:
        """``bootstrap.servers`` of the cluster that is asked; empty without one."""
        return self._cluster.servers if self._cluster else ""

    def recognises(self, source: GuardedSource) -> bool:
        """Whether its offsets are those of Kafka's source."""
        return isinstance(source.start.offset or source.end, KafkaOffset)

    def judge(self, source: GuardedSource) -> SourceReport:
        """Read the topics of a source.

        :raises SourceError: the broker could not be asked in time.
        """
        if self._cluster is None:
            return not_guarded(
                source,
                "no Kafka connection was given: --kafka-config FILE (kafka_config_id). Whether the topics still have its offsets "
                "is not known (the native connector of Azure Event Hubs writes offsets of the same form)",
            )
        try:
            source = _with_start(source)
        except FileNotFoundError:
            return not_guarded(source, _NO_START.format(source.log))
        except UnreadableLogError as e:
            unreadable = f"{source.log}/{e.message}; the query fails at its start"
            return SourceReport(source.name, KIND, (Judgement(Verdict.WILL_FAIL, unreadable),), lost=None)
        start, planned = _positions(source)
        known = KnownTopics.from_json(source.known)
        cluster = self._cluster.again()
        query = NamedTopics.of(self._options.get(source.name, {}))
        doubts = [Judgement(Verdict.UNKNOWN, query.doubt)] if query.doubt else []
        named = query.matching(cluster.topic_names() if query.pattern else ())
        seen = read_topics(cluster, start, source, known, also=named, committed=self._committed)
        found = judge_partitions(
            start,
            planned,
            seen,
            if_gone=self._settings.if_gone,
            by_pattern=query.pattern is not None or bool(query.doubt),
            also=named,
            assigned=query.assigned,
            left_out=query.left_out(start),
        )
        found = [_with_time(p, seen, known) for p in found]
        judgements = [Judgement(v, text) for v, text in reasons(found, seen, if_gone=self._settings.if_gone)]
        judgements += [*doubts, *_notes(seen, found, source)]
        retention, short = self._retention(found, seen)
        lost = [p.lost for p in found]
        left = [p.left.at_least for p in found if p.left and p.left.at_least is not None]
        left += [0.0 for p in found if p.code in ("offsets deleted", "partition added") and p.lost]
        return SourceReport(
            source=source.name,
            kind=KIND,
            judgements=(*judgements, *short),
            parts=tuple(PartReport(p.name, p.verdict, p.facts(seen)) for p in found),
            lost=None if any(n is None for n in lost) else sum(n or 0 for n in lost),
            seconds_left=min(left, default=None),
            facts={
                "servers": self._cluster.servers,
                "lost_exact": not any(p.lost and p.partition[0] in seen.holey for p in found),
                "seconds_left_estimate": _least(p.left.estimate for p in found if p.left),
                "topics": retention,
            },
        )

    def _retention(self, found: list[PartitionVerdict], seen: Seen) -> tuple[dict[str, Any], list[Judgement]]:
        """What each topic keeps, and whether that is enough for the planned downtime."""
        facts: dict[str, Any] = {}
        short: list[Judgement] = []
        for name, topic in seen.topics.items():
            config = seen.configs.get(name)
            of_topic = [p for p in found if p.partition[0] == name and p.left is not None]
            facts[name] = {"topic_id": topic.topic_id, **_settings_of(config)}
            if self._settings.max_downtime is None:
                continue
            needed = self._settings.max_downtime + self._settings.buffer
            unread = [
                r.timestamp_ms
                for p in of_topic
                if (r := seen.at_offset.get(p.partition)) and r.timestamp_ms is not None
            ]
            enough = retention_needed_ms(needed, oldest_unread_ms=min(unread, default=None), now_ms=seen.now_ms)
            judged = self._short(name, of_topic, needed, enough) or self._deletions(name, config, needed)
            facts[name] |= {"needed_retention_ms": enough, "retention_is_short": judged is not None}
            if judged:
                short.append(judged)
        return facts, short

    def _short(self, topic: str, found: list[PartitionVerdict], needed: float, enough: int) -> Judgement | None:
        lefts = [p.left for p in found if p.left is not None]
        bounded = [left.at_least for left in lefts if left.at_least is not None]
        plan = f"the planned downtime of {format_duration(self._settings.max_downtime or 0)}"
        if self._settings.buffer:
            plan += f" and its buffer of {format_duration(self._settings.buffer)}"
        if bounded and min(bounded) < needed:
            text = (
                f"topic {topic}: the resume point is guaranteed only for {format_duration(min(bounded))}, "
                f"less than {plan}; "
                f"retention.ms={enough} ({format_duration(enough / 1000)}) would do"
            )
            return Judgement(Verdict.SAFE if self._warn_only else self._settings.if_gone, text)
        by_size = [left for left in lefts if left.at_least is None and left.limited_by != "nothing"]
        estimates = [left.estimate for left in by_size]
        if by_size and not all(e is not None and e > _MARGIN * needed for e in estimates):
            about = _least(estimates)
            words = "cannot be determined" if about is None else f"is about {format_duration(about)} by estimate"
            text = (
                f"topic {topic}: {by_size[0].reason}; how long the resume point will be there {words}, against {plan}"
            )
            return Judgement(Verdict.SAFE if self._warn_only else Verdict.UNKNOWN, text)
        return None

    def _deletions(self, topic: str, config: TopicConfig | None, needed: float) -> Judgement | None:
        """Whether a compacted topic keeps what is deleted meanwhile for as long as the query is down."""
        if config is None or not config.compacts:
            return None
        if _DELETIONS in config.unreported:
            kept = f"the broker does not report {_DELETIONS}, for which the topic keeps deletions (records without a value)"
        elif needed * 1000 > config.delete_retention_ms:
            kept = (
                f"keeps deletions (records without a value) for {format_duration(config.delete_retention_ms / 1000)} "
                f"({_DELETIONS}), less than the planned downtime and its buffer"
            )
        else:
            return None
        text = f"topic {topic} is compacted, and {kept}: the query may never see them, and keeps rows that are deleted"
        return Judgement(Verdict.SAFE if self._warn_only else Verdict.UNKNOWN, text)


def _with_start(source: GuardedSource) -> GuardedSource:
    """A source with the offsets from which its first batch reads, as long as that one is not committed.

    :raises FileNotFoundError: they are not recorded.
    :raises UnreadableLogError: the record is damaged.
    """
    if source.start.offset is not None:
        return source
    if source.log is None:
        raise FileNotFoundError(FILE)
    offset = parse_kafka_start(source.log.read(FILE), path=FILE)
    return dataclasses.replace(source, start=SourceOffset(source.name, offset))


def _positions(source: GuardedSource) -> tuple[dict[Partition, int], dict[Partition, int] | None]:
    start = _flat(source.start.offset)
    planned = _flat(source.end) if source.end is not None else None
    # A partition that only the plan knows was new to the batch: it begins at its earliest offset, which was 0.
    return {**dict.fromkeys(planned or {}, 0), **start}, planned


def _flat(offset: Offset | None) -> dict[Partition, int]:
    if not isinstance(offset, KafkaOffset):
        return {}
    return {(topic, n): o for topic, partitions in offset.partitions.items() for n, o in partitions.items()}


def _with_time(p: PartitionVerdict, seen: Seen, known: KnownTopics) -> PartitionVerdict:
    config = seen.configs.get(p.partition[0])
    if p.code not in _THERE or p.ends is None:
        return p
    if config is None:
        return dataclasses.replace(p, left=TimeToLoss(None, None, "retention.ms", _NO_SETTINGS))
    left = time_to_loss(
        p.ends.earliest if p.offset is None else p.offset,
        p.ends,
        config,
        now_ms=seen.now_ms,
        at_offset=seen.at_offset.get(p.partition),
        oldest=seen.oldest.get(p.partition),
        newest_ms=seen.newest.get(p.partition),
        movement=_movement(p, known, seen.now_ms),
    )
    return dataclasses.replace(p, left=left)


def _movement(p: PartitionVerdict, known: KnownTopics, now_ms: int) -> Movement | None:
    before = known.fingerprints.get(p.partition)
    if before is None or known.at is None or p.ends is None:
        return None
    return Movement(p.ends.earliest - before.earliest, now_ms / 1000 - known.at.timestamp())


def _notes(seen: Seen, found: list[PartitionVerdict], source: GuardedSource) -> list[Judgement]:
    """What is worth knowing, and what a compacted topic may not show any more."""
    notes = []
    waiting = sum(p.ends.latest - p.ends.stable for p in found if p.ends)
    if waiting:
        notes.append(Judgement(Verdict.SAFE, f"{waiting:,} offsets wait for the end of a transaction"))
    for name, config in seen.configs.items():
        if not config.compacts:
            continue
        unread = any(p.partition[0] == name and p.ends and (p.offset or 0) < p.ends.stable for p in found)
        down_ms = seen.now_ms - source.logged_at.timestamp() * 1000 if source.logged_at else 0
        if unread and down_ms > config.delete_retention_ms:
            late = (
                f"topic {name} is compacted, and the query has planned no batch for {format_duration(down_ms / 1000)}: deletions "
                "(records without a value) that it has not read may be gone (delete.retention.ms is "
                f"{format_duration(config.delete_retention_ms / 1000)}), and it keeps rows that are deleted"
            )
            notes.append(Judgement(Verdict.UNKNOWN, late))
        else:
            notes.append(Judgement(Verdict.SAFE, f"topic {name} is compacted: offsets without a record are no loss"))
    notes += [
        Judgement(Verdict.SAFE, f"topic {name} is tiered: how soon its remote segments are deleted is not known")
        for name, config in seen.configs.items()
        if config.tiered
    ]
    return notes


def _settings_of(config: TopicConfig | None) -> dict[str, Any]:
    if config is None:
        return {}
    return {
        "retention_ms": _reported(config, "retention.ms", config.retention_ms),
        "retention_is_inherited": config.retention_is_inherited,
        "retention_bytes": _reported(config, "retention.bytes", config.retention_bytes),
        "cleanup_policy": ",".join(sorted(config.cleanup)),
        "segment_ms": config.segment_ms,
        "tiered": config.tiered,
    }


def _reported(config: TopicConfig, name: str, value: int | None) -> int | None:
    """A limit as Kafka writes it, -1 for none; ``None`` if the broker did not report it."""
    return None if name in config.unreported else -1 if value is None else value


def _least(values: Iterable[float | None]) -> float | None:
    return min((v for v in values if v is not None), default=None)


def observe_kafka(
    cluster: KafkaClient,
) -> Callable[[Iterable[SourceOffset], Mapping[str, Mapping[str, Any]], datetime | None], dict[str, Any]]:
    """Return what a backup calls to record the identity of the topics that its checkpoint reads.

    The answer is kept in the manifest, under ``facts.sources``: for each Kafka source the topics' ids, both ends of each
    partition, and offset and timestamp of the last record that was read.
    """

    def observe(
        sources: Iterable[SourceOffset], recorded: Mapping[str, Mapping[str, Any]], planned: datetime | None
    ) -> dict[str, Any]:
        return {
            s.source: record(
                cluster.again(),
                s.offset,
                before=KnownTopics.from_json(recorded.get(s.source, {})),
                planned=planned,
            ).to_json()
            for s in sources
            if isinstance(s.offset, KafkaOffset)
        }

    return observe


def record(
    cluster: KafkaClient,
    offset: Offset | None,
    *,
    before: KnownTopics = _NOT_KNOWN,
    planned: datetime | None = None,
) -> KnownTopics:
    """Read the topics of an offset and return what distinguishes them from others.

    :param before: what the backup before has recorded. A topic that was recreated since then has not been read yet, as long
        as the stream is down: it is not what the offset belongs to.
    :param planned: when the batch of the offset was planned; ``None``: not known.
    :raises SourceError: the broker could not be asked.
    """
    positions = _flat(offset)
    topics = cluster.topics({topic for topic, _ in positions})
    ends = cluster.ends([p for p in positions if p[0] in topics and p[1] in topics[p[0]].partitions])
    last = {p: (o - 1, o - 1) for p, o in positions.items() if p in ends and ends[p].earliest < o <= ends[p].latest}
    read = cluster.read(last)
    fingerprints = {}
    for p, log in ends.items():
        records = read.get(p)
        same = records[0] if records and records[0].offset == positions[p] - 1 else None
        fingerprints[p] = Fingerprint(
            log.earliest, log.latest, same.offset if same else None, same.timestamp_ms if same else None
        )
    ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id}
    now = KnownTopics(datetime.now(UTC), ids, fingerprints)
    names = {topic for topic, _ in positions}
    before = dataclasses.replace(before, fingerprints={p: f for p, f in before.fingerprints.items() if p[0] in names})
    recreated, unread = compare_topics(cluster.read, before, topics, ends)
    return before.continued(now, recreated={*recreated, *unread}, planned=planned)
