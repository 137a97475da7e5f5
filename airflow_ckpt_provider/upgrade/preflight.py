"""Will a query find what it reads, when it is started? One question for a checkpoint, a backup, or offsets given by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_ckpt_provider.backup.contents import no_backup_of
from airflow_ckpt_provider.backup.first_files import first_files
from airflow_ckpt_provider.backup.latest import LATEST
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.recorded_sources import recorded_sources, sources_at
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.stream_names import stream_name
from airflow_ckpt_provider.checkpoint.progress import read_progress
from airflow_ckpt_provider.checkpoint.source_offsets import KafkaOffset
from airflow_ckpt_provider.errors import NoSuchBackupError, RefusedError
from airflow_ckpt_provider.guards.query import GuardedQuery, from_checkpoint, from_facts, from_kafka_offsets
from airflow_ckpt_provider.storage.location import Location


def query_to_guard(
    *,
    checkpoint: Location | None = None,
    repository: Repository | None = None,
    name: str | None = None,
    backup_id: str | None = None,
    offsets: str | Mapping[str, Any] | None = None,
    name_is_declared: bool = False,
) -> GuardedQuery:
    """Find what will be read first.

    With a checkpoint (or offsets) and a repository, the newest backup of the stream says what its sources were; so one that
    was replaced under its name is noticed. With a repository alone, the backup itself is what is asked about.

    :param checkpoint: the checkpoint.
    :param repository: a repository with backups of the stream.
    :param name: name of the stream there; by default the one that the checkpoint has there.
    :param backup_id: a backup's id; by default the newest.
    :param offsets: Kafka offsets, as Spark's ``startingOffsets``.
    :param name_is_declared: the name is that of a declared stream, which may have no backup yet. One that somebody typed must
        have one: compared with nothing, a topic that was recreated is not noticed.
    :raises RefusedError: not exactly one of the three was given, or the repository has no backup of the name.
    """
    if (checkpoint is not None) + (offsets is not None) > 1:
        raise RefusedError("both a checkpoint and offsets were given", hint="give one of them")
    if checkpoint is not None:
        found = stream_name(repository, checkpoint, name)
        manifest, doubt = _newest(repository, found, backup_id, may_be_new=name is None or name_is_declared)
        if manifest is None or repository is None or backup_id is not None:
            query = from_checkpoint(checkpoint, known=manifest.facts if manifest else None)
            return _compared(query, manifest, doubt)
        progress = read_progress(checkpoint)
        batch_id = -1 if progress.latest_committed is None else progress.latest_committed
        # Backups of earlier versions do not keep what the one before has recorded.
        recorded = sources_at(repository, manifest, batch_id) or recorded_sources(
            repository, manifest.name, {manifest.query_id}, batch_id
        )
        return _compared(from_checkpoint(checkpoint, known={"sources": recorded}, progress=progress), manifest, doubt)
    if offsets is not None:
        manifest, doubt = _newest(repository, name, backup_id, may_be_new=name is None or name_is_declared)
        return _compared(from_kafka_offsets(offsets, known=manifest.facts if manifest else None), manifest, doubt)
    if repository is None:
        raise RefusedError(
            "nothing to guard was given", hint="give a checkpoint, a repository with a backup, or offsets"
        )
    manifest = repository.manifest(backup_id or LATEST, name=name)
    subject = f"backup {manifest.backup_id} of {manifest.name}"
    first = first_files(repository, manifest, manifest.batch_id)
    query = from_facts(manifest.facts, subject=subject, batch_id=manifest.batch_id, first_files=first)
    return _compared(query, manifest, None)


def _newest(
    repository: Repository | None, name: str | None, backup_id: str | None, *, may_be_new: bool
) -> tuple[Manifest | None, str | None]:
    """The backup to compare with, or why there is none.

    :param may_be_new: a stream without a backup is no fault. A backup that was asked for by its id has to exist all the same.
    :raises NoSuchBackupError: there is none, and that is a fault.
    """
    if repository is None:
        return None, None
    try:
        return repository.manifest(backup_id or LATEST, name=name), None
    except NoSuchBackupError as e:
        if backup_id is not None:
            raise
        if name is not None and not may_be_new and not repository.backup_ids(name):
            raise no_backup_of(repository, name) from None
        return None, e.message


def _compared(query: GuardedQuery, manifest: Manifest | None, doubt: str | None) -> GuardedQuery:
    """Have a query say where its Kafka topics are compared with nothing, though a repository was given.

    :param doubt: why there is no backup to compare with.
    """
    kafka = [source for source in query.sources if isinstance(source.start.offset or source.end, KafkaOffset)]
    if manifest is not None and any(not source.known for source in kafka):
        doubt = (
            f"backup {manifest.backup_id} of {manifest.name} recorded no topics: give the backup a connection to Kafka "
            "(kafka_config_id, --kafka-config)"
        )
    if doubt is None:
        return query
    return replace(query, not_compared=f"a topic that was recreated is not noticed: {doubt}")
