"""Who carries out the copies of a backup: threads of this process, or whoever is given in their place.

All else (what is copied, under which names, what the manifest says) is the same whoever does it: each file goes through
:meth:`Objects.store <airflow_ckpt_provider.backup.objects.Objects.store>`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from airflow_ckpt_provider.backup.objects import Objects, Stored
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.parallel import WORKERS, in_order
from airflow_ckpt_provider.storage.store import StoredFile
from airflow_ckpt_provider.units import format_size

OnFile = Callable[[StoredFile], None]
OnStored = Callable[[Stored], None]


class Engine(Protocol):
    """Carries out the copies of a backup."""

    def store(self, tree: Tree, objects: Objects, files: Collection[StoredFile], take: OnStored, done: OnFile) -> None:
        """See to it that the repository holds the contents of a checkpoint's files.

        :param tree: the listing of the checkpoint in which the files were found.
        :param objects: the objects of the stream.
        :param files: what no earlier backup holds, as far as can be determined without reading.
        :param take: to be given what became of each file, in their order, by one thread at a time.
        :param done: called with each file as soon as it is stored, from any thread.
        :raises FileNotFoundError: a file is gone or was replaced; what is copied already is found by the next listing.
        :raises StorageError: reading or writing failed.
        """
        ...


class Threads:
    """Copies with threads of this process.

    :param workers: requests under way at once.
    """

    def __init__(self, workers: int = WORKERS) -> None:
        self._workers = workers

    def store(self, tree: Tree, objects: Objects, files: Collection[StoredFile], take: OnStored, done: OnFile) -> None:
        """As :meth:`Engine.store`."""

        def store(file: StoredFile) -> Stored:
            result = objects.store(tree, file)
            done(file)
            return result

        in_order(store, files, take, workers=self._workers)


class TooMuchForThreadsError(CkptError):
    """There is more to do than one process may do; nothing was done.

    :param files: files to copy or to read.
    :param size: their bytes.
    :param done: what is done with them.
    :param job: the Spark application that does it.
    """

    def __init__(self, files: int, size: int, *, done: str = "copied", job: str = "copy_closure.py") -> None:
        self.files, self.size = files, size
        super().__init__(
            f"{files} files, {format_size(size)}, are to be {done}, which is more than this process may do",
            hint=f"let executors of Spark do it (jobs/{job})",
        )


class UpTo:
    """Has another engine copy what is not too much, and refuses what is.

    :param engine: the other one.
    :param files: fewer files than this are copied.
    :param size: and fewer bytes.
    """

    def __init__(self, engine: Engine, *, files: int, size: int) -> None:
        self._engine = engine
        self._files, self._size = files, size

    def store(self, tree: Tree, objects: Objects, files: Collection[StoredFile], take: OnStored, done: OnFile) -> None:
        """As :meth:`Engine.store`.

        :raises TooMuchForThreadsError: it is too much.
        """
        size = sum(file.size for file in files)
        if len(files) >= self._files or size >= self._size:
            raise TooMuchForThreadsError(len(files), size)
        self._engine.store(tree, objects, files, take, done)
