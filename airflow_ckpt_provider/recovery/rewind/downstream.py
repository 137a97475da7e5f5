"""Streams that read the table which a rewind rolls back: what its commit does to them.

A rollback is a commit that removes files of the table (``dataChange`` true). Delta's source stops at such a commit unless the
reader has ``skipChangeCommits``; what it read of the rows that leave the table has been passed on already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset
from airflow_ckpt_provider.errors import NotACheckpointError, UnreadableLogError
from airflow_ckpt_provider.sinks.delta_history import TableHistory
from airflow_ckpt_provider.sinks.report import SinkRollback
from airflow_ckpt_provider.storage.location import Location, plain_uri


def downstream_of(
    history: TableHistory, rollback: SinkRollback, places: Iterable[Location], *, but: Collection[str] = ()
) -> tuple[str, ...]:
    """Say what the rollback of a table does to the streams that read it; one sentence for each.

    :param history: the table's log.
    :param rollback: what is planned.
    :param places: checkpoints, or folders whose sub-folders are checkpoints.
    :param but: checkpoints that go back with the table, as :func:`~airflow_ckpt_provider.storage.location.plain_uri` has them.
    """
    found = []
    for place in places:
        for checkpoint in _checkpoints(place):
            if but and plain_uri(checkpoint.location.uri) in but:
                continue
            try:
                progress = checkpoint.progress()
            except NotACheckpointError:
                continue
            except UnreadableLogError as e:
                found.append(f"downstream: {checkpoint.location} cannot be read ({e.message}): UNKNOWN")
                continue
            found += _of_stream(history, rollback, checkpoint, progress)
    return tuple(found)


def _checkpoints(place: Location) -> list[Checkpoint]:
    listing = place.list()
    if {"offsets", "commits"} & set(listing.directories):
        return [Checkpoint.at(place)]
    return [Checkpoint.at(place / name) for name in listing.directories]


def _of_stream(
    history: TableHistory, rollback: SinkRollback, checkpoint: Checkpoint, progress: Progress
) -> Iterable[str]:
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
            f"downstream: {checkpoint.location} reads this table (source {source.source}): {passed_on}it stops at version "
            f"{history.newest + 1}, the rollback (DELTA_SOURCE_IGNORE_DELETE), unless it has skipChangeCommits: WILL_FAIL"
        )
