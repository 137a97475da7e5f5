"""docs/benchmarks.md, of which each script writes its own part."""

from __future__ import annotations

import re
from pathlib import Path

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
    PAGE.write_text("\n\n".join(pieces) + "\n")
