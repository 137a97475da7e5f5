"""Random histories of a Delta table by delta-rs, a few in every run; by Spark: ``integration/test_delta_histories.py``."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.delta_histories import happen
from tests.support.delta_rs_history import DeltaRsHistory
from tests.support.every_run import of_these
from tests.support.sink_recovery import run_histories


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("histories", "seed"), of_these([(4, 22), (200, None)], (4, 22)))
def test_every_history_is_row_exact(histories: int, seed: int | None, tmp_path: Path) -> None:
    def make(number: int, chance: random.Random) -> DeltaRsHistory:
        return DeltaRsHistory(None, tmp_path / str(number), chance)

    run_histories(histories, make, happen, seed=seed)
