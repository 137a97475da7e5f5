"""Has the executors of a Spark cluster read the contents of a repository and compare them with what was backed up.

A task gets entries of manifests, all contents of a pack in one, and does with them what a local verify does. It writes nothing.
What was found goes to the driver, which reports and remembers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from airflow_ckpt_provider.backup.content_checks import Contents, check_contents, in_one_order
from airflow_ckpt_provider.backup.copy_progress import Meter, OnProgress
from airflow_ckpt_provider.backup.damaged import Damage
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.pack_reads import MovedContents
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.jobs.spark_engine import (
    BYTES_PER_TASK,
    FILES_PER_TASK,
    TASKS_PER_CORE,
    TASKS_PER_JOB,
    WORKERS,
    Address,
    grouped,
    run_tasks,
)
from airflow_ckpt_provider.storage.packs import Moved, pack_size, part_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Contents to read, and where those of them are that were moved.

    :param entries: the files.
    :param moved: by the name of the stream.
    """

    entries: tuple[FileEntry, ...]
    moved: dict[str, Moved]


@dataclass(frozen=True, slots=True)
class _Reading:
    """What an executor does with a task. It is sent there, so it holds plain values only."""

    repository: Address
    workers: int

    def __call__(self, tasks: Iterable[ReadTask]) -> Iterator[tuple[list[Damage], set[str]] | CkptError]:
        for task in tasks:
            yield self._carry_out(task)

    def _carry_out(self, task: ReadTask) -> tuple[list[Damage], set[str]] | CkptError:
        # What went wrong outside is an answer: as an exception it would be tried four times, and lose its words.
        try:
            repository = Repository.open(self.repository.open())
            packs: set[str] = set()
            moved = MovedContents(repository, task.moved)
            return check_contents(repository, task.entries, workers=self.workers, packs=packs, moved=moved), packs
        except CkptError as e:
            return e


class SparkReads:
    """A :class:`~airflow_ckpt_provider.backup.read_engine.ReadEngine` whose reads run on executors.

    :param spark: the session. It has to have the RDD interface, which Spark Connect has not.
    :param repository: how executors open the repository.
    :param workers: requests of a task under way at once.
    :param files_per_task: contents of a task at most; those of one pack are never parted.
    :param bytes_per_task: bytes of a task at most, where it has more than one file.
    """

    def __init__(
        self,
        spark: SparkSession,
        repository: Address,
        *,
        workers: int = WORKERS,
        files_per_task: int = FILES_PER_TASK,
        bytes_per_task: int = BYTES_PER_TASK,
    ) -> None:
        self._context = spark.sparkContext
        self._repository, self._workers = repository, workers
        self._files_per_task, self._bytes_per_task = files_per_task, bytes_per_task

    def read(
        self,
        repository: Repository,
        entries: Sequence[FileEntry],
        *,
        moved: MovedContents,
        on_progress: OnProgress | None,
    ) -> Contents:
        """As :meth:`ReadEngine.read`."""
        meter = Meter(on_progress, files=len(entries), size=sum(entry.size for entry in entries))
        work = _Reading(self._repository.of(repository), self._workers)
        findings: list[Damage] = []
        packs: set[str] = set()
        groups = task_groups(
            entries,
            moved,
            cores=self._context.defaultParallelism,
            files_per_task=self._files_per_task,
            bytes_per_task=self._bytes_per_task,
        )
        tasks = (ReadTask(group, moved_of(group, moved)) for group in groups)
        while job := list(islice(tasks, TASKS_PER_JOB)):
            answers = run_tasks(self._context, work, job, doing=f"reading {self._repository.uri}")
            for task, answer in zip(job, answers, strict=True):
                if isinstance(answer, CkptError):
                    raise answer
                findings += answer[0]
                packs |= answer[1]
                meter.add(sum(entry.size for entry in task.entries), len(task.entries))
        return Contents(entries, in_one_order(findings), packs)


def moved_of(entries: Iterable[FileEntry], moved: MovedContents) -> dict[str, Moved]:
    """Where some contents have been moved to, as plain values: name of the stream -> what of it concerns them."""
    by_stream: dict[str, list[str]] = {}
    for entry in entries:
        by_stream.setdefault(entry.object.split("/")[1], []).append(entry.object)
    return {name: moved.of(paths[0]).part(paths) for name, paths in by_stream.items()}


def task_groups(
    entries: Iterable[FileEntry], moved: MovedContents, *, cores: int, files_per_task: int, bytes_per_task: int
) -> Iterator[tuple[FileEntry, ...]]:
    """Entries in groups, a task each: the biggest objects first, then packs, each of which is in one group.

    :param moved: where contents have been moved to.
    :param cores: tasks that run at once.
    :param files_per_task: entries of a group at most, where it has more than one pack.
    :param bytes_per_task: bytes of a group at most, where it has more than one object or pack.
    """
    whole: list[FileEntry] = []
    packs: dict[str, list[FileEntry]] = {}
    for entry in entries:
        if part := part_of(moved.now(entry.object)):
            packs.setdefault(part.pack, []).append(entry)
        else:
            whole.append(entry)
    most = max(1, min(files_per_task, -(-len(whole) // (TASKS_PER_CORE * cores))))
    yield from grouped(sorted(whole, key=lambda e: (-e.size, e.path)), files_most=most, size_most=bytes_per_task)
    together = -(-len(packs) // (TASKS_PER_CORE * cores))
    group: list[FileEntry] = []
    count = size = 0
    for pack in sorted(packs):
        has, of_pack = packs[pack], pack_size(pack) or 0
        if group and (count == together or len(group) + len(has) > files_per_task or size + of_pack > bytes_per_task):
            yield tuple(group)
            group, count, size = [], 0, 0
        group += has
        count, size = count + 1, size + of_pack
    if group:
        yield tuple(group)
