"""Unpacks a checkpoint that Spark 4.0.0 left, for trying the commands without Spark: ``python -m demo.sample DIRECTORY``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.one_checkpoint import unpack

if __name__ == "__main__":
    directory = Path(sys.argv[1])
    if directory.exists():
        sys.exit(f"{directory} exists already: name another directory")
    files = sum(path.is_file() for path in unpack(directory).rglob("*"))
    print(f"{directory}: {files} files")
