"""Removes and writes the files of a plan, under its seal and within its fence."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_ckpt_provider.backup.copy_progress import Meter
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.edits import Edits, Write
from airflow_ckpt_provider.change.fail_closed_order import removal_groups, write_order
from airflow_ckpt_provider.change.fence import Fence
from airflow_ckpt_provider.change.target import Target, is_hidden
from airflow_ckpt_provider.change.write_engine import FilesToWrite, WriteEngine
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.parallel import in_order
from airflow_ckpt_provider.storage.hadoop_checksums import hidden_checksum
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile


class FileWriter:
    """Removes and writes files of one place, in an order in which Spark does not start from half of them.

    :param place: the place, guarded by the fence.
    :param fence: that of the attempt.
    :param repository: has the contents of backups.
    :param plan_id: the plan, for errors.
    :param workers: requests under way at once.
    :param writes: who writes files of backups that are not in the place; ``None``: threads of this process.
    """

    def __init__(
        self,
        place: Location,
        fence: Fence,
        repository: Repository,
        plan_id: str,
        *,
        workers: int,
        writes: WriteEngine | None,
    ) -> None:
        self._place, self._fence, self._repository, self._plan_id = place, fence, repository, plan_id
        self._workers, self._writes = workers, writes

    def remove(self, edits: Edits) -> int:
        """Remove what is to go; returns how many files, without hidden ones."""
        removed = 0

        def remove(file: StoredFile) -> None:
            self._place.delete_listed(file)

        def count(_: None) -> None:
            nonlocal removed
            removed += 1

        for side_by_side, files in removal_groups(edits.removes):
            in_order(remove, files, count, workers=self._workers if side_by_side else 1)
        return sum(1 for path in edits.removes if not is_hidden(path))

    def write(self, edits: Edits, there: Target, meter: Meter) -> int:
        """Write what is to be there; returns how many files.

        :param there: the place, as it was listed under the seal.
        :param meter: counts files and bytes.
        :raises StorageError: somebody else has written one of them, or an object is missing.
        """
        written = 0
        removed = edits.removes

        def write(item: Write) -> Write:
            listed = there.files.get(item.path) if item.path not in removed else None
            self._write_one(item, listed, there.files.get(hidden_checksum(item.path)), removed)
            return item

        def done(item: Write) -> None:
            nonlocal written
            written += 1
            meter.add(item.size)

        first, last = write_order(edits.written)
        apart = {*first, *last}
        by_path = {item.path: item for item in edits.writes_of(apart)}
        for path in first:
            done(write(by_path[path]))
        others = self._of_others(edits, there, apart)
        here = (i for i in edits.writes() if i.path not in apart and i.path not in others)
        in_order(write, here, done, workers=self._workers)
        if others and self._writes is not None:
            self._fence.is_lent = True  # should it fail, the next attempt waits until nothing can arrive any more
            files = FilesToWrite(tuple(others.values()), self._fence.attempt, self._fence.directory)
            self._writes.write(files, self._fence, self._repository, lambda entry: meter.add(entry.size))
            self._fence.is_lent = False
            written += len(others)
        for path in last:
            done(write(by_path[path]))
        return written

    def _of_others(self, edits: Edits, there: Target, apart: Collection[str]) -> dict[str, FileEntry]:
        """Files of backups that somebody else may write: those of which nothing is in the place."""
        if self._writes is None:
            return {}

        def is_free(path: str) -> bool:
            here = (path, hidden_checksum(path))
            return all(each not in there.files or each in edits.removes for each in here)

        return {i.path: i.entry for i in edits.writes() if i.entry and i.path not in apart and is_free(i.path)}

    def _write_one(
        self, item: Write, listed: StoredFile | None, checksum: StoredFile | None, removed: Mapping[str, StoredFile]
    ) -> None:
        """Write a file if there is none, or over exactly the one that was listed."""
        place = self._place
        if checksum is not None and checksum.path not in removed:
            place.delete_listed(checksum)  # it speaks of the content that the file had
        if listed is not None and not _is_copied(place, item):
            place.replace_listed(listed, item.read())
            return
        if listed is not None:
            place.delete_listed(listed)
        write_new(place, item, self._plan_id)


def _is_copied(place: Location, item: Write) -> bool:
    """Whether the store itself copies a file to the place."""
    return item.source is not None and place.store.copies_within and place.store.same_as(item.source[0].store)


def write_new(place: Location, item: Write, plan_id: str) -> None:
    """Write a file of a plan into a place in which it is not; one that has its content already is as good.

    :param place: guarded by a fence.
    :raises StorageError: somebody else has written another file there, or its object is missing.
    """
    if item.source is None or not _is_copied(place, item):
        _create_or_compare(place, item, plan_id)
        return
    source, path, size, recorded = item.source
    try:
        place.store.copy_new(StoredFile((source / path).root, size, checksum=recorded), (place / item.path).root)
    except FileExistsError:
        raise _appeared(place, item, plan_id) from None
    except FileNotFoundError:
        try:
            _create_or_compare(place, item, plan_id)  # its content may have been put into a pack since
        except FileNotFoundError as e:
            raise StorageError(
                f"{item.path}: its object {path} is missing; it was there before the first change",
                hint="the seal stays; a prune that takes a slow restore for dead may have deleted it: choose another backup",
            ) from e


def _create_or_compare(place: Location, item: Write, plan_id: str) -> None:
    """Create a file, or see that it is there with the same content.

    :raises StorageError: it has another one.
    """
    content = item.read()
    try:
        place.create(item.path, content)
    except FileExistsError:
        if place.read(item.path) != content:
            raise _appeared(place, item, plan_id) from None


def _appeared(place: Location, item: Write, plan_id: str) -> StorageError:
    return StorageError(
        f"{place}/{item.path} appeared while plan {plan_id} was carried out: somebody else writes there",
        hint="the checkpoint stays sealed; see who writes there, then run the same command again",
    )
