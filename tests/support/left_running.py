"""What a demo has left running."""

from __future__ import annotations

import os
from pathlib import Path


def still_running(output: Path) -> list[str]:
    """Command lines of processes that name the output of a demo."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(output) in line and place.name != str(os.getpid()):
            found.append(line)
    return found
