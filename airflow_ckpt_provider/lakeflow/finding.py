"""Where a reset flow has to begin, found from what the workspace reports; its checkpoint cannot be read by users.

Two ways, in this order. *By progress*: the end of the newest batch that was reported, exact where the table's newest commit is
of that batch. *By time*: a triggered update refreshes a table "based on the data available when the update starts"
("Triggered vs. continuous pipeline mode"), so all that was there when the newest completed one was started is in the table; a
margin goes before it, for clocks that differ and for what arrives late. Where neither holds, the position is ``UNKNOWN``.

A position is never later than what is known to be in the table. What lies between is read again: counted, and judged by what
the target does with rows that come twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_ckpt_provider.checkpoint.source_offsets import KafkaOffset
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.lakeflow.evidence import DELTA, FILES, KAFKA, FlowEvidence, SourceEvidence
from airflow_ckpt_provider.lakeflow.found_by_progress import by_progress
from airflow_ckpt_provider.lakeflow.found_by_time import by_files, by_time
from airflow_ckpt_provider.lakeflow.found_position import FoundPosition, Terms
from airflow_ckpt_provider.lakeflow.progress import SourceProgress
from airflow_ckpt_provider.verdict import Verdict


def find_positions(flow: FlowEvidence, terms: Terms) -> list[FoundPosition]:
    """Find where each source of a flow begins; nowhere where the named sources are not those that the newest batch reports.

    :param flow: what is known of it.
    :param terms: what the caller says.
    """
    sources = flow.sources or (SourceEvidence(""),)
    if reason := _others_reported(flow, sources):
        unknown = Judgement(Verdict.UNKNOWN, reason)
        return [FoundPosition(flow.flow, source.name, source.kind, {}, "", (unknown,), None) for source in sources]
    return [_find(flow, number, source, terms) for number, source in enumerate(sources)]


def _others_reported(flow: FlowEvidence, sources: Sequence[SourceEvidence]) -> str:
    """Why the sources are not those of the newest batch; empty if nothing shows that they are not."""
    reported = flow.progress.sources if flow.progress else ()
    if not reported:
        return ""
    shown = ", ".join(each.description or "?" for each in reported)
    named = ", ".join(source.name or "?" for source in sources)
    how = "name what the flow reads (sources), each source, in the order of its query"
    if len(reported) != len(sources):
        return (
            f"the newest batch reports {len(reported)} sources ({shown}), and {len(sources)} are known ({named}): {how}"
        )
    for source, each in zip(sources, reported, strict=True):
        if (each.kind and each.kind != source.kind) or not _may_be(source, each):
            what = f"{source.name or '?'}{f' ({source.kind})' if source.kind else ''}"
            return f"the newest batch reports {shown}, in which {each.description or '?'} stands where {what} is named: {how}"
    return ""


def _may_be(source: SourceEvidence, reported: SourceProgress) -> bool:
    """Whether a name may be that of a reported source; the id of a Delta table is compared where its history was read."""
    if isinstance(reported.end, KafkaOffset) and source.name:
        topics = set(reported.end.partitions)
        return {name.strip() for name in source.name.split(",")} == topics or _all_match(source.name, topics)
    place = reported.place
    if reported.kind == FILES and "/" in source.name and source.name.partition("/")[0] == place.partition("/")[0]:
        return source.name.rstrip("/") == place.rstrip("/")
    return True


def _all_match(pattern: str, topics: set[str]) -> bool:
    """Whether a name is the pattern of ``subscribePattern`` that all topics match.

    As a whole, though Spark looks for it anywhere in a name: what is named may be a topic, and another one is no match of it.
    """
    try:
        return all(re.fullmatch(pattern, topic) for topic in topics)
    except re.error:
        return False


def _find(flow: FlowEvidence, number: int, source: SourceEvidence, terms: Terms) -> FoundPosition:
    unread = [Judgement(Verdict.SAFE, reason) for reason in (*flow.unread, *source.unread)]
    found = (
        by_progress(flow, number, source, terms)
        or by_files(flow, source, terms)
        or by_time(flow, source, terms)
        or FoundPosition(flow.flow, source.name, source.kind, {}, "", (_nothing(flow, source),), None)
    )
    return _with(found, unread)


def _with(found: FoundPosition, more: Sequence[Judgement]) -> FoundPosition:
    return FoundPosition(
        found.flow, found.source, found.kind, found.options, found.how, (*found.judgements, *more), found.again
    )


def _nothing(flow: FlowEvidence, source: SourceEvidence) -> Judgement:
    what = f"{source.name or 'its source'}: no position can be found"
    if flow.completed is None:
        what += "; the event log has no update of a triggered pipeline in which the flow ran to its end"
    elif not source.kind:
        what += f"; say what it is ({KAFKA}, {DELTA} or {FILES})"
    return Judgement(Verdict.UNKNOWN, f"{what}; without one, the flow reads all that its source still has")
