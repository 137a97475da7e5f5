"""Backup sets with damage."""

from __future__ import annotations

import pytest

from airflow_ckpt_provider.backup.notes import note_damage
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from tests.support.several_sinks import Application
from tests.support.spoiled import spoil
from tests.support.watched_stores import in_memory


@pytest.fixture
def application() -> Application:
    return Application.planted(in_memory("application"))


def damaged_object(application: Application, name: str, backup_id: str) -> None:
    """Verifying has found it."""
    manifest = application.repository.read_manifest(name, backup_id)
    entry = next(e for e in manifest.files if e.path == f"state/0/0/{manifest.batch_id + 1}.changelog")
    spoil(application.repository.location, entry)
    found = verify_backup(application.repository, manifest, read_data=ReadData())
    note_damage(application.repository, manifest, found.findings)
