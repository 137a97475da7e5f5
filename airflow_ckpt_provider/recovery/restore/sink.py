"""A restore to an older batch is a rewind as well: what the sink says to it."""

from __future__ import annotations

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.sinks.sink import Sink, history_of, inspect_sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict


def sink_says(
    sink: Sink, manifest: Manifest, target: Location, *, batch: int | None = None
) -> tuple[Verdict, tuple[str, ...]] | None:
    """Ask a sink what a start from a restored backup will do to it.

    :param sink: the sink; unknown: nobody is asked.
    :param manifest: the backup.
    :param target: where it is restored to; the checkpoint that is there tells how far the query came.
    :param batch: the batch that is restored; by default the newest of the backup.
    :return: the verdict and why; ``None`` where no sink was named.
    """
    if not sink.name:
        return None
    batch_id = manifest.batch_id if batch is None else batch
    # What is left of the checkpoint tells how far the query came; else nobody knows, and one more batch is assumed.
    try:
        newest = Checkpoint.at(target).progress().latest_logged
    except CkptError:
        newest = None
    report = inspect_sink(
        sink,
        history_of(sink),
        sink.app_id or manifest.query_id,
        batch_id,
        batch_id + 1 if newest is None else newest,
    )
    return report.verdict, tuple(f"sink: {reason}" for reason in report.reasons)
