"""The end of the newest batch that the event log reports: exact where the table's newest commit is of that batch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset, KafkaOffset
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.lakeflow.evidence import FlowEvidence, KafkaState, SourceEvidence
from airflow_ckpt_provider.lakeflow.found_position import (
    BY_PROGRESS,
    FoundPosition,
    Terms,
    between,
    lost_of_kafka,
    of_files,
    of_state,
    of_target,
    offsets_json,
    repeats,
    versions,
    written_until,
)
from airflow_ckpt_provider.lakeflow.histories import Commit
from airflow_ckpt_provider.units import format_time
from airflow_ckpt_provider.verdict import Verdict


def by_progress(flow: FlowEvidence, number: int, source: SourceEvidence, terms: Terms) -> FoundPosition | None:
    """Find a position by the newest reported batch; ``None`` where its offset is not reported, or is no position."""
    progress = flow.progress
    if progress is None or number >= len(progress.sources):
        return None
    reported = progress.sources[number]
    if not isinstance(reported.end, KafkaOffset | DeltaOffset):
        return None
    at = f"batch {progress.batch_id} ended there, reported {format_time(progress.time)}"
    judgements = [Judgement(Verdict.SAFE, f"{reported.description or source.name}: {at}")]
    own = own_commits(flow)
    judgements += of_target(flow, progress.time, terms, after=own[0].version if own else None) + of_state(flow, terms)
    exact = _is_newest(flow, judgements)
    if isinstance(reported.end, KafkaOffset):
        options, again, more = _kafka_end(reported.end, source, exact, progress.time + terms.before)
    else:
        options, again, more = _delta_end(flow, reported.end, source, exact, terms)
    judgements += more
    if options:
        judgements.append(repeats(flow, again, terms))
    return FoundPosition(flow.flow, source.name, reported.end.kind, options, BY_PROGRESS, tuple(judgements), again)


def own_commits(flow: FlowEvidence) -> list[Commit]:
    """Return the commits of the flow's checkpoint, newest first, where the table's history names it."""
    if flow.progress is None or flow.history is None or not flow.progress.query_id:
        return []
    return [commit for commit in flow.history.commits if commit.query_id == flow.progress.query_id]


def _is_newest(flow: FlowEvidence, judgements: list[Judgement]) -> bool:
    """Whether the reported batch is the newest that the table has; adds what was seen."""
    progress, history = flow.progress, flow.history
    if progress is None or history is None or not progress.query_id or progress.batch_id is None:
        return False
    own = own_commits(flow)
    epochs = [commit.epoch for commit in own if commit.epoch is not None]
    if not epochs:
        judgements.append(
            Judgement(
                Verdict.SAFE,
                f"the history of {flow.table} names no batch of the flow: later batches than the reported one may be written",
            )
        )
        return False
    strangers = [
        commit
        for commit in history.commits
        if commit.version > own[0].version and commit.query_id and commit.query_id not in flow.other_queries
    ]
    if strangers:
        versions = ", ".join(str(commit.version) for commit in strangers[:5])
        judgements.append(
            Judgement(
                Verdict.UNKNOWN,
                f"{flow.table}: version {versions} was written since by another checkpoint, which may be one of this flow",
            )
        )
        return False
    if max(epochs) > progress.batch_id:
        judgements.append(
            Judgement(
                Verdict.SAFE,
                f"{flow.table} has batch {max(epochs)} of the flow, and the newest reported one is {progress.batch_id}",
            )
        )
        return False
    judgements.append(
        Judgement(
            Verdict.SAFE, f"{flow.table} has no batch of the flow after {progress.batch_id}: the position is exact"
        )
    )
    return True


def _kafka_end(
    end: KafkaOffset, source: SourceEvidence, exact: bool, time: datetime
) -> tuple[dict[str, str], dict[str, int] | None, list[Judgement]]:
    start = {topic: dict(partitions) for topic, partitions in end.partitions.items()}
    more: list[Judgement] = []
    if source.kafka is None:
        more.append(
            Judgement(
                Verdict.UNKNOWN,
                "Kafka was not asked: whether it still has these offsets, and whether partitions were added, is not known",
            )
        )
        return {"startingOffsets": offsets_json(start)}, {} if exact else None, more
    added = [
        f"{topic}-{partition}"
        for topic, partitions in source.kafka.latest.items()
        for partition in partitions
        if partition not in start.setdefault(topic, {})
    ]
    for each in added:
        topic, _, partition = each.rpartition("-")
        start[topic][int(partition)] = -2
    if added:
        more.append(Judgement(Verdict.SAFE, f"added since, and read from the beginning: {', '.join(added)}"))
    more += lost_of_kafka(start, source.kafka.earliest, source.kafka.latest)
    more += _made_again(end, source.kafka, time)
    again = 0 if exact else between(start, source.kafka.latest)
    return {"startingOffsets": offsets_json(start)}, {"offsets": again} if again else {}, more


def _made_again(end: KafkaOffset, kafka: KafkaState, time: datetime) -> list[Judgement]:
    """A topic that was dropped and recreated has other records at the offsets that were read, and newer ones."""
    then = kafka.at(time)
    return [
        Judgement(
            Verdict.UNKNOWN,
            f"{topic}-{partition}: records before {offset} are newer than the batch that read them: it may be another topic than "
            "the one that was read",
        )
        for topic, partitions in end.partitions.items()
        for partition, offset in partitions.items()
        if then.get(topic, {}).get(partition, offset) < offset <= kafka.latest.get(topic, {}).get(partition, -1)
    ]


def _delta_end(
    flow: FlowEvidence, end: DeltaOffset, source: SourceEvidence, exact: bool, terms: Terms
) -> tuple[dict[str, str], dict[str, int] | None, list[Judgement]]:
    version, history = end.table_version, source.history
    if end.initial_snapshot:
        reason = (
            f"the flow was still reading the first snapshot of {source.name} (version {version}): no option begins within "
            "it, and a reset reads all of it again"
        )
        return {}, None, [Judgement(Verdict.UNKNOWN, reason)]
    options = {"startingVersion": str(version)}
    if history is None:
        reason = f"the history of {source.name} was not read: whether it still has version {version} is not known"
        return options, {} if exact and end.index < 0 else None, [Judgement(Verdict.UNKNOWN, reason)]
    if history.table_id != end.table_id:
        told = (
            f"it is {history.table_id}, and the flow read {end.table_id}"
            if history.table_id
            else "its id is not reported"
        )
        reason = f"{source.name} may be another table than the one that was read ({told}): its versions are others"
        return {}, None, [Judgement(Verdict.UNKNOWN, reason)]
    found = _kept_versions(source, version)
    if exact:
        part = [commit for commit in history.commits if commit.version == version] if end.index >= 0 else []
    else:
        part = written_until(flow, history.since(_time_of(history.commits, version)), version, terms)
    return options, versions(part), found


def _kept_versions(source: SourceEvidence, version: int) -> list[Judgement]:
    commits = source.history.commits if source.history else ()
    if not commits:
        return [Judgement(Verdict.UNKNOWN, f"the history of {source.name} is empty")]
    oldest, newest = commits[-1].version, commits[0].version
    if version < oldest:
        kept = source.history is not None and source.history.complete
        verdict = Verdict.WILL_LOSE if kept else Verdict.UNKNOWN
        return [Judgement(verdict, f"{source.name}: version {version} is needed, and its history begins at {oldest}")]
    if version > newest:
        return [
            Judgement(
                Verdict.WILL_FAIL,
                f"{source.name}: everything up to version {newest} was read, and Delta refuses to begin at {version} before "
                "it is committed: reset after the next commit",
            )
        ]
    return [of_files(source.name, commits, version)]


def _time_of(commits: Sequence[Commit], version: int) -> datetime:
    return min((c.time for c in commits if c.version >= version), default=datetime.max.replace(tzinfo=UTC))
