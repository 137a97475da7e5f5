"""Streams that read the sink which a rewind rolls back: what its rollback does to them.

What a stream has read of rows that leave the sink has been passed on already. Besides:

* Delta: a rollback is a commit that removes files (``dataChange`` true). Delta's source stops at such a commit unless the reader
  has ``skipChangeCommits``.
* Iceberg: after it, the source stops if the snapshot that it has read up to is not an ancestor of the current one any more.
* File sink: the source reads the files of the replay, which have other names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset, FileOffset, IcebergOffset
from airflow_ckpt_provider.checkpoint.sources import files_read
from airflow_ckpt_provider.errors import CkptError, NotACheckpointError, UnreadableLogError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.sinks.report import SinkReport, SinkRollback
from airflow_ckpt_provider.sinks.table_history import TableHistory
from airflow_ckpt_provider.storage.location import Location, inside, plain_uri
from airflow_ckpt_provider.verdict import Verdict

#: The verdict on a stream that reads the sink -> the word by which it is accepted.
RISKS_OF_READERS = {
    Verdict.WILL_FAIL: "source_failure",
    Verdict.WILL_DUPLICATE: "sink_duplicates",
    Verdict.UNKNOWN: "sink_unknown",
}


class Reader(NamedTuple):
    """A stream that may read a sink.

    :param checkpoint: its checkpoint.
    :param progress: how far it is.
    """

    checkpoint: Checkpoint
    progress: Progress


def downstream_of(
    history: TableHistory | None, place: Location | None, report: SinkReport, places: Iterable[Location]
) -> tuple[str, ...]:
    """Say what the rollback of a sink does to the streams that read it; one sentence for each.

    :param history: the log of the table; ``None`` where the sink is none.
    :param place: where the sink is; ``None`` where it has no place.
    :param report: the sink, with the rollback that is planned.
    :param places: checkpoints, or folders whose sub-folders are checkpoints.
    """
    streams, unread = streams_in(places)
    if history is None and report.kind != "file":
        unread.append(f"downstream: which streams read {report.uri} is not known of a sink of this kind: UNKNOWN")
    return (*unread, *readers_among(streams, history, place, report))


def verdict_in(sentence: str) -> Verdict | None:
    """The verdict at the end of a sentence about a reader; ``None`` where it has none."""
    word = sentence.rpartition(": ")[2]
    return next((verdict for verdict in RISKS_OF_READERS if verdict.value == word), None)


def streams_in(places: Iterable[Location], *, but: Collection[str] = ()) -> tuple[list[Reader], list[str]]:
    """The streams in some places, and in words which checkpoints cannot be read and which places have none.

    :param places: checkpoints, or folders whose sub-folders are checkpoints.
    :param but: checkpoints to leave out, as :func:`~airflow_ckpt_provider.storage.location.plain_uri` has them.
    """

    def read(checkpoint: Checkpoint) -> Reader | str | None:
        try:
            return Reader(checkpoint, checkpoint.progress())
        except NotACheckpointError:
            return None
        except UnreadableLogError as e:
            return f"downstream: {checkpoint.location} cannot be read ({e.message}): UNKNOWN"

    found: list[Reader | str | None] = []
    for place in places:
        there = _checkpoints(place)
        wanted = [each for each in there if plain_uri(each.location.uri) not in but]
        answers = in_parallel(read, wanted)
        if len(wanted) == len(there) and not any(answers):
            found.append(f"downstream: {place} holds no checkpoint, or its address is wrong: UNKNOWN")
        found += answers
    return [each for each in found if isinstance(each, Reader)], [each for each in found if isinstance(each, str)]


def readers_among(
    streams: Iterable[Reader], history: TableHistory | None, place: Location | None, report: SinkReport
) -> list[str]:
    """What the rollback of a sink does to those of some streams that read it; one sentence for each, with the verdict at its end.

    :param streams: the streams.
    :param history: the log of the table; ``None`` where the sink is none.
    :param place: where the sink is; ``None`` where it has no place.
    :param report: the sink, with its rollback; without one, nothing is done to them.
    """
    back = report.rollback
    if back is None or (history is None and report.kind != "file"):
        return []
    return [sentence for reader in streams for sentence in _of_stream(history, back, place, reader)]


def _checkpoints(place: Location) -> list[Checkpoint]:
    listing = place.list()
    if {"offsets", "commits"} & set(listing.directories):
        return [Checkpoint.at(place)]
    return [Checkpoint.at(place / name) for name in listing.directories]


def _of_stream(
    history: TableHistory | None, rollback: SinkRollback, place: Location | None, reader: Reader
) -> Iterator[str]:
    for source in reader.progress.sources:
        offset, does = source.offset, None
        if isinstance(offset, DeltaOffset) and history and history.format == "delta":
            does = _of_delta(history, rollback, offset)
        elif isinstance(offset, IcebergOffset) and history and history.format == "iceberg":
            does = _of_iceberg(history, rollback, offset)
        elif isinstance(offset, FileOffset) and history is None and place:
            does = _of_files(rollback, place, offset, reader, source.source)
        if does:
            what = "table" if history else "sink"
            reads = f"may read this {what}" if does.endswith("UNKNOWN") else f"reads this {what}"
            yield f"downstream: {reader.progress.uri} {reads} (source {source.source}): {does}"


def _of_delta(history: TableHistory, rollback: SinkRollback, offset: DeltaOffset) -> str | None:
    if offset.table_id != history.table_id:
        return None
    # "End of version v" is written as (v + 1, -1).
    read = offset.table_version - 1 if offset.index < 0 else offset.table_version
    target = rollback.to_version if rollback.to_version is not None else history.newest
    passed_on = (
        f"it has read the table up to version {read}, so rows of versions {target + 1} to {read} that leave the table "
        "have been passed on; "
        if read > target
        else ""
    )
    return (
        f"{passed_on}it stops at version {history.newest + 1}, the rollback (DELTA_SOURCE_IGNORE_DELETE), unless it has "
        "skipChangeCommits: WILL_FAIL"
    )


def _of_iceberg(history: TableHistory, rollback: SinkRollback, offset: IcebergOffset) -> str | None:
    if offset.snapshot_id not in history.held:
        return None  # of another table, or it has expired: then the stream stops in any case
    target = rollback.to_version
    stays = history.snapshots[: history.snapshots.index(target) + 1] if target in history.snapshots else ()
    if offset.snapshot_id in stays or offset.snapshot_id not in history.snapshots:
        return None  # or it has left the table before, or is of a branch: the roll-back changes nothing for the stream
    return (
        f"it has read up to snapshot {offset.snapshot_id}, so rows that leave the table have been passed on; it stops, as that "
        f"is no ancestor of snapshot {target}: WILL_FAIL"
    )


def _of_files(rollback: SinkRollback, place: Location, offset: FileOffset, reader: Reader, source: str) -> str | None:
    try:
        read, unread = files_read(
            reader.checkpoint.tree(), source, offset.log_offset, sources=len(reader.progress.sources)
        )
    except (CkptError, FileNotFoundError) as e:
        return f"which of its files it has read is not known ({e}): UNKNOWN"
    read_here = {path for uri in read if (path := inside(place, uri))}
    passed_on = read_here.intersection(rollback.paths)
    if passed_on:
        return (
            f"it has read {len(passed_on)} of the files that leave the sink, so their rows have been passed on, and it reads "
            "those of the replay as well: WILL_DUPLICATE"
        )
    if unread and (not read or read_here):
        path, why = unread
        return f"which of its files it has read is not known, as {path} cannot be read ({why}): UNKNOWN"
    return None
