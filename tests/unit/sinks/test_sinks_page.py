"""``docs/sinks.md`` names a test in its cells: each of them is there, and collected where pytest looks."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
PAGE = (TESTS.parent / "docs" / "sinks.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:[a-z_]+/)*test_[a-z_]+\.py(?:::\w+)?)`", PAGE)))


def test_the_page_names_tests() -> None:
    assert len(NAMED) > 15


@pytest.mark.parametrize("named", NAMED)
def test_a_named_test_is_there(named: str) -> None:
    path, _, name = named.partition("::")
    file = TESTS / path if "/" in path else TESTS / "unit" / "sinks" / path
    kinds = (ast.FunctionDef, ast.ClassDef, ast.alias)  # one that is run over other catalogs too is imported
    there = {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds)}
    assert not name or name in there


def test_every_row_has_every_cell() -> None:
    table = PAGE.partition("| sink | recognised |")[2].partition("\n\n")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][1:]
    assert len(rows) > 10
    assert {line.count("|") for line in rows} == {8}
