"""Every Airflow that pyproject.toml allows: all modules are imported, all example DAGs parsed, one of them is run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.storage.opening import open_location
from dev.airflow_matrix import ROOT, VERSIONS, check

pytestmark = [pytest.mark.slow, pytest.mark.airflow, pytest.mark.timeout(1800)]

#: The DAGs that are there without any setting have the names of their files.
DAGS = {file.stem for file in (ROOT / "dags").glob("*.py")}


@pytest.mark.parametrize("version", VERSIONS)
def test_it_works_with(version: str, checkpoint: Path, tmp_path: Path) -> None:
    home = tmp_path / "airflow"
    home.mkdir()
    said = check(version, home, checkpoint)
    assert version in said["version"]
    assert int(re.findall(r"(\d+) modules", said["imports"])[-1]) > 400
    assert {dag["dag_id"] for dag in _rows(said["dags"])} >= DAGS
    assert "No data found" in said["errors"] or _rows(said["errors"]) == []
    [backup] = Repository.open(open_location(str(home / "backups"))).backups("orders")
    assert backup.batch_id == 5


def _rows(output: str) -> list[dict[str, str]]:
    """The list that a command prints behind its log, whose lines may begin with a bracket too."""
    for line in re.finditer(r"^\[", output, flags=re.MULTILINE):
        try:
            rows: list[dict[str, str]] = json.loads(output[line.start() :])
        except json.JSONDecodeError:
            continue
        return rows
    raise AssertionError(f"no list in {output}")


def test_the_floor_is_the_oldest_that_is_tried() -> None:
    floor = re.search(r'"apache-airflow>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert floor
    assert VERSIONS[0].startswith(floor[1] + ".")
