"""Healthy tables and sources with everything harmless that people do: guards and sinks say SAFE of each.

``HEALTHY_SEED`` is of other ones. 200 run with the marker ``slow``; of 22 of them also in every run.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from airflow_ckpt_provider.verdict import Verdict
from tests.support.healthy_sources import MAKERS

_SEED = int(os.environ.get("HEALTHY_SEED", "4711"))


def alarms(numbers: range, root: Path) -> list[str]:
    """What is said of healthy ones that is not SAFE."""
    found = []
    for number in numbers:
        maker = MAKERS[number % len(MAKERS)]
        verdict, reasons, told = maker(root / str(number), random.Random(_SEED + number))
        if verdict is not Verdict.SAFE:
            found.append(f"HEALTHY_SEED={_SEED}, {number} {maker.__name__}: {verdict.value} {reasons}, after {told}")
    return found


def test_none_on_some(tmp_path: Path) -> None:
    assert alarms(range(2 * len(MAKERS)), tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_none_on_two_hundred(tmp_path: Path) -> None:
    print(f"HEALTHY_SEED={_SEED}")
    assert alarms(range(200), tmp_path) == []
