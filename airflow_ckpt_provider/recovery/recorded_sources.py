"""What backups recorded of a stream's sources, such as the ids of Kafka topics."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import CkptError

log = logging.getLogger(__name__)


def recorded_sources(
    repository: Repository, name: str, query_ids: Collection[str], batch_id: int
) -> dict[str, Mapping[str, Any]]:
    """What backups recorded of the sources around a batch, such as the ids of topics: source -> the record.

    The newest backup up to the batch saw the sources that it was read from; without one the oldest backup after it.

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
        sources = manifest.facts.get("sources")
        if manifest.query_id in query_ids and isinstance(sources, Mapping):
            later = manifest.batch_id > batch_id
            found.append((later, abs(manifest.batch_id - batch_id), sources))
    known: dict[str, Mapping[str, Any]] = {}
    for _, _, sources in sorted(found, key=lambda each: each[:2]):
        known = {**sources, **known}
    return known
