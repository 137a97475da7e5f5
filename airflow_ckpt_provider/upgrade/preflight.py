"""Will a query find what it reads, when it is started? One question for a checkpoint, a backup, or offsets given by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ckpt_provider.backup.latest import LATEST
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.recorded_sources import recorded_sources, sources_at
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.stream_names import stream_name
from airflow_ckpt_provider.checkpoint.progress import read_progress
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
) -> GuardedQuery:
    """Find what will be read first.

    With a checkpoint (or offsets) and a repository, the newest backup of the stream says what its sources were; so one that
    was replaced under its name is noticed. With a repository alone, the backup itself is what is asked about.

    :param checkpoint: the checkpoint.
    :param repository: a repository with backups of the stream.
    :param name: name of the stream there; by default the one that the checkpoint has there.
    :param backup_id: a backup's id; by default the newest.
    :param offsets: Kafka offsets, as Spark's ``startingOffsets``.
    :raises RefusedError: not exactly one of the three was given.
    """
    if (checkpoint is not None) + (offsets is not None) > 1:
        raise RefusedError("both a checkpoint and offsets were given", hint="give one of them")
    if checkpoint is not None:
        manifest = _newest(repository, stream_name(repository, checkpoint, name), backup_id)
        if manifest is None or repository is None or backup_id is not None:
            return from_checkpoint(checkpoint, known=manifest.facts if manifest else None)
        progress = read_progress(checkpoint)
        batch_id = -1 if progress.latest_committed is None else progress.latest_committed
        # Backups of earlier versions do not keep what the one before has recorded.
        recorded = sources_at(repository, manifest, batch_id) or recorded_sources(
            repository, manifest.name, {manifest.query_id}, batch_id
        )
        return from_checkpoint(checkpoint, known={"sources": recorded}, progress=progress)
    if offsets is not None:
        manifest = _newest(repository, name, backup_id)
        return from_kafka_offsets(offsets, known=manifest.facts if manifest else None)
    if repository is None:
        raise RefusedError(
            "nothing to guard was given", hint="give a checkpoint, a repository with a backup, or offsets"
        )
    manifest = repository.manifest(backup_id or LATEST, name=name)
    subject = f"backup {manifest.backup_id} of {manifest.name}"
    return from_facts(manifest.facts, subject=subject, batch_id=manifest.batch_id)


def _newest(repository: Repository | None, name: str | None, backup_id: str | None) -> Manifest | None:
    """The backup to compare with; none is no fault, unless it was asked for by its id."""
    if repository is None:
        return None
    try:
        return repository.manifest(backup_id or LATEST, name=name)
    except NoSuchBackupError:
        if backup_id is not None:
            raise
        return None
