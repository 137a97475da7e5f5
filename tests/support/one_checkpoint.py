"""One small real checkpoint for tests that need any checkpoint, not a certain kind."""

from __future__ import annotations

from pathlib import Path

from tests.samples.archives import sample

#: Newest batch committed in it.
NEWEST = 5


def unpack(place: Path) -> Path:
    """Write a checkpoint of Spark 4.0.0, an aggregation in RocksDB with changelog, to ``place``."""
    return sample("4.0.0", "rocks_changelog_agg").unpack(place)
