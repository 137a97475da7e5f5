"""The documents of --json, and the page that describes them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.command_line import Finished

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def documented(verb: str, which: int = 0) -> dict[str, str]:
    """Keys and meanings of a verb's n-th table of keys."""
    section = PAGE.read_text().partition(f"\n## {verb}\n")[2].partition("\n## ")[0]
    tables = section.split("| key | |\n|---|---|\n")[1:]
    rows = tables[which].partition("\n\n")[0].splitlines()
    return dict(re.fullmatch(r"\| `(\w+)` \| (.+) \|", r).groups() for r in rows)


def named_in(text: str, found: Iterable[dict[str, Any]]) -> None:
    """Each of the keys of JSON objects is named in a text."""
    for value in found:
        assert value.keys() <= set(re.findall(r"`(\w+)`", text))


def one_document(finished: Finished) -> dict[str, Any]:
    assert finished.code == 0
    assert finished.err == ""
    return finished.document
