"""What backups recorded of a stream's sources, such as the ids of Kafka topics."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import CkptError

log = logging.getLogger(__name__)


def recorded_sources(
    repository: Repository, name: str, query_ids: Collection[str], batch_id: int
) -> dict[str, Mapping[str, Any]]:
    """What backups recorded of the sources around a batch, such as the ids of topics: source -> the record.

    The newest backup up to the batch saw the sources that it was read from, of several of that batch the oldest; without one the
    oldest backup after it.

    :param repository: has the backups.
    :param name: name of the stream in it.
    :param query_ids: ids that the stream has had.
    :param batch_id: the batch.
    """
    found: list[tuple[bool, int, Mapping[str, Any]]] = []
    for backup_id in repository.backup_ids(name):
        try:
            manifest = repository.read_manifest(name, backup_id, with_files=False)
        except CkptError as e:
            log.info("%s", e)
            continue
        recorded = sources_of(manifest.facts)
        if manifest.query_id in query_ids and recorded:
            later = manifest.batch_id > batch_id
            found.append((later, abs(manifest.batch_id - batch_id), recorded))
    known: dict[str, Mapping[str, Any]] = {}
    for _, _, sources in sorted(found, key=lambda each: each[:2]):
        known = {**sources, **known}
    return known


class _Backup(Protocol):
    """What has to be known of a backup."""

    @property
    def name(self) -> str: ...

    @property
    def query_id(self) -> str: ...

    @property
    def batch_id(self) -> int: ...

    @property
    def facts(self) -> Mapping[str, Any]: ...


def sources_at(repository: Repository, newest: _Backup, batch_id: int) -> dict[str, Mapping[str, Any]]:
    """What the newest backup has recorded of the sources at a batch; older backups, if the newest one is beyond it.

    Each backup keeps what the one before has recorded, so the newest is enough as long as the stream was not taken to an
    earlier batch.

    :param repository: has the backups.
    :param newest: the newest backup of the stream.
    :param batch_id: the batch.
    """
    if newest.batch_id <= batch_id:
        return sources_of(newest.facts)
    return recorded_sources(repository, newest.name, {newest.query_id}, batch_id)


def sources_of(facts: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What a manifest says of the sources, by source; manifests of before have nothing."""
    found = facts.get("sources", {})
    return dict(found) if isinstance(found, Mapping) else {}
