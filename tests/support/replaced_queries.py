"""Checkpoints in which another query begins."""

from __future__ import annotations

from typing import Any

from airflow_ckpt_provider.backup.create import BackupResult, create_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import repository, stream
from tests.support.checkpoints import QUERY_ID, Files, metadata, plant

OTHER = "2f1d8f3e-0b52-4a53-9a7b-000000000002"


def files_of(query_id: str = QUERY_ID, newest: int = 4) -> Files:
    return stream(newest) | {"metadata": metadata(query_id)}


def begin(place: Location, query_id: str = QUERY_ID, newest: int = 4) -> Location:
    """A checkpoint with nothing of another query left in it."""
    for path in place.walk():
        place.delete(path)
    return plant(place, files_of(query_id, newest))


def back_up(place: Location, path: str, **options: Any) -> BackupResult:
    return create_backup(Checkpoint.at(place / path), repository(place), **options)
