"""Random histories of an Iceberg table that a stream and others write to: see ``sink_recovery.py`` for what has to hold."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.iceberg_histories import happen
from tests.support.iceberg_history import IcebergHistory, iceberg_host
from tests.support.sink_recovery import run_histories

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(4 * 3600)]


def test_every_history_is_row_exact(tmp_path: Path) -> None:
    """40 by real streaming queries, in a Hadoop and in a SQL catalog."""
    host = iceberg_host(tmp_path)

    def make(number: int, chance: random.Random) -> IcebergHistory:
        return IcebergHistory(host, tmp_path, f"t{number}", chance)

    run_histories(40, make, happen)
    host.kill()
