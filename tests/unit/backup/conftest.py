"""Fixtures of the tests of backups."""

from __future__ import annotations

import pytest

from airflow_ckpt_provider.backup import closure_copy as module


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup of a checkpoint that moves reads again at once."""
    monkeypatch.setattr(module, "_PAUSE", 0)
