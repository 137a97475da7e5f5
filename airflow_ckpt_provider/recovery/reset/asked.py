"""Whether Kafka still has the positions that a reset keeps: its brokers are asked before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_ckpt_provider.checkpoint.offsets import OffsetEntry
from airflow_ckpt_provider.checkpoint.source_offsets import KafkaOffset
from airflow_ckpt_provider.errors import SourceError
from airflow_ckpt_provider.guards.kafka_verdicts import NO_BROKER
from airflow_ckpt_provider.guards.query import GuardedQuery, guard_query
from airflow_ckpt_provider.guards.registry import Guard, GuardedSource, GuardSettings
from airflow_ckpt_provider.recovery.positions.position import SourcePosition
from airflow_ckpt_provider.verdict import Verdict


def asked_of_kafka(
    positions: Sequence[SourcePosition],
    entry: OffsetEntry,
    guards: Sequence[Guard],
    recorded: Mapping[str, Mapping[str, Any]],
) -> tuple[SourcePosition, ...]:
    """Judge the positions of Kafka by what its brokers answer; those of other sources stay as they are.

    A cluster that does not answer leaves a position ``UNKNOWN``, with the reason.

    :param positions: the kept positions.
    :param entry: the entry of the offset log that they come from.
    :param guards: those to ask.
    :param recorded: what backups recorded of the sources: source -> the record.
    """
    kafka = {position.source for position in positions if NO_BROKER in position.reasons}
    sources = tuple(
        GuardedSource(start=source, known=recorded.get(source.source, {}), logged_at=entry.time)
        for source in entry.sources
        if source.source in kafka and isinstance(source.offset, KafkaOffset)
    )
    if not sources:
        return tuple(positions)
    try:
        report = guard_query(
            GuardedQuery("the kept position", sources, entry.batch_id + 1), GuardSettings(), guards=guards
        )
    except SourceError as e:
        return tuple(
            _with(p, Verdict.UNKNOWN, (f"the brokers could not be asked: {e.message}",), kafka) for p in positions
        )
    found = {source.source: source for source in report.sources}
    return tuple(
        _with(p, found[p.source].verdict, tuple(j.reason for j in found[p.source].judgements), kafka)
        if p.source in found
        else p
        for p in positions
    )


def _with(position: SourcePosition, verdict: Verdict, reasons: tuple[str, ...], asked: set[str]) -> SourcePosition:
    if position.source not in asked:
        return position
    own = tuple(reason for reason in position.reasons if reason != NO_BROKER)
    return replace(position, verdict=verdict, reasons=(*reasons, *own))
