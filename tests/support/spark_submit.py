"""A program in the place of ``spark-submit``, and a connection that lets Airflow call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def plant_spark_submit(
    patches: pytest.MonkeyPatch, directory: Path, text: str, *, host: str = "yarn", **environment: str
) -> None:
    """Write the program, and put it into the path.

    :param directory: where ``bin`` is made.
    :param text: the program.
    :param host: of the connection ``spark_default``: Spark's master.
    :param environment: what the program finds in its environment.
    """
    program = directory / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text(text)
    program.chmod(0o755)
    connection = json.dumps({"conn_type": "spark", "host": host})
    path = f"{program.parent}:/usr/bin:/bin"
    for name, value in {"PATH": path, "AIRFLOW_CONN_SPARK_DEFAULT": connection, **environment}.items():
        patches.setenv(name, value)
