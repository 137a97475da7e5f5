"""A restore to an older batch is a rewind as well: what the sinks say to it."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.recovery.newest_batch import newest_batch
from airflow_ckpt_provider.recovery.query_ids import read_query_ids
from airflow_ckpt_provider.recovery.restore.sink_answer import SinkAnswer
from airflow_ckpt_provider.recovery.rewind.asked_sink import AskedSink
from airflow_ckpt_provider.recovery.rewind.targets import logged_in_backup
from airflow_ckpt_provider.sinks.is_this_all import notes_on
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.sink import Sink, look_at, named_sinks
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import worst


def sink_says(
    sink: Sink | Sequence[Sink],
    manifest: Manifest,
    target: Location,
    *,
    batch: int | None = None,
    repository: Repository | None = None,
) -> SinkAnswer | None:
    """Ask the sinks what a start from a restored backup will do to them.

    :param sink: the sink, or all of them; unknown: nobody is asked.
    :param manifest: the backup.
    :param target: where it is restored to; the checkpoint that is there shows how far the query came.
    :param batch: the batch that is restored; by default the newest of the backup.
    :param repository: the one that has the backup: it knows which other query ids the stream has had.
    :return: the worst verdict, why, and what each says; ``None`` where no sink was named.
    """
    sinks = named_sinks(sink)
    if not sinks[0].name:
        return None
    batch_id = manifest.batch_id if batch is None else batch
    try:
        there = Checkpoint.at(target)
        progress = there.progress()
        logged, query_id, unlogged, tree = progress.latest_begun, progress.query_id, progress.unlogged, there.tree()
    except CkptError:
        logged, query_id, unlogged, tree = None, None, (), None
    looked = [look_at(each) for each in sinks]
    histories = [found.content.history if found else None for found in looked]
    ids = read_query_ids(
        query_id,
        place=target,
        repository=repository,
        name=manifest.name,
        becomes=manifest,
        app_ids=[each.app_id for each in sinks],
        histories=histories,
        tree=tree,
    ) or QueryIds.of(manifest.query_id)
    newest = newest_batch(
        target,
        logged,
        query_id,
        starts_as=manifest.query_id,
        repository=repository,
        name=manifest.name,
        unlogged=unlogged,
        ids=ids,
        backup=manifest,
        tree=tree,
    )
    asked = [AskedSink(each, found, None) for each, found in zip(sinks, looked, strict=True)]
    reports = tuple(each.report(ids, batch_id, newest.after(batch_id), logged_in_backup(manifest)) for each in asked)
    alone = len(reports) == 1
    reasons = [f"sink{'' if alone else ' ' + r.uri}: {reason}" for r in reports for reason in r.reasons]
    notes = notes_on(list(zip(sinks, histories, strict=True)), ids)
    if None in looked:
        notes = (*notes, *newest.notes(batch_id))
    return SinkAnswer(
        worst(report.verdict for report in reports),
        (*reasons, *notes),
        tuple((report.uri, report.kind, report.verdict) for report in reports),
    )
