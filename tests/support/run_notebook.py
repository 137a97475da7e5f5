"""Runs the code of a notebook, one cell after the other, where Airflow cannot be imported: ``… NOTEBOOK [BASE]``.

With a base directory the notebook is one for Databricks: ``spark`` and ``dbutils`` are there before it begins.
"""

from __future__ import annotations

import json
import shutil
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class NoAirflow(MetaPathFinder):
    """Refuses to import Airflow."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname.partition(".")[0] == "airflow":
            raise ModuleNotFoundError(f"this notebook needs no Airflow, and imports {fullname}", name="airflow")


def of_databricks(base: str) -> dict[str, Any]:
    """What a notebook of Databricks finds."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    widgets = SimpleNamespace(text=lambda name, default: None, get=lambda name: {"base": base}[name])
    fs = SimpleNamespace(
        mkdirs=lambda path: Path(path).mkdir(parents=True), rm=lambda path, recurse: shutil.rmtree(path)
    )
    return {"spark": spark, "dbutils": SimpleNamespace(widgets=widgets, fs=fs)}


def main(notebook: str, base: str | None = None) -> None:
    """Run it."""
    sys.meta_path.insert(0, NoAirflow())
    names: dict[str, Any] = {"__name__": "__main__", **(of_databricks(base) if base else {})}
    cells = json.loads(Path(notebook).read_text())["cells"]
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            # A line of the notebook itself, such as %pip.
            code = "".join(line for line in cell["source"] if not line.startswith("%"))
            exec(compile(code, f"{notebook}, cell {number}", "exec"), names)
    print("ran", sum(cell["cell_type"] == "code" for cell in cells), "cells", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
