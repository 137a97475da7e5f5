"""Has the executors of a Spark cluster write the files of a restore into its target.

A task gets entries of a manifest, all contents of a pack in one. It reads them by few requests, compares each with its hash, and
creates its file. Each write sees first that the attempt of the driver is still the one that may write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from itertools import islice
from typing import TYPE_CHECKING

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.pack_reads import MovedContents
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.edits import entry_writes
from airflow_ckpt_provider.change.fence import Fence
from airflow_ckpt_provider.change.write_engine import FilesToWrite, LentFence
from airflow_ckpt_provider.change.writing import write_new
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.jobs.spark_engine import (
    BYTES_PER_TASK,
    FILES_PER_TASK,
    TASKS_PER_JOB,
    WORKERS,
    Address,
    run_tasks,
)
from airflow_ckpt_provider.jobs.spark_reads import ReadTask, moved_of, task_groups
from airflow_ckpt_provider.parallel import in_parallel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class _Writing:
    """What an executor does with a task. It is sent there, so it holds plain values only."""

    target: Address
    repository: Address
    files: FilesToWrite
    workers: int

    def __call__(self, tasks: Iterable[ReadTask]) -> Iterator[int | CkptError]:
        for task in tasks:
            yield self._carry_out(task)

    def _carry_out(self, task: ReadTask) -> int | CkptError:
        """The number of the run that has written it; more than 0: another run may still be at work."""
        from pyspark import TaskContext

        # What went wrong outside is an answer: as an exception it would be tried four times, and lose its words.
        try:
            repository = Repository.open(self.repository.open())
            with LentFence(repository, self.files) as fence:
                place = fence.guarding(self.target.open())
                moved = MovedContents(repository, task.moved)
                writes = entry_writes(repository, task.entries, right_when="the restore began", moved=moved)
                plan_id = self.files.attempt.plan_id
                in_parallel(lambda item: write_new(place, item, plan_id), writes, workers=self.workers)
        except CkptError as e:
            return e
        context = TaskContext.get()
        return context.attemptNumber() if context else 0


class SparkWrites:
    """A :class:`~airflow_ckpt_provider.change.write_engine.WriteEngine` whose writes run on executors.

    :param spark: the session. It has to have the RDD interface, which Spark Connect has not.
    :param target: how executors open the target.
    :param repository: how they open the repository.
    :param workers: requests of a task under way at once.
    :param files_per_task: files of a task at most, where they are of more than one pack.
    :param bytes_per_task: bytes of a task at most, where it has more than one file.
    """

    def __init__(
        self,
        spark: SparkSession,
        target: Address,
        repository: Address,
        *,
        workers: int = WORKERS,
        files_per_task: int = FILES_PER_TASK,
        bytes_per_task: int = BYTES_PER_TASK,
    ) -> None:
        self._context = spark.sparkContext
        self._target, self._repository, self._workers = target, repository, workers
        self._files_per_task, self._bytes_per_task = files_per_task, bytes_per_task

    def write(
        self, files: FilesToWrite, fence: Fence, repository: Repository, done: Callable[[FileEntry], None]
    ) -> None:
        """As :meth:`WriteEngine.write`."""
        moved = MovedContents(repository)
        groups = task_groups(
            files.entries,
            moved,
            cores=self._context.defaultParallelism,
            files_per_task=self._files_per_task,
            bytes_per_task=self._bytes_per_task,
        )
        place = self._repository.of(repository)
        work = _Writing(self._target, place, replace_fields(files, entries=()), self._workers)
        tasks = (ReadTask(group, moved_of(group, moved)) for group in groups)
        # With speculation the run that is not counted may have any number. Spark reads "True" and " true" as "true".
        ran_twice = str(self._context.getConf().get("spark.speculation", "false")).strip().lower() == "true"
        while job := list(islice(tasks, TASKS_PER_JOB)):
            answers = run_tasks(self._context, work, job, doing=f"writing to {self._target.uri}")
            fence.check()
            for task, answer in zip(job, answers, strict=True):
                if isinstance(answer, CkptError):
                    raise answer
                ran_twice = ran_twice or answer > 0
                for entry in task.entries:
                    done(entry)
        if ran_twice:
            fence.wait_for_others()
