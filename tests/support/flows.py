"""Queries without state."""

from __future__ import annotations

from tests.support.checkpoints import Files, logs

NEWEST = 3


def stateless(newest: int = NEWEST) -> Files:
    return logs(range(newest + 1))
