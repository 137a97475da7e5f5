"""What people do without this package: copy a checkpoint file by file, as a tool that reads an object store does.

The control of the soak. Each file takes as long as a small request to an object store.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

#: Seconds that one small object takes.
SECONDS_A_FILE = 0.01


def naive_copy(source: Path, target: Path, *, listed_first: bool) -> int:
    """Copy a checkpoint one file after the other; return how many of the listed files were gone when their turn came.

    Hadoop's hidden checksums are left out, for an object store has none; they would only make torn copies louder.

    :param listed_first: list all of it by name, then copy, as ``aws s3 sync`` does with some hundred files; otherwise list
        each directory when its turn comes and take the files as the disk has them, as ``cp -r`` does.
    """
    files = _files(source, by_name=listed_first)
    vanished = 0
    for file in list(files) if listed_first else files:
        time.sleep(SECONDS_A_FILE)
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(file, copy)
        except FileNotFoundError:
            vanished += 1
    return vanished


def _files(directory: Path, *, by_name: bool) -> Iterator[Path]:
    entries = list(os.scandir(directory))
    for entry in sorted(entries, key=lambda entry: entry.name) if by_name else entries:
        if entry.is_dir():
            yield from _files(Path(entry.path), by_name=by_name)
        elif not (entry.name.startswith(".") and entry.name.endswith(".crc")):
            yield Path(entry.path)
