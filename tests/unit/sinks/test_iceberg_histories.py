"""Random histories of an Iceberg table by pyiceberg, a few in every run; by Spark: ``integration/test_iceberg_histories.py``."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.every_run import of_these
from tests.support.iceberg_histories import happen
from tests.support.iceberg_history import PyIcebergHistory
from tests.support.sink_recovery import run_histories


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("histories", "seed"), of_these([(2, 22), (100, None)], (2, 22)))
def test_every_history_is_row_exact(histories: int, seed: int | None, tmp_path: Path) -> None:
    def make(number: int, chance: random.Random) -> PyIcebergHistory:
        return PyIcebergHistory(None, tmp_path, f"t{number}", chance)

    run_histories(histories, make, happen, seed=seed)
