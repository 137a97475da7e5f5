"""Random histories of backups that rot, on a disk and on a real S3 server: see ``unit/backup/damage_model.py``."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path

import pytest
from hypothesis.stateful import run_state_machine_as_test

from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.damage_model import Stream
from tests.support.random_histories import settings_of
from tests.support.s3_server import S3Server

#: A history takes seconds: a hundred of them up to half an hour.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * 3600)]


def test_on_a_disk(repository_format: int, tmp_path: Path) -> None:
    run_state_machine_as_test(
        partial(Stream, lambda: Location(LocalStore(), str(tmp_path / uuid.uuid4().hex))), settings=settings_of(100)
    )


def test_on_s3(repository_format: int, s3_server: S3Server) -> None:
    bucket, options = s3_server.make_bucket("histories"), s3_server.options()
    run_state_machine_as_test(
        partial(Stream, lambda: open_location(f"s3://{bucket}/{uuid.uuid4().hex}", storage_options=options)),
        settings=settings_of(100),
    )
