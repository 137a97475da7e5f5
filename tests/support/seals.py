"""Seals put by hand."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_ckpt_provider.checkpoint.seal import Seal
from tests.support.checkpoints import (
    Files,
)

SINCE = datetime(2026, 11, 21, 8, 31, 7, tzinfo=UTC)


def seal_at(number: int) -> Files:
    mark = Seal(number, "7f3a", "an upgrade", "me", SINCE)
    return {mark.path: mark.sentence.encode()}
