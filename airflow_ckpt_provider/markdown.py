"""Markdown of plans and reports: no name or address in it can begin a cell, a line or a block of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table.

    :param columns: their headings; numbers stand on the right below a heading that ends in ``>``.
    :param rows: cells, as text.
    """
    ruler = "".join("---:|" if column.endswith(">") else "---|" for column in columns)
    return "\n".join([_row(column.removesuffix(">") for column in columns), f"|{ruler}", *map(_row, rows)])


def facts(rows: Iterable[tuple[str, object]]) -> str:
    """Return a table of names and values, without headings."""
    return "\n".join(["| | |", "|---|---|", *map(_row, rows)])


def bullets(texts: Iterable[str]) -> str:
    """Return a list, a line for each text."""
    return "\n".join(f"* {line(text)}" for text in texts)


def steps(texts: Iterable[str]) -> str:
    """Return a numbered list, a line for each text."""
    return "\n".join(f"{number}. {line(text)}" for number, text in enumerate(texts, 1))


def line(text: str) -> str:
    """Return a text in one line."""
    return " ".join(text.splitlines())


def code(text: str) -> str:
    """Return a text as code in a line, whatever backticks it has."""
    text = line(text)
    marks = "`" * (max(map(len, re.findall(r"`+", text)), default=0) + 1)
    room = " " if "`" in text else ""
    return f"{marks}{room}{text}{room}{marks}"


def fence_of(text: str) -> str:
    """Return a fence for a block of code that nothing in it ends."""
    return "`" * max(3, max(map(len, re.findall(r"`+", text)), default=0) + 1)


def _row(cells: Iterable[object]) -> str:
    # Two backslashes are read as one that is meant: only behind an odd number of them a pipe ends no cell.
    texts = (re.sub(r"(?<!\\)((?:\\\\)*)\|", r"\1\\|", line(str(cell))) for cell in cells)
    return "".join(f"| {text} " if text else "| " for text in texts) + "|"
