"""The queries of a declared application, as streams that are changed together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from airflow_ckpt_provider.guards.registry import Guard
from airflow_ckpt_provider.recovery.chains.stream import ChainStream
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.report import WITHOUT_MEMORY
from airflow_ckpt_provider.sinks.sink import Sink, named_sinks
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.streams.stream import SinkPlace, Stream

#: Opens a place: its address, and the connection that the stream declares for it.
Open = Callable[[str, str | None], Location]


def application_streams(
    declared: Sequence[Stream],
    *,
    open_checkpoint: Open,
    open_repository: Open,
    named_sink: Callable[[Stream, SinkPlace, str | None], Sink],
    repository: Location | None,
    guards: Callable[[Stream], Sequence[Guard]] | None = None,
) -> tuple[ChainStream, ...]:
    """Name the streams by their names in the repository. A sink without a memory of batches stays, any other is rolled back.

    :param declared: the streams of the application.
    :param open_checkpoint: opens a checkpoint.
    :param open_repository: opens a repository.
    :param named_sink: makes a sink of its stream, its declaration and its connection.
    :param repository: the one that is given for all; ``None``: the one that each stream declares.
    :param guards: makes those that judge the sources of a stream, with what it declares of them; ``None``: those of the plan.
    """
    found = []
    for stream in declared:
        storage = stream.storage_conn_id
        conn_ids = [sink.conn_id or (storage if "/" in sink.sink else None) for sink in stream.sinks]
        sinks = named_sinks(
            [named_sink(stream, sink, conn_id) for sink, conn_id in zip(stream.sinks, conn_ids, strict=True)]
        )
        stays = [not sink.name or sink.kind in WITHOUT_MEMORY for sink in sinks]
        place = repository
        if place is None and stream.repository:
            place = open_repository(stream.repository, stream.repository_connection)
        found.append(
            ChainStream(
                stream.repository_name,
                open_checkpoint(stream.checkpoint, stream.checkpoint_connection),
                sinks,
                tuple(None if each else SinkPolicy.ROLLBACK for each in stays),
                place,
                partial(guards, stream) if guards else None,
            )
        )
    return tuple(found)
