"""How the cost of a backup into packs grows: ``python -m benchmarks.growth``, or a part: ``--kinds backups``.

With the files of a checkpoint, the backups in a repository, the streams in a repository and the state partitions. Each
point is added to those of earlier runs, in the place of the same point, as long as machine, versions and code are the same.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from benchmarks import report
from benchmarks.alone import alone
from benchmarks.curves import HISTORY_FILES, PARTITION_FILES, STREAM_FILES
from benchmarks.ground import Ground, warm_up
from benchmarks.results import GROWTH, read, write
from benchmarks.sample_tree import SampleTree
from benchmarks.setting import differences, setting, today
from benchmarks.steps import Step
from benchmarks.tools import STREAM, PacksInProcess
from tests.support.s3_gate import Gate, by_kind
from tests.support.s3_server import S3Server, running_s3_server

#: Default points of each kind.
FILES = (500, 5_000, 50_000)
BACKUPS = (1, 10, 100, 1_000)
STREAMS = (1, 30, 300)
PARTITIONS = (10, 100, 1_000)
#: State files up to which a step is repeated, and up to which requests are counted in another run than the one that is timed.
_FEW, _MANY = 10_000, 100_000
#: Each change leaves one more pack to read, so it comes last.
_EVERY = (Step.FIRST, Step.NOTHING, Step.SKIPPED, Step.VERIFY, Step.READ, Step.RESTORE, Step.CHANGED)

Rows = Iterator[dict[str, Any]]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    kinds = ("files", "backups", "streams", "partitions")
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds, help="what grows (default: all)")
    parser.add_argument("--files", type=int, nargs="+", default=FILES, help="500000 takes an hour by itself")
    parser.add_argument("--backups", type=int, nargs="+", default=BACKUPS)
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS, help="3000 takes ten minutes by itself")
    parser.add_argument("--partitions", type=int, nargs="+", default=PARTITIONS)
    parser.add_argument("--repeats", type=int, default=5, help="runs of a step that is timed (default: 5)")
    parser.add_argument("--anew", action="store_true", help="forget the points of earlier runs")
    parser.add_argument("--no-report", action="store_true", help="keep no figures, leave docs/benchmarks.md alone")
    args = parser.parse_args()
    kept = Kept(setting([PacksInProcess(S3Server(0, 0), Path())]), forget=args.anew, dry=args.no_report)
    ways = {"files": _files, "backups": _backups, "streams": _streams, "partitions": _partitions}
    for kind in args.kinds:
        with tempfile.TemporaryDirectory(prefix="bench-") as directory:
            scratch = Path(directory, "scratch")
            for place in (scratch, Path(directory, "server")):
                place.mkdir()
            with running_s3_server(Path(directory, "server")) as server:
                warm_up(server, scratch, [PacksInProcess(server, scratch)])
                for row in ways[kind](server, scratch, sorted(getattr(args, kind)), args.repeats):
                    print(kind, row, flush=True)
                    kept.add({"grows": kind, **row})
    if not args.no_report:
        report.main()


class Kept:
    """The points that were measured.

    :param now: as :func:`benchmarks.setting.setting` says.
    :param forget: forget those of earlier runs.
    :param dry: write nothing.
    :raises SystemExit: those of earlier runs were measured with another setting.
    """

    def __init__(self, now: dict[str, Any], *, forget: bool, dry: bool) -> None:
        self._dry = dry
        before = None if forget or dry else read(GROWTH)
        if before and (changed := differences(before["setting"], now)):
            raise SystemExit(
                f"the points of {GROWTH} were measured with another {', '.join(changed)}: --anew forgets them"
            )
        self._document = before or {"setting": now, "rows": []}

    def add(self, row: dict[str, Any]) -> None:
        """Keep a point, in the place of the same one; a run that is stopped keeps what it has finished."""

        def key(row: dict[str, Any]) -> tuple[Any, ...]:
            return row["grows"], row["at"], row["step"]

        rows = [each for each in self._document["rows"] if key(each) != key(row)] + [row | {"date": today()}]
        self._document["rows"] = sorted(rows, key=lambda each: (each["grows"], each["at"]))
        if not self._dry:
            write(GROWTH, self._document)


def _files(server: S3Server, scratch: Path, sizes: Sequence[int], repeats: int) -> Rows:
    """Steps with checkpoints of so many files."""
    for files in sizes:
        point = Point(server, scratch, SampleTree.of_about(files), repeats if files <= _FEW else 1)
        for step in _EVERY:
            yield {"at": point.ground.files, **point.measured(step)}
        point.drop()


def _backups(server: S3Server, scratch: Path, histories: Sequence[int], repeats: int) -> Rows:
    """Steps with so many backups in the repository, each of another state of the checkpoint."""
    for backups in histories:
        point = Point(server, scratch, SampleTree.of_about(HISTORY_FILES), repeats)
        for made in range(backups):
            point.take(Step.CHANGED if made else Step.FIRST, stays=True)
        for step in _EVERY[1:]:
            yield {"at": backups, **point.measured(step)}
        point.drop()


def _streams(server: S3Server, scratch: Path, numbers: Sequence[int], repeats: int) -> Rows:
    """Steps of one stream, in a repository that holds so many."""
    for streams in numbers:
        point = Point(server, scratch, SampleTree.of_about(STREAM_FILES), repeats)
        point.take(Step.FIRST)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(point.add_stream, range(1, streams)))
        for step in _EVERY[1:]:
            yield {"at": streams, **point.measured(step)}
        point.drop()


def _partitions(server: S3Server, scratch: Path, numbers: Sequence[int], repeats: int) -> Rows:
    """Steps with so many state partitions, of the same number of files."""
    for partitions in numbers:
        tree = SampleTree(partitions=partitions, batches=PARTITION_FILES // partitions)
        point = Point(server, scratch, tree, repeats)
        for step in _EVERY:
            yield {"at": partitions, **point.measured(step)}
        point.drop()


class Point:
    """A checkpoint and its repository.

    :param server: the server.
    :param scratch: a directory.
    :param tree: the checkpoint.
    :param repeats: runs of a step that is timed.
    """

    def __init__(self, server: S3Server, scratch: Path, tree: SampleTree, repeats: int) -> None:
        self.server = server
        self.ground = Ground(server, scratch, tree, local=False)
        self.tool = PacksInProcess(server, scratch)
        self.repeats = repeats
        self.target = ""
        self._changes = 0

    def measured(self, step: Step) -> dict[str, Any]:
        """Seconds, the median of some runs; requests, bytes and memory of another run, in a process of its own.

        Of very many files the time of the process of its own counts as well, and another one goes through the gate.
        """
        few = self.ground.files <= _MANY
        seconds = [self.take(step) for _ in range(self.repeats)] if few else []
        memory = {} if few else self.alone(step, self.server.port)
        gate = Gate(self.server)
        try:
            with gate.watched() as seen:
                counted = self.alone(step, urlsplit(gate.endpoint).port or 0)
        finally:
            gate.close()
        memory = memory or counted
        kinds = by_kind(seen)
        return {
            "step": step,
            "seconds": round(statistics.median(seconds), 4) if seconds else memory["seconds"],
            "requests": len(seen),
            "kinds": dict(kinds),
            "received": sum(request.received for request in seen),
            "sent": sum(request.sent for request in seen),
            "before": memory["before"],
            "peak": memory["peak"],
        }

    def take(self, step: Step, *, stays: bool = False) -> float:
        """Take a step in this process; seconds.

        :param stays: whether the repository has one more backup then; else that takes the place of the newest.
        """

        def take(back: str) -> float:
            began = time.monotonic()
            self.tool.take(step, self.ground.source, self.target, back)
            return time.monotonic() - began

        seconds: float = self._taken(step, take, stays=stays)
        return seconds

    def alone(self, step: Step, port: int) -> dict[str, Any]:
        """Take a step in a process of its own."""

        def take(back: str) -> dict[str, Any]:
            return alone(port, self.tool.name, step, self.ground.source, self.target, back)

        found: dict[str, Any] = self._taken(step, take, stays=False)
        return found

    def add_stream(self, number: int) -> None:
        """Back up a small checkpoint of another query, in another place, into the same repository."""
        bucket = self.ground.source.partition("/")[0]
        place = self.ground.place(f"{bucket}/checkpoints/other-{number}")
        for path, content in SampleTree(partitions=1, batches=2, seed=number).files():
            place.replace(path, f'{{"id":"{uuid.uuid4()}"}}'.encode() if path == "metadata" else content)
        repository = Repository.open(self.ground.place(self.target))
        create_backup(Checkpoint.at(place), repository, made_by="benchmark", workers=4)

    def drop(self) -> None:
        """Remove the checkpoint and the repository."""
        for place in (self.ground.source, self.target):
            self.ground.drop(place)

    def _newest(self) -> str:
        """Path of the manifest of the newest backup."""
        return Repository.open(self.ground.place(self.target)).manifest("latest", name=STREAM).path

    def _taken(self, step: Step, take: Callable[[str], Any], *, stays: bool) -> Any:
        back, replaced = "", None
        if step is Step.FIRST:
            if self.target:
                self.ground.drop(self.target)
            self.target = self.ground.new_bucket("target") + "/orders"
            self.tool.begin(self.target)
        elif step in (Step.NOTHING, Step.CHANGED):
            replaced = None if stays else self._newest()
            if step is Step.CHANGED:
                self.ground.change(self._changes, waits=False)
                self._changes += 1
        elif step is Step.RESTORE:
            back = self.ground.new_bucket("restored") + "/orders"
        found = take(back)
        if replaced:  # the history is to stay as long as it is
            self.ground.place(self.target).delete(replaced)
        if back:
            self.ground.drop(back)
        return found


if __name__ == "__main__":
    main()
