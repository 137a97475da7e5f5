"""docs/lakeflow-contract.md: no claim without a source and a test, and every switch of the fake workspace is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "lakeflow-contract.md").read_text()
ESTABLISHED, OPEN = PAGE.split("## Not established")
FILES = {file: file.read_text() for file in (ROOT / "tests").rglob("*.py") if file != Path(__file__)}
FAKE = "\n".join(text for file, text in FILES.items() if file.parent.name == "fake_databricks")
TESTS = "\n".join(text for file, text in FILES.items() if file.parent.name != "fake_databricks")


def rows(text: str) -> list[list[str]]:
    found = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found]


def claims() -> list[list[str]]:
    return [row for row in rows(ESTABLISHED) if row[0] != "claim"]


def test_every_claim_has_a_source_and_a_test() -> None:
    assert len(claims()) > 40
    for row in claims():
        assert len(row) == 3, row
        assert all(row), row


def test_every_test_that_is_named_exists() -> None:
    for row in claims():
        for name in re.findall(r"`(test_\w+)`", row[2]):
            assert f"def {name}(" in TESTS, name
        for file in re.findall(r"`([\w/]+\.py)`", row[2]):
            assert (ROOT / file).exists() or list((ROOT / "tests").rglob(file)), file


@pytest.mark.parametrize("row", [row for row in rows(OPEN) if row[0] != "question"], ids=lambda row: row[0][:40])
def test_every_switch_exists(row: list[str]) -> None:
    assert len(row) == 2, row
    said = re.search(r"The fake (?:does both|keeps|has both|fails it, rejects it)[^`|]*\(`([^|]*?)`\)", row[1])
    for name in re.findall(r"[\w.]+", said[1] if said else ""):
        switch = name.rpartition(".")[2]
        assert re.search(rf"\b{switch}\b", FAKE), switch
        assert re.search(rf"\b{switch}\b", TESTS), f"no test sets {switch}"


@pytest.mark.parametrize(
    "word",
    [
        "development",
        "serverless",
        "bundle",
        "permission|CAN MANAGE",
        "throttled|Retry-After",
        "page_token",
        "events are kept",
        "continuous",
    ],
)
def test_the_page_speaks_of(word: str) -> None:
    assert re.search(word, PAGE, re.IGNORECASE)
