"""What people do without this package: copy a checkpoint file by file, as a tool that reads an object store does.

The control of the soak. It lists everything, then copies one file after the other in the order of the listing, and each
takes as long as a small request to an object store.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

#: Seconds that one small object takes.
SECONDS_A_FILE = 0.01


def naive_copy(source: Path, target: Path) -> int:
    """Copy a checkpoint; return how many of the listed files were gone when their turn came.

    Hadoop's hidden checksums are left out, for an object store has none; they would only make torn copies louder.
    """
    listing = sorted(
        Path(directory) / name
        for directory, _, names in os.walk(source)
        for name in names
        if not (name.startswith(".") and name.endswith(".crc"))
    )
    vanished = 0
    for file in listing:
        time.sleep(SECONDS_A_FILE)
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(file, copy)
        except FileNotFoundError:
            vanished += 1
    return vanished
