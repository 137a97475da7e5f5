"""Whether a query reads the kinds of sources that its stream declares, and whether there is a guard for each."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_ckpt_provider.checkpoint.source_offsets import (
    DeltaOffset,
    FileOffset,
    IcebergOffset,
    KafkaOffset,
    OpaqueOffset,
    RateOffset,
)
from airflow_ckpt_provider.errors import did_you_mean
from airflow_ckpt_provider.guards.entry_points import entry_points_of
from airflow_ckpt_provider.guards.query import GuardedQuery
from airflow_ckpt_provider.guards.registry import GROUP
from airflow_ckpt_provider.streams.stream import Stream

#: Kinds that make their own rows.
_RATE = frozenset({RateOffset.kind, "rate-micro-batch"})
#: Kinds whose guard answers UNKNOWN unless the stream says how to ask: no checkpoint records a cluster or a table.
_NEED_A_DECLARATION = (KafkaOffset.kind, DeltaOffset.kind, IcebergOffset.kind)


def kinds_without_guard(stream: Stream) -> Iterator[tuple[str, str]]:
    """The declared kinds that nothing can judge, each with what is near to it.

    :param stream: the stream.
    """
    # A package names the kind in its entry point: no guard is made, which may need settings.
    of_others = (entry.name for entry in entry_points_of(GROUP))
    guarded = {*_NEED_A_DECLARATION, FileOffset.kind, *of_others}
    for kind in stream.sources:
        if kind not in guarded | _RATE:
            yield kind, did_you_mean(kind, guarded)


def is_guarded(stream: Stream) -> bool:
    """Whether a stream says that its sources are to be judged: it names some, or the time for which they must keep data.

    :param stream: the stream.
    """
    return bool(stream.sources or stream.max_downtime or stream.watch.min_time_to_loss)


def not_read(stream: Stream, query: GuardedQuery) -> Iterator[tuple[str, str]]:
    """The declared kinds that the query does not read, each with what it reads.

    Nothing where a source of the query is not known: it may be the declared one.

    :param stream: the stream.
    :param query: its sources, as its checkpoint has them.
    """
    kinds = set(query.kinds.values())
    if not kinds or {OpaqueOffset.kind, *_RATE} & kinds:  # many sources have offsets as those of rate
        return
    there = ", ".join(f"{name} ({kind})" for name, kind in query.kinds.items())
    for kind in stream.sources:
        if kind not in kinds:
            yield kind, there


def not_declared(stream: Stream, query: GuardedQuery) -> list[str]:
    """The kinds that the query reads, that the stream does not declare, and whose guard needs that.

    :param stream: the stream.
    :param query: its sources, as its checkpoint has them.
    """
    declared = {*stream.sources, *([KafkaOffset.kind] if stream.kafka else [])}
    return [
        kind for kind in dict.fromkeys(query.kinds.values()) if kind in _NEED_A_DECLARATION and kind not in declared
    ]
