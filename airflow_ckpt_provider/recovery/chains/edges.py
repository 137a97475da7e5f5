"""Which stream of a chain reads which table of another: a source of one checkpoint is the sink of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset, FileOffset, IcebergOffset
from airflow_ckpt_provider.checkpoint.sources import files_read
from airflow_ckpt_provider.errors import RefusedError, command
from airflow_ckpt_provider.recovery.chains.stream import ReadStream
from airflow_ckpt_provider.recovery.rewind.asked_sink import AskedSink
from airflow_ckpt_provider.storage.location import inside, plain_uri


@dataclass(frozen=True, slots=True)
class Edge:
    """A source of one stream that is a sink of another.

    :param reader: name of the stream that reads.
    :param source: its source, as the offset log names it.
    :param writer: name of the stream that writes.
    :param sink: which of the writer's sinks, by number.
    :param table: the sink, as it was named.
    """

    reader: str
    source: str
    writer: str
    sink: int
    table: str


def find_edges(streams: Sequence[ReadStream]) -> tuple[Edge, ...]:
    """Find who reads what. Reads the logs of file sources.

    :raises RefusedError: two of the streams write one sink, or they read each other in a circle.
    """
    _refuse_two_writers(streams)
    found = []
    for reader in streams:
        for source in reader.progress.sources:
            for writer in streams:
                found += [
                    Edge(reader.name, source.source, writer.name, number, asked.sink.name)
                    for number, asked in enumerate(writer.asked)
                    if _reads(reader, source.source, asked)
                ]
    try:
        in_order([stream.name for stream in streams], found)
    except CycleError as e:
        circle = " → ".join(reversed(e.args[1]))
        raise RefusedError(
            f"the streams read each other in a circle: {circle}; no order of their batches is known, so they have no common "
            "boundary",
            hint="rewind them one by one, or reset them from scratch",
        ) from None
    return tuple(found)


def in_order(names: Sequence[str], edges: Sequence[Edge]) -> list[str]:
    """The streams, writers before their readers, else in the given order.

    :raises CycleError: they read each other in a circle.
    """
    sorter: TopologicalSorter[str] = TopologicalSorter({name: [] for name in names})
    for edge in edges:
        sorter.add(edge.reader, edge.writer)
    return list(sorter.static_order())


def _reads(reader: ReadStream, source: str, sink: AskedSink) -> bool:
    """Whether a source is a sink: by the id of the table, the id of a snapshot, or the place of files."""
    position = next((s.offset for s in reader.progress.sources if s.source == source), None)
    history = sink.history
    if isinstance(position, DeltaOffset):
        return history is not None and history.format == "delta" and history.table_id == position.table_id
    if isinstance(position, IcebergOffset):
        # Its newest snapshot may have left the table, by a rollback, or have expired: then an older one says which table it is.
        of_reader = (reader.position(batch, source) for batch in reader.entries)
        read = {s.offset.snapshot_id for s in of_reader if s and isinstance(s.offset, IcebergOffset)}
        return history is not None and history.format == "iceberg" and not read.isdisjoint(history.held)
    if isinstance(position, FileOffset) and sink.found and sink.found.kind.kind == "file" and sink.sink.place:
        place = sink.sink.place
        return any(inside(place, uri) is not None for uri in all_files_read(reader, source, position.log_offset))
    return False


def all_files_read(reader: ReadStream, source: str, log_offset: int) -> list[str]:
    """URIs of the files that a file source has read up to an entry of its log, as Spark has them.

    :raises RefusedError: the log cannot be read as a whole, so it is not known what the source has read.
    """
    found, unread = files_read(reader.tree, source, log_offset, sources=len(reader.progress.sources))
    if unread:
        path, why = unread
        raise RefusedError(
            f"{reader.name}: {path} cannot be read ({why}), so it is not known which files the stream has read",
            hint=f"`{command('doctor', reader.stream.checkpoint, '--repair')}` fetches it from a backup, with --repository",
        )
    return found


def _refuse_two_writers(streams: Sequence[ReadStream]) -> None:
    writers: dict[str, ReadStream] = {}
    for stream in streams:
        for asked in stream.asked:
            if not asked.sink.name or not (asked.sink.place or asked.sink.table):
                continue
            table = asked.history.table_id if asked.history else None
            for key in {
                plain_uri(asked.sink.name) if asked.sink.place else asked.sink.name,
                *([table] if table else []),
            }:
                other = writers.setdefault(key, stream)
                if other is not stream:
                    raise RefusedError(
                        f"{other.name} and {stream.name} write to one sink, {asked.sink.name}: it has no version that is at "
                        "a batch of each",
                        hint="leave one of them out: a rollback then names the rows of the other that it removes, and asks "
                        "for foreign_loss",
                    )
