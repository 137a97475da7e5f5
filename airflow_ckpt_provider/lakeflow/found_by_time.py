"""Positions by times: of files that were read, or of the start of the newest update that ran to its end."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.lakeflow.evidence import DELTA, FILES, KAFKA, FlowEvidence, SourceEvidence
from airflow_ckpt_provider.lakeflow.found_position import (
    BY_FILES,
    BY_TIME,
    FoundPosition,
    Terms,
    between,
    iso,
    late,
    lost_of_kafka,
    of_files,
    of_state,
    of_target,
    offsets_json,
    repeats,
    versions,
    words,
    written_until,
)
from airflow_ckpt_provider.units import format_time
from airflow_ckpt_provider.verdict import Verdict


def by_files(flow: FlowEvidence, source: SourceEvidence, terms: Terms) -> FoundPosition | None:
    """Find a position by the files that were read; ``None`` where that is not known."""
    state = source.files
    if state is None or not state.read or state.newest is None:
        return None
    # A file that is not listed yet is newer than this: it appears within the margin.
    listed = state.newest - terms.before
    known = min(filter(None, (state.oldest_unread, listed)))
    # modifiedAfter takes files after it, not at it.
    after = known - timedelta(milliseconds=1)
    again = state.read_after(after)
    which = (
        "that of the oldest unread one" if known == state.oldest_unread else f"{words(terms.before)} before the newest"
    )
    judgements = [
        Judgement(
            Verdict.SAFE, f"{source.name}: {state.read} files are read, {state.unread} are not; the time is {which}"
        )
    ]
    judgements += late(source, terms, "a file that appears", "its modification time")
    # A full refresh begins a new file state, so only what came after the newest write matters.
    wrote = flow.history.newest_write if flow.history else None
    judgements += of_target(replace(flow, emptied=None), wrote.time if wrote else None, terms) + of_state(flow, terms)
    judgements.append(repeats(flow, {"files": again} if again else {}, terms))
    options = {"modifiedAfter": iso(after)}
    counted = {"files": again} if again else {}
    return FoundPosition(flow.flow, source.name, FILES, options, BY_FILES, tuple(judgements), counted)


def by_time(flow: FlowEvidence, source: SourceEvidence, terms: Terms) -> FoundPosition | None:
    """Find a position by the newest update that ran to its end; ``None`` if there is none."""
    if flow.completed is None or source.kind not in (KAFKA, DELTA, FILES):
        return None
    since = flow.completed - terms.before
    judgements = [
        Judgement(
            Verdict.SAFE,
            f"{source.name}: what was there at {format_time(flow.completed)} is in the table, for the update that "
            f"was started then ran to its end; the position is {words(terms.before)} before",
        )
    ]
    judgements += of_target(flow, flow.completed, terms) + of_state(flow, terms)
    options: dict[str, str]
    again: dict[str, int] | None
    if source.kind == DELTA:
        options, again, more = _delta_at(flow, source, since, terms)
    elif source.kind == KAFKA:
        options, again, more = _kafka_at(source, since, terms)
    else:
        options, again = {"modifiedAfter": iso(since)}, None
        more = late(source, terms, "a file that appears", "its modification time")
    judgements += more
    if options:
        judgements.append(repeats(flow, again, terms))
    return FoundPosition(flow.flow, source.name, source.kind, options, BY_TIME, tuple(judgements), again)


def _delta_at(
    flow: FlowEvidence, source: SourceEvidence, since: datetime, terms: Terms
) -> tuple[dict[str, str], dict[str, int] | None, list[Judgement]]:
    history = source.history
    if history is None or not history.commits:
        return {}, None, [Judgement(Verdict.UNKNOWN, f"the history of {source.name} was not read")]
    oldest = history.commits[-1]
    if oldest.version == 0 and flow.completed and oldest.time > flow.completed:
        reason = (
            f"{source.name} was made at {iso(oldest.time)}, after that: it is another table than the one that was read"
        )
        return {}, None, [Judgement(Verdict.UNKNOWN, reason)]
    fresh = history.since(since)
    if not fresh:
        newest = history.commits[0]
        reason = (
            f"{source.name} has no version since {iso(since)}: all of it was read, and Delta refuses to begin at "
            f"version {newest.version + 1} before it is committed: reset after the next commit"
        )
        return {"startingVersion": str(newest.version + 1)}, {}, [Judgement(Verdict.WILL_FAIL, reason)]
    version = min(commit.version for commit in fresh)
    more = [of_files(source.name, history.commits, version)]
    if len(fresh) == len(history.commits) and oldest.version > 0:
        more.append(
            Judgement(
                Verdict.UNKNOWN,
                f"the history of {source.name} begins at version {oldest.version}, {iso(oldest.time)}: older unread ones may be "
                "gone",
            )
        )
    return {"startingVersion": str(version)}, versions(written_until(flow, fresh, version, terms)), more


def _kafka_at(
    source: SourceEvidence, since: datetime, terms: Terms
) -> tuple[dict[str, str], dict[str, int] | None, list[Judgement]]:
    if source.kafka is None:
        milliseconds = str(int(since.timestamp() * 1000))
        reason = "Kafka was not asked: which offsets that time means, and whether it still has them, is not known"
        return {"startingTimestamp": milliseconds}, None, [Judgement(Verdict.UNKNOWN, reason)]
    start = source.kafka.at(since)
    more = lost_of_kafka(start, source.kafka.earliest, source.kafka.latest)
    for topic, partitions in start.items():
        for partition, offset in partitions.items():
            # Where the log begins after the time, what lay between is gone, and nobody knows whether it was read.
            if offset == source.kafka.earliest.get(topic, {}).get(partition) != 0:
                more.append(
                    Judgement(
                        Verdict.UNKNOWN, f"{topic}-{partition} begins at {offset}: older unread records may be gone"
                    )
                )
    if not source.kafka.append_time:
        more += late(source, terms, "a record that is written", "its timestamp (CreateTime)")
    again = between(start, source.kafka.latest)
    return {"startingOffsets": offsets_json(start)}, {"offsets": again} if again else {}, more
