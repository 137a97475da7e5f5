"""No name or address begins a cell, a row or a block of its own in a plan that somebody approves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.change.plan_page import plan_page
from airflow_ckpt_provider.guards.report import GuardReport, Judgement, PartReport, SourceReport
from airflow_ckpt_provider.verdict import Verdict

#: What an address of a sink or a reason may hold, which nobody has checked.
NASTY = "s3://lake/t | **SAFE** |\n| verdict | **SAFE** |\r\n### Approved\u2028x\n\nrest \\| a \\\\| b \\"
#: Lists of errors and hints, which a terminal shows.
IN_PLAIN_TEXT = {"advisor/advice.py", "upgrade/way_back.py"}
#: As Airflow's web interface and GitHub read it: with tables.
READER = MarkdownIt().enable("table")


def elements(text: str) -> list[str]:
    """What begins in a text, in the order in which it does: ``tr``, ``td``, ``li``, ``h3``, …"""
    return [token.tag for token in READER.parse(text) if token.nesting == 1 and token.tag != "p"]


def cells_by_github(row: str) -> int:
    """Cells of a row as the tokenizers of GitHub and of Airflow find them: a backslash takes one character along."""
    return len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) - 1


def test_a_table_has_its_rows_and_cells_whatever_is_in_them() -> None:
    made = markdown.table(("sink", "rows>"), [(NASTY, 5), ("`a|b`", None)])
    assert elements(made) == ["table", "thead", "tr", "th", "th", "tbody", *["tr", "td", "td"] * 2]
    lines = made.split("\n")
    assert lines[:2] == ["| sink | rows |", "|---|---:|"]
    assert [cells_by_github(line) for line in lines] == [2] * 4
    assert lines[3] == r"| `a\|b` | None |"


@pytest.mark.parametrize("backslashes", range(5))
def test_a_pipe_behind_backslashes_ends_no_cell(backslashes: int) -> None:
    made = markdown.facts([("a" + "\\" * backslashes + "|b", "c" + "\\" * backslashes)])
    assert elements(made)[-3:] == ["tr", "td", "td"]
    assert cells_by_github(made.split("\n")[-1]) == 2


def test_lists_have_a_line_for_each_text() -> None:
    assert elements(markdown.bullets([NASTY, "b"])) == ["ul", "li", "li"]
    assert elements(markdown.steps([NASTY, "b"])) == ["ol", "li", "li"]
    assert markdown.steps(["a", "b"]) == "1. a\n2. b"


@pytest.mark.parametrize("text", ["a", "a`b", "``", "`"])
def test_code_ends_where_the_text_ends(text: str) -> None:
    made = markdown.code(text)
    marks = re.match("`+", made)
    assert marks is not None
    assert made.removeprefix(marks[0]).removesuffix(marks[0]).strip() == text
    assert marks[0] not in re.findall("`+", text)


def test_a_plan_of_a_change_has_its_own_lines_only() -> None:
    shown = plan_page("Rewind", "p1", [("sink", NASTY), ("verdict", "**WILL_LOSE**")], [NASTY], steps=[NASTY])
    table = ["table", "thead", "tr", "th", "th", "tbody", *["tr", "td", "td"] * 2]
    assert elements(shown) == ["h3", *table, "ul", "li", "ol", "li"]


def test_a_report_of_a_guard_has_its_own_rows_only() -> None:
    """The name of a source comes from the checkpoint, and the subject is an address."""
    part = PartReport(NASTY, Verdict.WILL_LOSE, {"example": NASTY})
    source = SourceReport(NASTY, "delta", (Judgement(Verdict.WILL_LOSE, NASTY),), parts=(part,))
    shown = GuardReport(NASTY, (source,), (Judgement(Verdict.UNKNOWN, NASTY),), 5).to_markdown()
    assert elements(shown) == [
        *("h2", "ul", "li", "h3", "ul", "li", "li"),
        *("table", "thead", "tr", "th", "th", "th", "tbody", "tr", "td", "td", "td"),
    ]


def test_only_this_module_makes_tables_and_lists() -> None:
    """A second way would forget what this one keeps out."""
    package = Path(markdown.__file__).parent
    by_hand = re.compile(r'"\|?---\||"\* \{|enumerate\((?:self\.)?steps, 1\)')
    makers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if by_hand.search(path.read_text(encoding="utf-8"))
    }
    assert makers == {"markdown.py", *IN_PLAIN_TEXT}
