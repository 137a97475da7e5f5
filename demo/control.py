"""The control: what people do today, a recursive copy of the live checkpoint, one file after the other."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

#: Seconds until an object store answers a request, as seen from another machine of its region.
LATENCY = 0.050
#: Seconds within which the copies begin.
_WITHIN = 2.0


def copy_recursively(source: Path, target: Path, latency: float = LATENCY) -> int:
    """Copy a directory in listing order, as ``hadoop fs -cp``, ``dbutils.fs.cp`` and others do; return how many files vanished.

    A listing is one request; a file is two, one that reads and one that writes.

    Hidden files are left out: they are the checksums of a local disk, an object store has none. A file that is
    deleted between the listing and its copy is passed over.

    :param source: the checkpoint.
    :param target: where the copy goes.
    :param latency: seconds that each request takes.
    """
    vanished = 0
    target.mkdir(parents=True)
    time.sleep(latency)
    for entry in sorted(source.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            vanished += copy_recursively(entry, target / entry.name, latency)
            continue
        time.sleep(latency)
        try:
            shutil.copyfile(entry, target / entry.name)
        except FileNotFoundError:
            vanished += 1
            continue
        time.sleep(latency)
    return vanished


@dataclass(frozen=True)
class Copy:
    """One recursive copy.

    :param number: counted from 1.
    :param checkpoint: the copy.
    :param files: in it.
    :param vanished: files deleted by Spark between listing and copy.
    :param batches: that the stream committed meanwhile.
    :param seconds: that it took.
    """

    number: int
    checkpoint: Path
    files: int
    vanished: int
    batches: int
    seconds: float

    def __str__(self) -> str:
        """Say it in one line."""
        meanwhile = f"{self.batches} batch{'' if self.batches == 1 else 'es'} meanwhile"
        line = f"copy {self.number}: {self.files} files in {self.seconds:.1f} s, {meanwhile}"
        return f"{line}, {self.vanished} files deleted by Spark before their turn" if self.vanished else line


def newest_batch(checkpoint: Path) -> int:
    """Return the newest batch committed.

    :param checkpoint: of a stream that has committed one.
    """
    return max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())


class Copies:
    """Recursive copies of a running stream's checkpoint, begun at random moments.

    :param checkpoint: the stream's.
    :param place: directory for the copies.
    :param count: how many.
    """

    def __init__(self, checkpoint: Path, place: Path, count: int) -> None:
        self.checkpoint = checkpoint
        self.place = place
        self.count = count
        self._taken: dict[int, Copy] = {}

    def start(self) -> None:
        """Begin; each copy is made by a thread of its own, and they overlap."""
        for number in range(1, self.count + 1):
            threading.Thread(target=self._take, args=(number,), name=f"copy-{number}", daemon=True).start()

    def _take(self, number: int) -> None:
        time.sleep(random.uniform(0, _WITHIN))
        began, before = time.monotonic(), newest_batch(self.checkpoint)
        target = self.place / str(number) / "checkpoint"
        vanished = copy_recursively(self.checkpoint, target)
        seconds, batches = time.monotonic() - began, newest_batch(self.checkpoint) - before
        files = sum(path.is_file() for path in target.rglob("*"))
        self._taken[number] = Copy(number, target, files, vanished, batches, seconds)

    @property
    def is_done(self) -> bool:
        """Whether all were taken."""
        return len(self._taken) == self.count

    @property
    def taken(self) -> list[Copy]:
        """The copies, by number."""
        return [self._taken[number] for number in sorted(self._taken)]


@dataclass(frozen=True)
class Attempt:
    """What a start from a checkpoint came to.

    :param name: of the attempt.
    :param error: why Spark refused, or ``None`` if it ran to the end of the input.
    """

    name: str
    error: str | None

    @classmethod
    def read(cls, path: Path) -> dict[str, Attempt]:
        """Read the results of ``demo.catch_up``, by name."""
        return {name: cls(name, error) for name, error in json.loads(path.read_text()).items()}
