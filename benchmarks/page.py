"""docs/benchmarks.md, of which each script writes its own part."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import fill

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_MARK = re.compile(r"^<!-- written by (\S+) -->\n", re.MULTILINE)


def write_part(script: str, text: str) -> None:
    """Put a part in the place of the one that the same script wrote before.

    :param script: such as ``benchmarks.latency``; ``benchmarks.main`` has the beginning of the page.
    :param text: Markdown.
    """
    head, *rest = _MARK.split(PAGE.read_text())
    parts = dict(zip(rest[::2], rest[1::2], strict=True))
    if script == "benchmarks.main":
        head = text
    else:
        parts[script] = text
    pieces = [head.rstrip(), *(f"<!-- written by {name} -->\n{part.strip()}" for name, part in parts.items())]
    PAGE.write_text(wrapped("\n\n".join(pieces)) + "\n")


def wrapped(text: str) -> str:
    """Markdown whose paragraphs are one line each, in lines of 120 characters; tables, headings and code stay."""
    return "\n".join(map(_wrapped, text.splitlines()))


def _wrapped(line: str) -> str:
    if line.startswith(("|", "#", " ", "!")):
        return line
    indent = "  " if line.startswith("* ") else ""
    return fill(line, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
