"""What documentation and docstrings point to exists: modules, tests, pages; and both layouts name all of the code."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.source_code import statements

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_ckpt_provider"
FILES = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
#: Files of other projects, and of users.
FOREIGN = {"databricks/sdk/service/pipelines.py", "./deploy.sh"}


@cache
def prose() -> tuple[tuple[str, str], ...]:
    """Each page and docstring, with where it is."""
    return tuple(_prose())


def _prose() -> Iterator[tuple[str, str]]:
    for path in FILES:
        if path.endswith(".md") and not path.startswith(("tests/", "CHANGELOG")):
            yield path, re.sub(r"^( *)```.*?^\1```", "", (ROOT / path).read_text(), flags=re.MULTILINE | re.DOTALL)
        elif path.endswith(".py") and path.startswith(
            ("airflow_ckpt_provider/", "dags/", "demo/", "dev/", "benchmarks/")
        ):
            for node in statements(ROOT / path):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield path, ast.get_docstring(node) or ""


def ends(path: str) -> Iterator[str]:
    """``a/b.py`` -> ``b.py`` and ``a/b.py``."""
    parts = path.split("/")
    return ("/".join(parts[number:]) for number in range(len(parts)))


def test_every_module_that_prose_names_exists() -> None:
    known = {end for path in FILES for end in ends(path)}
    missing = [
        f"{where}: {name}"
        for where, text in prose()
        for name in re.findall(r"``?([\w./-]*\w\.(?:py|sh))(?:::[\w:]+)?``?", text)
        if name.removeprefix("../").removeprefix("../") not in known and name not in FOREIGN
    ]
    assert missing == []


def test_every_reference_in_a_docstring_exists() -> None:
    missing = []
    for where, text in prose():
        for dotted in re.findall(r":(?:mod|func|class|meth|data|attr):`[~.]*(airflow_ckpt_provider[\w.]+)`", text):
            *module, _ = dotted.split(".")
            for depth in range(len(module) + 1, 1, -1):
                path = ROOT.joinpath(*dotted.split(".")[:depth])
                if path.is_dir() or path.with_suffix(".py").is_file():
                    break
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            rest = dotted.split(".")[depth:]
            if rest and not all(re.search(rf"\b{part}\b", file.read_text()) for part in rest):
                missing.append(f"{where}: {dotted}")
    assert missing == []


@pytest.mark.parametrize("page", ["docs/design.md", "CONTRIBUTING.md"])
def test_the_layout_names_every_module(page: str) -> None:
    text = (ROOT / page).read_text()
    modules = {path.split("/")[1] for path in FILES if path.startswith(f"{PACKAGE.name}/")}
    files = {name for name in modules if name.endswith(".py") and name != "__init__.py"}
    folders = {f"{name}/" for name in modules if (PACKAGE / name).is_dir()}
    assert len(files) + len(folders) > 30
    assert [name for name in sorted(files | folders) if not re.search(rf"(?<![\w/]){re.escape(name)}", text)] == []
