"""What people read is checked for the phrases of the table in CONTRIBUTING.md, and prose for its width."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHECK = runpy.run_path(str(ROOT / "dev/check_prose.py"))
TERMS = CHECK["terms"]((ROOT / "CONTRIBUTING.md").read_text())


def found(path: str, text: str) -> list[str]:
    return list(CHECK["findings"](path, text, TERMS, CHECK["pattern"](TERMS)))


def test_the_table_is_read() -> None:
    assert TERMS["goes on"] == TERMS["went on"] == "resumes, continues"
    assert len(TERMS) > 60
    assert "not" not in TERMS


def test_every_phrase_is_found_and_has_its_remedy() -> None:
    for phrase, instead in TERMS.items():
        [line] = found("page.md", f"One.\n\nIt {phrase.replace('…', 'word')} here.\n")
        assert line.startswith(f"page.md:3: write {instead!r}, not ")


def test_phrases_are_found_across_lines_and_in_any_case() -> None:
    assert found("page.md", "It goes\non.\n") == ["page.md:1: write 'resumes, continues', not 'goes on'"]
    assert found("page.md", "* Goes on.\n") == ["page.md:1: write 'resumes, continues', not 'Goes on'"]


def test_python_is_read_where_people_read_it() -> None:
    text = """'''One.

It goes on.
'''

goes_on = 1  # it is mended
raise E(
    f"it goes "
    "on"
)
# It goes
# on.
"""
    assert [line.split(": ")[0] for line in found("a.py", text)] == ["a.py:3", "a.py:8", "a.py:6", "a.py:11"]


def test_a_phrase_runs_on_in_the_next_line_of_a_notebook() -> None:
    lines = ["Say it.\n", "`--query-is-stopped` is your\n", "word that it rests."]
    text = json.dumps({"cells": [{"source": ["# A\n", "# page"]}, {"source": lines}]}, indent=1)
    at = text.splitlines().index('    "`--query-is-stopped` is your\\n",') + 1
    assert found("page.ipynb", text) == [
        f"page.ipynb:{at}: write 'your statement, the statement of …', not 'your word'"
    ]


def test_names_in_code_are_no_prose() -> None:
    assert found("a.py", "from a import told, lives\n\nlives(told, seam=1).go\n") == []


def test_the_table_itself_is_no_finding() -> None:
    assert found("CONTRIBUTING.md", "# A\n\n## Terms\n\n| x | goes on |\n\n## B\n\nIt is mended.\n") == [
        "CONTRIBUTING.md:9: write 'fixed, repaired', not 'mended'"
    ]


def test_width_is_that_of_prose() -> None:
    wide = "word " * 30
    table, link = f"| {wide} |", f"* [a](https://{'x' * 120})"
    assert found("page.md", f"{wide}\n\n{table}\n\n{link}\n\n```\n{wide}\n```\n\n  ```\n  {wide}\n  ```\n{wide}\n") == [
        "page.md:1: wider than 120 characters",
        "page.md:14: wider than 120 characters",
    ]
