"""The notebooks of docs/notebooks, run on open Spark where Airflow cannot be imported: their own assertions hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "docs/notebooks"
RUNNER = ROOT / "tests/support/run_notebook.py"
#: What both do, in this order.
STEPS = ("inspect", "init", "backup", "verify", "doctor", "restore", "rewind")

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("name", ["open-spark", "databricks"])
def test_every_cell_runs(name: str, tmp_path: Path) -> None:
    base = [str(tmp_path / "volume")] if name == "databricks" else []
    done = subprocess.run(
        [sys.executable, str(RUNNER), str(NOTEBOOKS / f"{name}.ipynb"), *base],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "The table has the rows of a run that never went wrong." in done.stdout
    printed = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("$ airflow-ckpt ")]
    assert list(dict.fromkeys(printed)) == list(STEPS)
    assert not (tmp_path / "volume").exists()


def test_a_notebook_whose_rows_are_wrong_fails(tmp_path: Path) -> None:
    """What is asserted in a cell is seen by the test."""
    notebook = json.loads((NOTEBOOKS / "open-spark.ipynb").read_text())
    broken = tmp_path / "broken.ipynb"
    broken.write_text(json.dumps({**notebook, "cells": [{"cell_type": "code", "source": ["assert False, 'wrong'\n"]}]}))
    done = subprocess.run(
        [sys.executable, str(RUNNER), str(broken)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "wrong" in done.stderr
