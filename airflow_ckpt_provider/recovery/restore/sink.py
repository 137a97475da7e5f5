"""A restore to an older batch is a rewind as well: what the sink says to it."""

from __future__ import annotations

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.recovery.query_ids import read_query_ids
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.sink import Sink, history_of, inspect_sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict


def sink_says(
    sink: Sink,
    manifest: Manifest,
    target: Location,
    *,
    batch: int | None = None,
    repository: Repository | None = None,
) -> tuple[Verdict, tuple[str, ...]] | None:
    """Ask a sink what a start from a restored backup will do to it.

    :param sink: the sink; unknown: nobody is asked.
    :param manifest: the backup.
    :param target: where it is restored to; the checkpoint that is there tells how far the query came.
    :param batch: the batch that is restored; by default the newest of the backup.
    :param repository: the one that has the backup: it knows which other query ids the stream has had.
    :return: the verdict and why; ``None`` where no sink was named.
    """
    if not sink.name:
        return None
    batch_id = manifest.batch_id if batch is None else batch
    # What is left of the checkpoint tells how far the query came; else nobody knows, and one more batch is assumed.
    try:
        there = Checkpoint.at(target)
        progress = there.progress()
        newest, query_id, tree = progress.latest_logged, progress.query_id, there.tree()
    except CkptError:
        newest, query_id, tree = None, None, None
    history = history_of(sink)
    ids = read_query_ids(
        query_id,
        place=target,
        repository=repository,
        name=manifest.name,
        becomes=manifest,
        app_id=sink.app_id,
        history=history,
        tree=tree,
    )
    report = inspect_sink(
        sink,
        history,
        ids or QueryIds.of(manifest.query_id, app_id=sink.app_id),
        batch_id,
        batch_id + 1 if newest is None else newest,
    )
    return report.verdict, tuple(f"sink: {reason}" for reason in report.reasons)
