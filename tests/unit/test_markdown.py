"""No name or address begins a cell, a row or a block of its own in a plan that somebody approves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.change.plan import plan_page
from airflow_ckpt_provider.guards.report import Judgement, PartReport, SourceReport
from airflow_ckpt_provider.verdict import Verdict

#: What an address of a sink or a reason may hold, which nobody has checked.
NASTY = "s3://lake/t | **SAFE** |\n| verdict | **SAFE** |\r\n\u2028### Approved\n\nrest"


def cells(row: str) -> list[str]:
    return re.split(r"(?<!\\)\|", row.strip("|"))


def test_a_table_has_its_rows_and_cells_whatever_is_in_them() -> None:
    made = markdown.table(("sink", "rows>"), [(NASTY, 5), ("`a|b`", None)]).split("\n")
    assert made[:2] == ["| sink | rows |", "|---|---:|"]
    assert [len(cells(row)) for row in made[2:]] == [2, 2]
    assert made[3] == r"| `a\|b` | None |"


def test_lists_have_a_line_for_each_text() -> None:
    assert len(markdown.bullets([NASTY, "b"]).splitlines()) == 2
    assert len(markdown.steps([NASTY, "b"]).splitlines()) == 2
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
    rows = [line for line in shown.splitlines() if line.startswith("|")]
    assert [len(cells(row)) for row in rows] == [2, 2, 2, 2]
    assert [line for line in shown.splitlines() if line.startswith("#")] == ["### Rewind, plan p1"]
    assert sum("verdict" in cells(row)[0] for row in rows) == 1


def test_a_report_of_a_guard_has_its_own_rows_only() -> None:
    part = PartReport(NASTY, Verdict.WILL_LOSE, {"example": NASTY})
    shown = SourceReport("0", "delta", (Judgement(Verdict.WILL_LOSE, NASTY),), parts=(part,)).to_markdown()
    assert [len(cells(row)) for row in shown.splitlines() if row.startswith("|")] == [3, 3, 3]
    assert sum(line.startswith("#") for line in shown.splitlines()) == 1


def test_only_this_module_makes_tables() -> None:
    """A second way would forget what this one keeps out."""
    package = Path(markdown.__file__).parent
    makers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r'"\|?---\|', path.read_text(encoding="utf-8"))
    }
    assert makers == {"markdown.py"}
