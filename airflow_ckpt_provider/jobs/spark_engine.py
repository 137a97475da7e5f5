"""Has the executors of a Spark cluster carry out the copies of a backup.

The driver decides all that can be decided without reading a file; an executor gets a group of files with what is known of
the objects that might hold them, and does with each what a local backup does. It writes nothing but objects and packs of them,
under the names a local backup gives them. So a task that runs twice (a lost executor, speculation) does no harm: the manifest
lists what its one counted run has answered, and a pack of the other run is garbage for the next prune.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import airflow_ckpt_provider
from airflow_ckpt_provider.backup.engine import OnFile, OnStored, Threads
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.objects import Known, Objects, Stored
from airflow_ckpt_provider.backup.packing import PACK_SIZE, PACKED_BELOW
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import CkptError, RefusedError, StorageError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.store import StoredFile

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Task = TypeVar("Task")
Answer = TypeVar("Answer")
HasSize = TypeVar("HasSize", StoredFile, FileEntry)

#: Files of a task at most, and bytes. What a lost executor had under way is copied again: at most that much for each core.
FILES_PER_TASK = 1000
BYTES_PER_TASK = 1024**3
#: Packs that a task fills at most; its last one may be smaller than the others.
_PACKS_PER_TASK = 4
#: Tasks of one Spark job: their results have to fit into the driver (spark.driver.maxResultSize).
TASKS_PER_JOB = 1000
#: Where files are few, each core still gets a few tasks, so that the last one is not waited for long.
TASKS_PER_CORE = 4
#: Requests of a task under way at once. Contents that pass through it are in memory meanwhile.
WORKERS = 16

#: What comes back of a file: object, SHA-256, checksum, copied, unproven; or why it could not be read.
_Outcome = tuple[str, str | None, str | None, bool, bool] | FileNotFoundError


@dataclass(frozen=True, slots=True)
class Address:
    """How a place is opened, on the driver and on executors.

    :param uri: as :func:`~airflow_ckpt_provider.storage.opening.open_location` takes it.
    :param storage_options: arguments of the fsspec filesystem.
    :param key: key of an encrypted repository.
    :param repository_id: id of the repository that has to be there; ``None``: any, or the place is of another kind.
    """

    uri: str
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
    key: bytes | None = field(default=None, repr=False)
    repository_id: str | None = None

    def open(self) -> Location:
        """Open the place. :meth:`Repository.open` refuses another repository there than the one that has to be."""
        place = open_location(self.uri, storage_options=self.storage_options)
        return Location(place.store, place.root, self.key, repository_id=self.repository_id)

    def of(self, repository: Repository) -> Address:
        """The same address, for executors: an executor may have another place mounted there than the driver.

        :param repository: as the driver has opened it; no other one is opened.
        """
        return replace(self, repository_id=repository.repository_id)


@dataclass(frozen=True, slots=True)
class _Task:
    files: tuple[StoredFile, ...]
    known: Known


@dataclass(frozen=True, slots=True)
class _Copying:
    """What an executor does with a task. It is sent there, so it holds plain values only."""

    checkpoint: Address
    repository: Address
    name: str
    workers: int

    def __call__(self, tasks: Iterable[_Task]) -> Iterator[list[_Outcome] | CkptError]:
        for task in tasks:
            yield self._carry_out(task)

    def _carry_out(self, task: _Task) -> list[_Outcome] | CkptError:
        # What went wrong outside is an answer: as an exception it would be tried four times, and lose its words.
        try:
            tree = Tree(self.checkpoint.open())
            place = Repository.open(self.repository.open()).location
            objects = Objects.like(place, self.name, task.known)

            def store(file: StoredFile) -> Stored | FileNotFoundError:
                try:
                    return objects.store(tree, file)
                except FileNotFoundError as e:
                    return e  # the stream continues; the other files are worth having all the same

            results = in_parallel(store, task.files, workers=self.workers)
            entries = iter(objects.settled([each.entry for each in results if isinstance(each, Stored)]))
            return [_outcome(each, next(entries)) if isinstance(each, Stored) else each for each in results]
        except CkptError as e:
            return e


def _outcome(stored: Stored, entry: FileEntry) -> _Outcome:
    return entry.object, entry.sha256, entry.checksum, stored.copied, stored.unproven


class SparkEngine:
    """An :class:`~airflow_ckpt_provider.backup.engine.Engine` whose copies run on executors.

    :param spark: the session. It has to have the RDD interface, which Spark Connect has not.
    :param checkpoint: how executors open the checkpoint.
    :param repository: how they open the repository, with its id: see :meth:`Address.of`.
    :param workers: requests of a task under way at once.
    :param files_per_task: files of a task at most.
    :param bytes_per_task: bytes of a task at most, where it has more than one file.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Address,
        repository: Address,
        *,
        workers: int = WORKERS,
        files_per_task: int = FILES_PER_TASK,
        bytes_per_task: int = BYTES_PER_TASK,
    ) -> None:
        if repository.repository_id is None:
            raise ValueError("say which repository executors open: Address.of")
        self._context = spark.sparkContext
        self._checkpoint, self._repository = checkpoint, repository
        self._workers = workers
        self._files_per_task, self._bytes_per_task = files_per_task, bytes_per_task

    def store(self, tree: Tree, objects: Objects, files: Collection[StoredFile], take: OnStored, done: OnFile) -> None:
        """As :meth:`Engine.store`; what could not be copied is reported when all else is copied."""
        # Logs, mostly: the driver has read them, and they may be gone by now.
        in_hand = [file for file in files if tree.content_in_hand(file) is not None]
        stored: dict[str, Stored] = {}
        Threads().store(tree, objects, in_hand, lambda s: stored.update({s.entry.path: s}), done)
        gone: FileNotFoundError | None = None
        work = _Copying(self._checkpoint, self._repository, objects.name, self._workers)
        groups = self._groups(objects, [file for file in files if file.path not in stored])
        tasks = (_Task(group, known) for group, known in zip(groups, objects.known(groups), strict=True))
        while job := list(islice(tasks, TASKS_PER_JOB)):
            doing = f"copying to {self._repository.uri}"
            for task, outcomes in zip(job, run_tasks(self._context, work, job, doing=doing), strict=True):
                if isinstance(outcomes, CkptError):
                    raise outcomes
                for file, outcome in zip(task.files, outcomes, strict=True):
                    if isinstance(outcome, FileNotFoundError):
                        gone = gone or outcome
                        continue
                    path, sha256, checksum, copied, unproven = outcome
                    entry = FileEntry(file.path, file.size, path, sha256, checksum, file.identity)
                    stored[file.path] = Stored(entry, copied, unproven)
                    done(file)
        for file in files:
            if file.path in stored:
                take(stored[file.path])
        if gone:
            raise gone

    def _groups(self, objects: Objects, files: list[StoredFile]) -> list[tuple[StoredFile, ...]]:
        """Files of like sizes together, for they share what has to be known of objects; the biggest first.

        Those that are packed are spread over no more tasks than they fill packs for: a task writes packs of its own.
        """
        cores = self._context.defaultParallelism
        whole: list[StoredFile] = []
        packed: list[StoredFile] = []
        for file in sorted(files, key=lambda f: (-f.size, f.path)):
            (packed if objects.packs and file.size < PACKED_BELOW else whole).append(file)
        most = max(1, min(self._files_per_task, -(-len(whole) // (TASKS_PER_CORE * cores))))
        of_packs = min(self._bytes_per_task, _PACKS_PER_TASK * PACK_SIZE)
        return [
            *grouped(whole, files_most=most, size_most=self._bytes_per_task),
            *grouped(packed, files_most=self._files_per_task, size_most=of_packs),
        ]


def run_tasks(
    context: SparkContext, work: Callable[[Iterable[Task]], Iterator[Answer]], job: list[Task], *, doing: str
) -> list[Answer]:
    """Have executors carry out tasks, each in a Spark task of its own; the answers in their order.

    :param context: of the session.
    :param work: what an executor does with tasks; it is sent there.
    :param job: the tasks.
    :param doing: what they do, in words.
    :raises StorageError: Spark has given up.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        return context.parallelize(job, len(job)).mapPartitions(work).collect()
    except Py4JJavaError as e:
        reason = str(e.java_exception.getMessage()).strip().splitlines()
        raise StorageError(
            f"Spark gave up {doing}: {reason[0] if reason else e}",
            hint="see the log of the executors; the same command again continues from what is done",
        ) from e


def grouped(files: Iterable[HasSize], *, files_most: int, size_most: int) -> Iterator[tuple[HasSize, ...]]:
    """Files in groups, in their order.

    :param files_most: files of a group at most.
    :param size_most: bytes of a group at most, where it has more than one file.
    """
    group: list[HasSize] = []
    size = 0
    for file in files:
        if group and (len(group) == files_most or size + file.size > size_most):
            yield tuple(group)
            group, size = [], 0
        group.append(file)
        size += file.size
    if group:
        yield tuple(group)


def ship_package(spark: SparkSession) -> None:
    """Have executors import this very package; what it needs besides (fsspec and a client of the store) they have to have."""
    home, context = Path(airflow_ckpt_provider.__file__).parent, spark.sparkContext
    name = f"{home.name}.zip"
    if not home.is_dir() or name in (context._python_includes or ()):
        return  # imported from an archive that was shipped already, or shipped by the backup before
    directory = tempfile.mkdtemp(prefix="airflow-ckpt-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)  # executors fetch it from here at any time
    with zipfile.ZipFile(f"{directory}/{name}", "w", zipfile.ZIP_DEFLATED) as packed:
        for file in sorted(home.rglob("*.py")):
            packed.write(file, Path(home.name) / file.relative_to(home))
    context.addPyFile(f"{directory}/{name}")


def address(spark: SparkSession, uri: str, *, options_file: str | None = None, key: bytes | None = None) -> Address:
    """Say how a place is reached: as a file has it, else as the session's own ``s3a://`` is, else as the environment has it.

    :param uri: the place.
    :param options_file: a JSON file on the driver: scheme -> arguments of its fsspec filesystem.
    :param key: key of an encrypted repository.
    :raises RefusedError: the file cannot be read.
    """
    scheme = uri.partition("://")[0] if "://" in uri else "file"
    if options_file:
        try:
            return Address(uri, dict(json.loads(Path(options_file).read_text()).get(scheme, {})), key)
        except (OSError, ValueError, AttributeError, TypeError) as e:
            raise RefusedError(
                f"{options_file} holds no storage options: {e}",
                hint='give a JSON file on the driver, such as {"s3a": {"key": "…", "secret": "…"}}',
            ) from e
    return Address(uri, _session_options(spark) if scheme in ("s3", "s3a", "s3n") else {}, key)


def _session_options(spark: SparkSession) -> dict[str, Any]:
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()

    def setting(name: str) -> str | None:
        return hadoop.get(f"fs.s3a.{name}") or None

    if not setting("access.key"):
        return {}
    region = setting("endpoint.region")
    found = {
        "key": setting("access.key"),
        "secret": setting("secret.key"),
        "token": setting("session.token"),
        "endpoint_url": setting("endpoint"),
        "client_kwargs": {"region_name": region} if region else None,
    }
    return {name: value for name, value in found.items() if value}
