"""What a tree holds, so that a test can tell whether anything in it was changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def fingerprint(*places: Path, without: str | None = None) -> dict[str, tuple[str, int]]:
    """Hash and modification time of every file, hidden ones too, and every directory.

    :param without: a directory right below a place that is left out.
    """
    found = {}
    for place in places:
        for directory, names, files in os.walk(place):
            if without and Path(directory) == place:
                names[:] = [n for n in names if n != without]
            found[directory] = ("directory", 0)
            for name in files:
                path = Path(directory, name)
                found[str(path)] = (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
    return found
