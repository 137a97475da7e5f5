"""What a tree holds, so that a test can tell whether anything in it was changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

#: What is noted in a repository beside its backups: who is and was at work, what verifying found.
NOTES = ("running", "claims", "changes", "verified", "damaged", "read")


def fingerprint(*places: Path, without: tuple[str, ...] = ()) -> dict[str, tuple[str, int]]:
    """Hash and modification time of every file, hidden ones too, and every directory.

    :param without: names of directories that are left out, wherever they are.
    """
    found = {}
    for place in places:
        for directory, names, files in os.walk(place):
            names[:] = [n for n in names if n not in without]
            found[directory] = ("directory", 0)
            for name in files:
                path = Path(directory, name)
                found[str(path)] = (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
    return found
