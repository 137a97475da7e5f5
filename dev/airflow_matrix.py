"""Try the package with every Airflow that it is for (`make matrix`): each in a virtual environment of its own below .cache.

In each: every module is imported, every example DAG is parsed, and one DAG runs (`scheduled_backup`, which backs up a checkpoint
and reads it again). `CONSTRAINTS=URL` installs by Airflow's constraint files; `{version}` and `{python}` in it are filled in.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

#: The newest release of each minor version that pyproject.toml allows.
VERSIONS = ("3.1.8", "3.2.2", "3.3.2")
#: Airflow names no upper bound of some packages whose later releases break it; its constraint files do.
_BOUNDS = {"3.1.8": ["pydantic<2.14"], "3.2.2": ["fastapi<0.145", "pydantic<2.14", "svcs<26"]}
ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".cache" / "airflow-matrix"
_EXTRAS = "amazon,databricks,delta,encryption,kafka,spark"
_IMPORTS = """
import importlib, pkgutil, airflow_ckpt_provider as package
names = [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in names:
    importlib.import_module(name)
print(len(names), "modules")
"""


def environment(version: str) -> Path:
    """Make the virtual environment of a version, or take the one that is there; return its Python.

    :param version: of Airflow.
    """
    place = PLACE / version
    python, ready = place / "bin" / "python", place / "ready"
    wanted = (ROOT / "pyproject.toml").read_text() + repr(_BOUNDS)
    if ready.exists() and ready.read_text() == wanted:
        return python
    uv = ["sh", "dev/uv.sh"]
    subprocess.run([*uv, "venv", "--quiet", "--clear", "--python", sys.executable, place], cwd=ROOT, check=True)
    constraints = os.environ.get("CONSTRAINTS")
    by = []
    if constraints:
        minor = f"{sys.version_info.major}.{sys.version_info.minor}"
        by = ["--constraints", constraints.format(version=version, python=minor)]
    what = [f"apache-airflow=={version}", f".[{_EXTRAS}]", *_BOUNDS.get(version, ())]
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", python, *by, *what], cwd=ROOT, check=True)
    # What is tried is this checkout, not the copy that was installed with its dependencies.
    subprocess.run(
        [*uv, "pip", "install", "--quiet", "--python", python, "--no-deps", "--editable", "core", "--editable", "."],
        cwd=ROOT,
        check=True,
    )
    ready.write_text(wanted)
    return python


def check(version: str, home: Path, checkpoint: Path) -> dict[str, str]:
    """Try a version; return what it said at each step.

    :param version: of Airflow.
    :param home: an empty directory for its AIRFLOW_HOME.
    :param checkpoint: a checkpoint that is backed up.
    :raises subprocess.CalledProcessError: a step failed; its output is in the error.
    """
    python = environment(version)
    env = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "PYTHONPATH"))},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of this check, long enough for the algorithm: " + "x" * 64,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    }

    def run(*arguments: str) -> str:
        done = subprocess.run([python, *arguments], cwd=home, env=env, text=True, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(f"Airflow {version}: {' '.join(arguments)[:200]}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    said = {"imports": run("-W", "ignore", "-c", _IMPORTS)}
    run("-m", "airflow", "db", "migrate")
    said["version"] = run("-m", "airflow", "version")
    run("-m", "airflow", "dags", "reserialize")
    said["errors"] = run("-m", "airflow", "dags", "list-import-errors", "--output", "json")
    said["dags"] = run("-m", "airflow", "dags", "list", "--output", "json")
    form = {"checkpoint": str(checkpoint), "repository": str(home / "backups"), "name": "orders", "create": True}
    said["run"] = run("-m", "airflow", "dags", "test", "scheduled_backup", "--conf", json.dumps(form))
    return said
