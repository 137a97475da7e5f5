"""A checkpoint's files as one sweep of listings found them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.file_set import FileSet
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile

#: Requests under way at once.
_READERS = 32


@dataclass(slots=True)
class Tree:
    """Files by directory, without what Spark ignores: hidden files (Hadoop's ``.crc``, ``.tmp`` debris).

    :param location: where the files are.
    :param hidden: what Spark ignores, by path.
    :param judged: what was found out about contents, by what distinguishes them, so that no big file is read twice.
    """

    location: Location
    _files: FileSet = field(default_factory=FileSet)
    _directories: dict[str, set[str]] = field(default_factory=dict)
    _contents: dict[tuple[str, str | None, int], bytes] = field(default_factory=dict)
    hidden: dict[str, StoredFile] = field(default_factory=dict)
    judged: dict[Hashable, Any] = field(default_factory=dict)
    _elsewhere: dict[str, Callable[[], bytes]] = field(default_factory=dict)

    @classmethod
    def of(cls, location: Location, *, like: Tree | None = None, files: Iterable[StoredFile] | None = None) -> Tree:
        """List a checkpoint: every directory once, on object stores the whole of it in one paged request.

        :param like: an older listing of the same place; contents read then are not read again if they are the same files.
        :param files: what is there, where that was listed a moment ago.
        """
        tree = cls(location, _contents=like._contents if like else {}, judged=like.judged if like else {})
        tree._index(location.sweep() if files is None else files)
        return tree

    def _index(self, files: Iterable[StoredFile]) -> None:
        for file in files:
            path = file.path
            if path.startswith(".") or "/." in path:
                self.hidden[path] = file
                continue
            self._files.add(file)
        for directory in self._files.directories:
            while directory:
                directory, _, name = directory.rpartition("/")
                self._directories.setdefault(directory, set()).add(name)

    def without(self, paths: Collection[str]) -> Tree:
        """The same look with some files left out, as if they did not exist."""
        left = self._like(self._elsewhere)
        left._index(file for file in self.below("") if file.path not in paths)
        return left

    def with_files(self, files: Iterable[tuple[StoredFile, Callable[[], bytes]]]) -> Tree:
        """The same look as if further files were there, each with what reads its content from where it really is."""
        added = {file.path: (file, read) for file, read in files}
        elsewhere = self._elsewhere | {path: read for path, (_, read) in added.items()}
        more = self._like(elsewhere)
        more._index((*self.below(""), *(file for file, _ in added.values())))
        return more

    def _like(self, elsewhere: dict[str, Callable[[], bytes]]) -> Tree:
        return Tree(
            self.location, _contents=self._contents, hidden=self.hidden, judged=self.judged, _elsewhere=elsewhere
        )

    def files(self, directory: str = "") -> Mapping[str, StoredFile]:
        """Files directly in ``directory``, by name."""
        return self._files.files(directory)

    def directories(self, directory: str = "") -> list[str]:
        """Names of the directories directly in ``directory`` that hold files, however deep."""
        return sorted(self._directories.get(directory, ()))

    def numbered_directories(self, directory: str) -> list[int]:
        """The directories in ``directory`` whose name is a number, in their order."""
        return sorted(n for n in map(batch_id_of, self.directories(directory)) if n is not None)

    def below(self, directory: str) -> Iterator[StoredFile]:
        """All files below ``directory``."""
        yield from self.files(directory).values()
        for name in self.directories(directory):
            yield from self.below(f"{directory}/{name}" if directory else name)

    def get(self, path: str) -> StoredFile | None:
        """The file at ``path``, or ``None``."""
        return self._files.get(path)

    def part(self, files: Iterable[StoredFile]) -> FileSet:
        """Some of its files."""
        return self._files.part(file.path for file in files)

    def read(self, file: StoredFile) -> bytes:
        """Content of a file, read once while it stays the same file."""
        key = (file.path, file.identity, file.size)
        if file.identity is None or key not in self._contents:
            self._contents[key] = self._read(file)
        return self._contents[key]

    def read_together(self, files: Iterable[StoredFile]) -> None:
        """Read the contents of several files at once, for :meth:`read` to have them in hand.

        One that cannot be read is left for :meth:`read` to say so.
        """
        wanted = {f.path: f for f in files if f.identity is not None and self.content_in_hand(f) is None}
        if len(wanted) < 2:
            return

        def read(file: StoredFile) -> None:
            with suppress(Exception):
                self.read(file)

        in_parallel(read, wanted.values(), workers=_READERS)

    def read_once(self, file: StoredFile) -> bytes:
        """Content of a file that may be big: it is not kept."""
        held = self.content_in_hand(file) if file.identity is not None else None
        return self._read(file) if held is None else held

    def _read(self, file: StoredFile) -> bytes:
        elsewhere = self._elsewhere.get(file.path)
        return elsewhere() if elsewhere else self.location.read(file.path)

    def content_in_hand(self, file: StoredFile) -> bytes | None:
        """Content of a file if it was read already; it may have vanished since."""
        return self._contents.get((file.path, file.identity, file.size))

    @property
    def inner_checkpoints(self) -> list[str]:
        """Directories in it that are checkpoints of other queries, see :func:`inner_checkpoints`."""
        return inner_checkpoints(self._files)

    def batches(self, log: str) -> tuple[int, ...]:
        """Batch ids in a log directory, ascending."""
        return tuple(sorted(b for b in map(batch_id_of, self.files(log)) if b is not None))


def inner_checkpoints(files: FileSet) -> list[str]:
    """Directories below a checkpoint that are checkpoints of other queries: two of ``metadata``, ``offsets/``, ``commits/``.

    :param files: all files of the checkpoint.
    """
    found: dict[str, set[str]] = {}
    for directory in files.directories:
        parent, _, log = directory.rpartition("/")
        if (
            parent
            and log in ("offsets", "commits")
            and any(batch_id_of(name) is not None for name in files.files(directory))
        ):
            found.setdefault(parent, {name for name in files.files(parent) if name == "metadata"}).add(log)
    return sorted(parent for parent, parts in found.items() if len(parts) > 1)
