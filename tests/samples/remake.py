"""Make the committed samples again: ``python -m tests.samples.remake [VERSION …]``, some 5 minutes a version."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.samples.archives import VERSIONS, pack
from tests.samples.spark_versions import python_with


def main(versions: list[str]) -> int:
    for version in versions or VERSIONS:
        with tempfile.TemporaryDirectory() as directory:
            made = Path(directory).resolve()
            script = Path(__file__).with_name("kinds.py")
            subprocess.run([python_with(version), script, "make", made], check=True)
            archive = pack(version, made)
        print(f"{archive.name}: {archive.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
