"""Random histories of backups that rot: see ``damage_model.py``. On disks and on S3: ``component/test_damage_histories.py``."""

from __future__ import annotations

from hypothesis.stateful import run_state_machine_as_test

from tests.support.damage_model import Stream
from tests.support.random_histories import settings_of


def test_no_damage_is_forgotten(repository_format: int) -> None:
    run_state_machine_as_test(Stream, settings=settings_of(4 if repository_format == 1 else 2))
