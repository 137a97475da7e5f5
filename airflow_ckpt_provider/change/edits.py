"""What a change does to the files of a place: which are removed, which are written, and where their contents come from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from airflow_ckpt_provider.backup.content_checks import whole_content
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.kept_contents import KeptContents
from airflow_ckpt_provider.backup.pack_reads import ByPack, MovedContents
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.fail_closed_order import is_log
from airflow_ckpt_provider.change.target import Target, expect_files
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.file_set import FileSet
from airflow_ckpt_provider.storage.hadoop_checksums import hidden_checksum
from airflow_ckpt_provider.storage.location import Location


@dataclass(frozen=True, slots=True)
class Write:
    """One file to be written.

    :param path: where, in the place that is changed.
    :param size: bytes it has then.
    :param read: returns its content.
    :param source: where the store itself can copy it from: a place, and the file there as it was listed or recorded.
    :param entry: of a backup, where it is written as the backup has it.
    """

    path: str
    size: int
    read: Callable[[], bytes]
    source: tuple[Location, str, int, str | None] | None = None
    entry: FileEntry | None = None


@dataclass(frozen=True, slots=True)
class Edits:
    """What a plan does to the files of a place, worked out from one listing of it.

    :param removes: files to delete, as they were listed. Hidden ones, such as Hadoop's checksums, may be among them.
    :param writes: makes the files to write; called more than once, so that a million of them need no memory.
    :param unchanged: paths that are there already with the right content, and are neither deleted nor written.
    :param paths: makes the paths of ``writes``, where that is less work than to make these.
    :param some: likewise makes those of ``writes`` that have one of these paths.
    """

    removes: FileSet = field(default_factory=FileSet)
    writes: Callable[[], Iterable[Write]] = tuple
    unchanged: Collection[str] = ()
    paths: Callable[[], Iterable[str]] | None = None
    some: Callable[[Collection[str]], Iterable[Write]] | None = None

    def written(self) -> Iterable[str]:
        """Paths of the files to write, in no particular order."""
        return self.paths() if self.paths else (write.path for write in self.writes())

    def writes_of(self, paths: Collection[str]) -> Iterable[Write]:
        """The files to write that have one of these paths."""
        return self.some(paths) if self.some else (write for write in self.writes() if write.path in paths)


def listed_files(there: Target, paths: Iterable[str]) -> FileSet:
    """Those of the paths that are there, as they were listed, with Hadoop's own checksums of them.

    :param there: the place.
    :param paths: paths of visible files.
    """
    found = FileSet()
    for path in paths:
        for name in (path, hidden_checksum(path)):
            file = there.files.get(name)
            if file is not None:
                found.add(file)
    return found


def literal_writes(contents: Mapping[str, bytes]) -> Iterator[Write]:
    """Files whose content is known."""
    for path, content in contents.items():
        yield Write(path, len(content), lambda content=content: content)  # type: ignore[misc]


def entry_writes(
    repository: Repository,
    entries: Iterable[FileEntry],
    *,
    right_when: str,
    moved: MovedContents | None = None,
    kept: KeptContents | None = None,
) -> Iterator[Write]:
    """Files of backups.

    :param repository: the repository that holds their objects.
    :param entries: their entries in manifests.
    :param right_when: when they were found whole, in words.
    :param moved: where their contents have been moved to, if that is known.
    :param kept: contents that are in memory already; all others are read.
    """
    place, packed, logs = repository.location, ByPack(repository, moved), ByPack(repository, moved)
    for entry in entries:
        # Logs are written before and after all others, and are few: where they cannot be read alone they are kept alone.
        # Nor can one whose object was put into a pack: if the object is still there, only its new place may be whole.
        alone = is_log(entry.path) and entry.is_packed and place.store.reads_parts
        if alone or not (logs if is_log(entry.path) else packed).add(entry):
            source = (place, entry.object, entry.size, entry.checksum) if entry.checksum is not None else None
            yield Write(
                entry.path,
                entry.size,
                _reader(entry, partial(place.read, entry.object), right_when, kept),
                source,
                entry,
            )
    for span in chain(logs.spans(), packed.spans()):  # what is read at once is written one behind the other
        for entry in span.entries:
            yield Write(
                entry.path, entry.size, _reader(entry, partial(span.read, entry), right_when, kept), None, entry
            )


def _reader(
    entry: FileEntry, read: Callable[[], bytes], right_when: str, kept: KeptContents | None
) -> Callable[[], bytes]:
    def whole() -> bytes:
        if kept is not None and (content := kept.get(entry)) is not None:
            return content
        try:
            return whole_content(entry, read(), right_when=right_when)
        except FileNotFoundError as e:
            raise StorageError(
                f"{entry.path}: its object {entry.object} is missing; it was there when {right_when}",
                hint="the seal stays; a prune that takes a slow restore for dead may have deleted it: choose another backup",
            ) from e

    return whole


def expect_edited(
    there: Target, before: Mapping[str, int], removed: Collection[str], written: Mapping[str, int], *, plan_id: str
) -> None:
    """See that exactly the planned files are there.

    :param there: the place, after the change.
    :param before: path -> size of the visible files before it.
    :param removed: paths that were removed.
    :param written: path -> size of the files that were written.
    :param plan_id: the plan.
    :raises StorageError: they are not.
    """
    gone = set(removed)
    kept = {path: size for path, size in before.items() if path not in gone}
    expect_files(there, {**kept, **written}.items(), plan_id=plan_id)
