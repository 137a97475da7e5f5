"""Streams at full speed, copied while they run; each copy then started and run on to the end of the input.

What the soak and its short version share. A copy is right if the sink of the lost stream up to the copied batch, and the
sink of the stream that continued from the copy, are together the sink of a stream that never failed, row by row.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.naive_copy import naive_copy
from tests.support.streams import sink
from tests.support.streams.data import put_files
from tests.support.streams.kinds import KINDS
from tests.support.streams.spark_host import Run, SparkHost

BACKUP, LISTED_FIRST, LISTED_AS_IT_GOES = "backup", "copy, listed first", "copy, listed as it goes"
#: Spark 4.0.0 now and then spoils snapshots of RocksDB all by itself (SPARK-52637): nothing that a copy could help.
SPOILED = "Mismatch in unique ID on table file"
#: Files that arrive after the last copy, so that every copy has something to run on with.
_LATER = 4


@dataclass(frozen=True)
class Verdict:
    """What became of a copy.

    :param how: how it was taken.
    :param newest: newest batch committed in it.
    :param first: the first batch that was run from it, -1 if none was.
    :param error: what Spark said, if it refused or failed.
    :param difference: rows lost or in excess, if it continued.
    :param vanished: files that were gone while it was copied.
    """

    kind: str
    how: str
    newest: int
    first: int
    error: str | None
    difference: sink.Difference | None
    vanished: int = 0

    @property
    def outcome(self) -> str:
        """``exact``, ``loud`` or ``silent``."""
        if self.error:
            return "loud"
        return "silent" if self.difference else "exact"


@dataclass(frozen=True)
class NaiveCopy:
    """A copy taken without this package.

    :param vanished: files that were gone when their turn came.
    """

    place: Path
    how: str
    vanished: int


@dataclass
class Stream:
    """One live stream and the copies that were taken of it."""

    kind: str
    root: Path
    source: Path
    run: Run | None = None
    manifests: list[Manifest] = field(default_factory=list)
    copies: list[NaiveCopy] = field(default_factory=list)

    @property
    def checkpoint(self) -> Path:
        """Its checkpoint."""
        return self.root / "checkpoint" / self.kind

    @property
    def out(self) -> Path:
        """Its sink."""
        return self.root / "out" / self.kind

    @property
    def reference(self) -> Path:
        """The sink of the same query that was left alone."""
        return self.root / "reference" / self.kind

    def newest(self, log: str = "commits") -> int:
        """Newest batch in a log of the checkpoint."""
        return _newest(self.checkpoint, log)


class LiveCopies:
    """A round: some streams, copied at random moments, then the copies run on.

    :param host: runs the queries.
    :param root: an empty directory.
    :param kinds: the streams, by kind.
    :param files: how many batches they run while they are copied.
    :param seed: of the random moments.
    """

    def __init__(self, host: SparkHost, root: Path, kinds: Iterable[str], *, files: int, seed: int) -> None:
        self._host = host
        self._root = root
        self._files = files
        self._random = random.Random(seed)
        self._source = root / "in"
        self.streams = [Stream(kind, root, self._source) for kind in kinds]
        self.repository = Repository.open_or_create(open_location(str(root / "repository")))

    def run_live(self, *, backups: int, naive_copies: int = 0) -> None:
        """Run the streams and copy each of them so many times."""
        put_files(self._source, self._files)
        workers: list[threading.Thread] = []
        failures: list[BaseException] = []
        for stream in self.streams:
            stream.run = self._host.start(
                stream.kind, source=self._source, checkpoint=stream.checkpoint, out=stream.out
            )
            workers.append(self._at_random_moments(stream, backups, self._back_up, failures))
            workers.append(self._at_random_moments(stream, naive_copies, self._copy_naively, failures))
        for worker in workers:
            worker.join()
        if failures:
            raise failures[0]
        put_files(self._source, _LATER, start=self._files)
        for stream in self.streams:
            assert stream.run
            stream.run.drain()
        for stream in self.streams:
            assert stream.run
            stream.run.finished(300)

    def run_references(self) -> None:
        """Run the same queries on the same input, untouched, and see that the copied ones came to the same."""
        runs = [
            self._host.start(
                stream.kind,
                source=self._source,
                checkpoint=self._root / "reference-checkpoint" / stream.kind,
                out=stream.reference,
                available_now=True,
            )
            for stream in self.streams
        ]
        for stream, run in zip(self.streams, runs, strict=True):
            run.finished(300)
            wanted = sink.batches(stream.reference)
            assert len(wanted) >= self._files + _LATER
            assert not sink.difference(wanted, sink.batches(stream.out)), f"{stream.kind}: disturbed by being copied"

    def verdicts_on_naive_copies(self) -> list[Verdict]:
        """Run every naive copy on. The lost checkpoint stays, as if each copy had been put back in its place."""
        return self._in_lanes(self._run_naive_copies)

    def verdicts_on_backups(self) -> list[Verdict]:
        """Restore every backup and run it on; the lost checkpoint is gone."""
        (self._root / "checkpoint").rename(self._root / "lost")
        return self._in_lanes(self._run_backups)

    def _in_lanes(self, work: Callable[[Stream], list[Verdict]]) -> list[Verdict]:
        # One lane a kind: Spark runs one query of an id at a time, and all copies of a stream have its id.
        with ThreadPoolExecutor(len(self.streams)) as lanes:
            return [verdict for verdicts in lanes.map(work, self.streams) for verdict in verdicts]

    def _at_random_moments(
        self, stream: Stream, times: int, copy: Callable[[Stream], None], failures: list[BaseException]
    ) -> threading.Thread:
        after = sorted(self._random.randint(0, self._files - 3) for _ in range(times))
        delays = [self._random.uniform(0, 0.5) for _ in range(times)]

        def work() -> None:
            try:
                for batch, delay in zip(after, delays, strict=True):
                    _wait_for(stream, batch)
                    time.sleep(delay)
                    copy(stream)
            except BaseException as e:
                failures.append(e)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def _back_up(self, stream: Stream) -> None:
        checkpoint = Checkpoint.at(open_location(str(stream.checkpoint)))
        stream.manifests.append(create_backup(checkpoint, self.repository, name=stream.kind).manifest)

    def _copy_naively(self, stream: Stream) -> None:
        number = len(stream.copies)
        target = self._root / "naive" / stream.kind / str(number)
        listed_first = number % 2 == 0
        vanished = naive_copy(stream.checkpoint, target, listed_first=listed_first)
        stream.copies.append(NaiveCopy(target, LISTED_FIRST if listed_first else LISTED_AS_IT_GOES, vanished))

    def _run_naive_copies(self, stream: Stream) -> list[Verdict]:
        return [self._run_on(stream, copy.place, _newest(copy.place, "commits"), copy=copy) for copy in stream.copies]

    def _run_backups(self, stream: Stream) -> list[Verdict]:
        verdicts = []
        for number, manifest in enumerate(stream.manifests):
            for attempt in range(3):
                place = self._root / "restored" / stream.kind / f"{number}-{attempt}"
                apply_restore(plan_restore(self.repository, manifest, open_location(str(place))))
                verdict = self._run_on(stream, place, manifest.batch_id)
                if SPOILED not in (verdict.error or ""):
                    break
                print(f"{stream.kind}: Spark spoiled the restored state later on (SPARK-52637); restored again")
            assert verdict.error or verdict.first == manifest.batch_id + 1, verdict
            verdicts.append(verdict)
        return verdicts

    def _run_on(self, stream: Stream, place: Path, newest: int, *, copy: NaiveCopy | None = None) -> Verdict:
        """Start a copy, run it to the end of the input, compare.

        A naive copy has its chance: of totals only the final values count, so two batches run as one do not matter.
        """
        out = place.with_name(f"{place.name}-out")
        run = self._host.start(stream.kind, source=self._source, checkpoint=place, out=out, available_now=True)
        run.wait(300)
        restored = sink.batches(out)
        wanted, found = sink.batches(stream.reference), sink.joined(sink.batches(stream.out), restored, newest)
        if copy and KINDS[stream.kind].mode == "update":
            wanted, found = sink.newest_by_key(wanted), sink.newest_by_key(found)
        shutil.rmtree(place, ignore_errors=True)  # only to save space: Spark may still be tidying up there
        return Verdict(
            kind=stream.kind,
            how=copy.how if copy else BACKUP,
            newest=newest,
            first=min(restored, default=-1),
            error=run.error,
            difference=None if run.error else sink.difference(wanted, found),
            vanished=copy.vanished if copy else 0,
        )


def _newest(checkpoint: Path, log: str) -> int:
    directory = checkpoint / log
    names = [file.name for file in directory.iterdir()] if directory.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def _wait_for(stream: Stream, batch: int) -> None:
    assert stream.run
    while stream.newest() < batch:
        # A failed stream would be waited for in vain; it is read 100 times a second to catch every moment of a batch.
        if stream.run.ended.wait(0.01):
            stream.run.finished()
            return
