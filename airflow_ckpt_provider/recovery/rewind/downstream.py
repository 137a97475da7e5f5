"""Streams that read the table which a rewind rolls back: what its commit does to them.

A rollback is a commit that removes files of the table (``dataChange`` true). Delta's source stops at such a commit unless the
reader has ``skipChangeCommits``; what it read of the rows that leave the table has been passed on already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from airflow_ckpt_provider.backup.transfer import in_parallel
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset
from airflow_ckpt_provider.errors import NotACheckpointError, UnreadableLogError
from airflow_ckpt_provider.sinks.delta_history import TableHistory
from airflow_ckpt_provider.sinks.report import SinkRollback
from airflow_ckpt_provider.storage.location import Location, plain_uri


def downstream_of(history: TableHistory, rollback: SinkRollback, places: Iterable[Location]) -> tuple[str, ...]:
    """Say what the rollback of a table does to the streams that read it; one sentence for each.

    :param history: the table's log.
    :param rollback: what is planned.
    :param places: checkpoints, or folders whose sub-folders are checkpoints.
    """
    streams, unread = streams_in(places)
    return (*unread, *readers_among(streams, history, rollback))


def streams_in(places: Iterable[Location], *, but: Collection[str] = ()) -> tuple[list[Progress], list[str]]:
    """How far the streams in some places are, and in words which checkpoints cannot be read and which places have none.

    :param places: checkpoints, or folders whose sub-folders are checkpoints.
    :param but: checkpoints to leave out, as :func:`~airflow_ckpt_provider.storage.location.plain_uri` has them.
    """

    def read(checkpoint: Checkpoint) -> Progress | str | None:
        try:
            return checkpoint.progress()
        except NotACheckpointError:
            return None
        except UnreadableLogError as e:
            return f"downstream: {checkpoint.location} cannot be read ({e.message}): UNKNOWN"

    found: list[Progress | str | None] = []
    for place in places:
        there = _checkpoints(place)
        wanted = [each for each in there if plain_uri(each.location.uri) not in but]
        answers = in_parallel(read, wanted)
        if len(wanted) == len(there) and not any(answers):
            found.append(f"downstream: {place} holds no checkpoint: is the address right?")
        found += answers
    return [each for each in found if isinstance(each, Progress)], [each for each in found if isinstance(each, str)]


def readers_among(streams: Iterable[Progress], history: TableHistory, rollback: SinkRollback) -> list[str]:
    """What the rollback of a table does to those of some streams that read it; one sentence for each."""
    return [sentence for progress in streams for sentence in _of_stream(history, rollback, progress)]


def _checkpoints(place: Location) -> list[Checkpoint]:
    listing = place.list()
    if {"offsets", "commits"} & set(listing.directories):
        return [Checkpoint.at(place)]
    return [Checkpoint.at(place / name) for name in listing.directories]


def _of_stream(history: TableHistory, rollback: SinkRollback, progress: Progress) -> Iterable[str]:
    for source in progress.sources:
        offset = source.offset
        if not isinstance(offset, DeltaOffset) or offset.table_id != history.table_id:
            continue
        # "End of version v" is written as (v + 1, -1).
        read = offset.table_version - 1 if offset.index < 0 else offset.table_version
        target = rollback.to_version if rollback.to_version is not None else history.newest
        passed_on = (
            f"it has read the table up to version {read}, so rows of versions {target + 1} to {read} that leave the table "
            "have been passed on; "
            if read > target
            else ""
        )
        yield (
            f"downstream: {progress.uri} reads this table (source {source.source}): {passed_on}it stops at version "
            f"{history.newest + 1}, the rollback (DELTA_SOURCE_IGNORE_DELETE), unless it has skipChangeCommits: WILL_FAIL"
        )
