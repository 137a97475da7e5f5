"""Resolve the Maven coordinates of a file into .cache/ivy, so that later starts of Spark need no network for them.

    python -m dev.fetch_jars dev/spark-jars.txt

Does nothing where the same coordinates were resolved before. What was resolved is listed in ``.cache/ivy/<listing>.jars``,
a path a line, for programs other than Spark.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

IVY = Path(__file__).resolve().parents[1] / ".cache" / "ivy"

RESOLVE = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder.config("spark.jars.packages", sys.argv[1]).config("spark.jars.ivy", sys.argv[2])
spark = builder.getOrCreate()
jars = spark.conf.get("spark.jars").split(",")
with open(sys.argv[3], "w") as listed:
    for jar in jars:
        print(jar.removeprefix("file://"), file=listed)
spark.stop()
"""


def coordinates(listing: Path) -> list[str]:
    """The Maven coordinates that a file names.

    :param listing: one coordinate a line; ``#`` starts a comment.
    """
    lines = (line.partition("#")[0].strip() for line in listing.read_text().splitlines())
    return [line for line in lines if line]


def ready(listing: Path) -> Path:
    """What is there once they are resolved, for this Spark.

    :param listing: the file that names them.
    """
    key = hashlib.sha256(f"{version('pyspark')} {','.join(coordinates(listing))}".encode()).hexdigest()[:16]
    return IVY / f"{listing.stem}-{key}.ready"


def main(listing: Path) -> int:
    """Resolve the coordinates a file names; return the exit code.

    :param listing: one coordinate a line; ``#`` starts a comment.
    """
    stamp = ready(listing)
    if stamp.exists():
        return 0
    IVY.mkdir(parents=True, exist_ok=True)
    # Tests that run side by side need the same jars at the same moment, and Ivy fails where two write into its cache.
    with (IVY / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return 0 if stamp.exists() else _fetch(listing, stamp)


def _fetch(listing: Path, stamp: Path) -> int:
    packages = ",".join(coordinates(listing))
    print(f"fetching {packages} (once, about half a minute)", file=sys.stderr)
    log = IVY / f"{listing.stem}.log"
    with log.open("w") as out:
        # In a process of its own: Ivy writes to the terminal past Python, hundreds of lines.
        command = [sys.executable, "-c", RESOLVE, packages, str(IVY), str(IVY / f"{listing.stem}.jars")]
        done = subprocess.run(command, stdout=out, stderr=out)
    if done.returncode:
        print("".join(log.read_text().splitlines(keepends=True)[-20:]), file=sys.stderr)
        print(
            f"missing: {packages} could not be fetched; the whole log is in {log.relative_to(Path.cwd())}",
            file=sys.stderr,
        )
        return 2
    stamp.touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
