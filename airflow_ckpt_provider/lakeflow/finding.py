"""Where a reset flow has to begin, found from what the workspace tells; its checkpoint cannot be read by users.

Two ways, in this order. *By progress*: the end of the newest batch that was reported, exact where the table's newest commit is
of that batch. *By time*: a triggered update refreshes a table "based on the data available when the update starts"
("Triggered vs. continuous pipeline mode"), so all that was there when the newest completed one was started is in the table; a
margin goes before it, for clocks that differ and for what turns up late. Where neither holds, the position is ``UNKNOWN``.

A position is never later than what is known to be in the table. What lies between is read again: counted, and judged by what
the target does with rows that come twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.lakeflow.evidence import DELTA, FILES, KAFKA, FlowEvidence, SourceEvidence
from airflow_ckpt_provider.lakeflow.found_by_progress import by_progress
from airflow_ckpt_provider.lakeflow.found_by_time import by_files, by_time
from airflow_ckpt_provider.lakeflow.found_position import FoundPosition, Terms
from airflow_ckpt_provider.verdict import Verdict


def find_positions(flow: FlowEvidence, terms: Terms) -> list[FoundPosition]:
    """Find where each source of a flow begins.

    :param flow: what is known of it.
    :param terms: what the caller says.
    """
    sources = flow.sources or (SourceEvidence(""),)
    return [_find(flow, number, source, terms) for number, source in enumerate(sources)]


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
