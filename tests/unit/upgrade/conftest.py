from __future__ import annotations

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.storage.location import Location


@pytest.fixture
def kept(place: Location) -> Repository:
    """The repository, beside the checkpoint."""
    return Repository.open_or_create(place / "backups")
