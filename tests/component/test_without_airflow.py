"""The core and the command line in an environment that has no Airflow: installed from the wheel, with few packages.

The environment is made by uv on first use (from its cache, else from the index that uv is set up for).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.one_checkpoint import unpack

ROOT = Path(__file__).parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a program of the environment, away from the checkout."""
    home = tmp_path_factory.mktemp("without-airflow")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", home], cwd=ROOT / "core", check=True
    )
    [wheel] = home.glob("*.whl")
    uv, python = [str(ROOT / "dev/uv.sh")], home / "env/bin/python"
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(home / "env")], cwd=ROOT, check=True)
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", str(python), str(wheel)], cwd=ROOT, check=True)

    def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "AIRFLOW_HOME")}
        words = [str(home / "env/bin" / program), *map(str, arguments)]
        return subprocess.run(words, cwd=home, env=env, capture_output=True, text=True, check=False)

    return run


def test_few_packages_and_no_airflow(run: Run) -> None:
    listed = run("python", "-c", "from importlib.metadata import distributions as d; print(*(x.name for x in d()))")
    packages = set(listed.stdout.split())
    assert "airflow-ckpt-core" in packages
    assert len(packages) <= 12, packages
    assert run("python", "-c", "import airflow").returncode == 1


def test_every_module_can_be_imported(run: Run) -> None:
    """But for those that are a part of a Spark application."""
    code = (
        "import importlib, pkgutil, airflow_ckpt_provider as p\n"
        "for m in pkgutil.walk_packages(p.__path__, p.__name__ + '.'):\n"
        "    try:\n"
        "        importlib.import_module(m.name)\n"
        "        print('loaded')\n"
        "    except ModuleNotFoundError as e:\n"
        "        print(m.name, e.name)\n"
    )
    done = run("python", "-c", code)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said.count("loaded") > 300
    missing = [line.split() for line in said if line != "loaded"]
    assert {name for _, name in missing} == {"pyspark"}
    assert {module.split(".")[1] for module, _ in missing} <= {"jobs", "spark"}


def test_the_steps_of_the_tutorial(run: Run, tmp_path: Path) -> None:
    """Inspect, back up, verify, rewind and undo it, lose a file, restore it and undo that."""
    checkpoint, backups = tmp_path / "checkpoints/orders", tmp_path / "backups"
    unpack(checkpoint)

    def json_of(*arguments: object, code: int = 0) -> dict[str, object]:
        done = run("airflow-ckpt", *arguments, "--json")
        assert done.returncode == code, done
        document = json.loads(done.stdout)
        assert isinstance(document, dict)
        return document

    before = json_of("inspect", checkpoint)
    json_of("init", backups)
    made = json_of("backup", checkpoint, backups, "--reason", "tutorial")
    assert made["batch_id"] == before["latest_committed"]
    json_of("verify", backups, "latest", "--name", "orders", "--read-data")

    rewind = ("rewind", checkpoint, "--repository", backups, "--to-batch", 4, "--query-is-stopped")
    plan = json_of(*rewind)
    accepted = [word for name in plan["accept"] for word in ("--accept", name)]  # type: ignore[attr-defined]
    json_of(*rewind, *accepted, "--apply")
    assert json_of("inspect", checkpoint)["latest_committed"] == 4
    json_of("undo", checkpoint, "--repository", backups, "--query-is-stopped")

    lost = checkpoint / "state/0/0/6.changelog"
    lost.unlink()
    assert json_of("doctor", checkpoint, code=1)["findings"]
    restore = ("restore", backups, "latest", checkpoint, "--name", "orders", "--replace", "--query-is-stopped")
    json_of(*restore, "--apply")
    assert lost.exists()
    json_of("undo", checkpoint, "--repository", backups, "--query-is-stopped")
    assert not lost.exists()


def test_a_missing_extra_is_one_of_the_core(run: Run) -> None:
    done = run("airflow-ckpt", "inspect", "gs://bucket/checkpoint")
    assert done.returncode == 3
    assert "HINT: pip install 'airflow-ckpt-core[google]'" in done.stderr
