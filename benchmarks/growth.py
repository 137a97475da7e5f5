"""How the cost of a backup grows with history and with state partitions: ``python -m benchmarks.growth``.

How it grows with the files is in the results of ``benchmarks.main`` and ``benchmarks.requests``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow_ckpt_provider.backup.repository import Repository
from benchmarks import report
from benchmarks.ground import Ground, warm_up
from benchmarks.results import GROWTH, write
from benchmarks.sample_tree import SampleTree
from benchmarks.setting import setting, today
from benchmarks.steps import Step
from benchmarks.tools import OursInProcess
from tests.support.s3_gate import Gate
from tests.support.s3_server import S3Server, running_s3_server

FILES = 2000
#: Backups in the repository, and state partitions of the tree of :data:`FILES` changelogs.
HISTORIES = (1, 10, 100)
PARTITIONS = (10, 100, 1000)
_REPEATS = 5


def main() -> None:
    """Entry point."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        scratch = Path(directory, "scratch")
        for place in (scratch, Path(directory, "server")):
            place.mkdir()
        with running_s3_server(Path(directory, "server")) as server:
            direct = OursInProcess(server, scratch)
            warm_up(server, scratch, [direct])
            for kind, found in (("history", _histories(server, scratch)), ("partitions", _partitions(server, scratch))):
                for row in found:
                    print(kind, row, flush=True)
                    rows.append({"grows": kind, **row})
    write(GROWTH, {"files": FILES, "repeats": _REPEATS, "date": today(), "setting": setting([direct]), "rows": rows})
    report.main()


def _histories(server: S3Server, scratch: Path) -> Iterator[dict[str, Any]]:
    """Steps with so many backups in the repository, each of another state of the checkpoint."""
    point = Point(server, scratch, SampleTree(partitions=FILES // 25))
    made = 0
    for backups in HISTORIES:
        while made < backups:
            if made:
                point.ground.change(made)
            point.take(Step.FIRST if not made else Step.CHANGED)
            made += 1
        for step in (Step.NOTHING, Step.VERIFY, Step.RESTORE):
            yield {"at": backups, **point.measured(step)}


def _partitions(server: S3Server, scratch: Path) -> Iterator[dict[str, Any]]:
    """Steps with so many state partitions, of the same number of files."""
    for partitions in PARTITIONS:
        point = Point(server, scratch, SampleTree(partitions=partitions, batches=FILES // partitions))
        for step in (Step.FIRST, Step.NOTHING, Step.VERIFY, Step.RESTORE):
            yield {"at": partitions, **point.measured(step)}


class Point:
    """A checkpoint and its repository.

    :param server: the server.
    :param scratch: a directory.
    :param tree: the checkpoint.
    """

    def __init__(self, server: S3Server, scratch: Path, tree: SampleTree) -> None:
        self.server = server
        self.scratch = scratch
        self.ground = Ground(server, scratch, tree, local=False)
        self.target = ""

    def measured(self, step: Step) -> dict[str, Any]:
        """Seconds, the median of some runs, and requests, counted in another run."""
        seconds = [self.take(step) for _ in range(_REPEATS)]
        gate = Gate(self.server)
        try:
            with gate.watched() as seen:
                self.take(step, S3Server(urlsplit(gate.endpoint).port or 0, self.server.pid))
        finally:
            gate.close()
        return {"step": step, "seconds": round(statistics.median(seconds), 4), "requests": len(seen)}

    def take(self, step: Step, server: S3Server | None = None) -> float:
        """Take a step; seconds. What it leaves is removed, but for a first backup and one of changes.

        :param server: the way to the server.
        """
        ground, back = self.ground, ""
        if step is Step.FIRST:
            self.target = ground.new_bucket("target") + "/orders"
        elif step is Step.RESTORE:
            back = ground.new_bucket("restored") + "/orders"
        tool, began = OursInProcess(server or self.server, self.scratch), time.monotonic()
        tool.take(step, ground.source, self.target, back)
        seconds = time.monotonic() - began
        if step is Step.NOTHING:  # the history is to stay as long as it is
            repository = Repository.open(ground.place(self.target))
            repository.location.delete(repository.manifest("latest").path)
        elif back:
            ground.drop(back)
        return seconds


if __name__ == "__main__":
    main()
