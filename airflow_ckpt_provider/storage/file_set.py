"""Sets of files by path, as listings find them: as they are while they are few, in little room when they are many.

A checkpoint may have a million files, and a backup reads several listings of as many; they are held as
:class:`~airflow_ckpt_provider.storage.file_rows.FileRows`. Most have some thousands, which fit into memory as they are, and are
then at hand ten times as fast.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from itertools import groupby

from airflow_ckpt_provider.storage.file_rows import FileRows
from airflow_ckpt_provider.storage.store import StoredFile

#: A set of more files than this packs them into rows; so many take some five megabytes as they are.
FEW = 10_000


class _Plain(dict[str, StoredFile]):
    """Files of one directory as they are, with the methods of :class:`FileRows`.

    Threads may read them while one adds: each access to the dictionary is one step of the interpreter.
    """

    __slots__ = ()

    def names(self) -> Iterator[str]:
        return iter(sorted(self))

    def each(self) -> Iterator[StoredFile]:
        return map(self.__getitem__, sorted(self))

    def find(self, name: str) -> StoredFile | None:
        return self.get(name)

    def add(self, name: str, file: StoredFile) -> bool:
        is_new = name not in self
        self[name] = file
        return is_new

    def part(self, names: Iterable[str]) -> _Plain:
        return _Plain((name, self[name]) for name in names if name in self)

    def copied(self) -> _Plain:
        return _Plain(self)


class Directory(Mapping[str, StoredFile]):
    """The files directly in one directory, by name and in the order of their names.

    :param prefix: what comes before a name in a path.
    :param files: the files.
    """

    __slots__ = ("_files", "_prefix")

    def __init__(self, prefix: str, files: _Plain | FileRows) -> None:
        self._prefix = prefix
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[str]:
        return self._files.names()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def __getitem__(self, name: str) -> StoredFile:
        file = self.find(name)
        if file is None:
            raise KeyError(name)
        return file

    def values(self) -> ValuesView[StoredFile]:
        """The files."""
        return _Files(self)

    def items(self) -> ItemsView[str, StoredFile]:
        """Names and files."""
        return _Named(self)

    def each(self) -> Iterator[StoredFile]:
        """The files, in the order of their names."""
        return self._files.each()

    def each_named(self) -> Iterator[tuple[str, StoredFile]]:
        """Names and files, in the order of names."""
        before = len(self._prefix)
        return ((file.path[before:], file) for file in self.each())

    def find(self, name: str) -> StoredFile | None:
        """The file of a name, if there is one."""
        return self._files.find(name)

    def add(self, name: str, file: StoredFile) -> bool:
        """Take a file in, and say whether it is one more; one of the same name is replaced."""
        return self._files.add(name, file)

    def part(self, names: Iterable[str]) -> Directory:
        """Some of the files; nothing may be added to either of the two any more."""
        return Directory(self._prefix, self._files.part(names))

    def copied(self) -> Directory:
        """Another one with the same files."""
        return Directory(self._prefix, self._files.copied())

    def pack(self) -> None:
        """Hold the files in little room from now on; nobody may add one meanwhile."""
        if isinstance(self._files, _Plain):
            self._files = FileRows(self._prefix, self._files.each())


class FileSet(Mapping[str, StoredFile]):
    """Files by path, in the order of their directories, and of their names in each. Several threads may use one at once.

    :param files: the files.
    """

    __slots__ = ("_borrowed", "_count", "_directories", "_lock")

    def __init__(self, files: Iterable[StoredFile] = ()) -> None:
        self._directories: dict[str, Directory] = {}
        #: Directories that are those of other sets, too.
        self._borrowed: set[str] = set()
        self._count = 0
        #: Held while the set grows.
        self._lock = threading.Lock()
        for file in files:
            self.add(file)

    def add(self, file: StoredFile) -> None:
        """Take a file in; one of the same path is replaced."""
        path, slash, name = file.path.rpartition("/")
        with self._lock:
            directory = self._directories.get(path)
            if directory is None:
                directory = self._directories[path] = Directory(path + slash, _Plain())
            elif path in self._borrowed:
                directory = self._directories[path] = directory.copied()
                self._borrowed.remove(path)
            if directory.add(name, file):
                self._grow(directory, 1)

    def take_over(self, other: FileSet) -> None:
        """Take in the files of another set, which nobody may add to any more: whole directories cost nothing."""
        for path, directory in other._directories.items():
            if path not in self._directories:
                self._borrow(path, directory)
            else:
                for file in directory.each():
                    self.add(file)

    def part(self, paths: Iterable[str]) -> FileSet:
        """Some of the files, as far as they are there; nobody may add to this set any more.

        :param paths: best one directory after the other.
        """
        part = FileSet()
        for directory, group in groupby(paths, key=lambda path: path.rpartition("/")[0]):
            if directory in part._directories:
                for file in filter(None, map(self.get, group)):
                    part.add(file)
            elif directory in self._directories:
                chosen = (path.rpartition("/")[2] for path in group)
                part._borrow(directory, self._directories[directory].part(chosen))
        return part

    def _borrow(self, path: str, directory: Directory) -> None:
        if directory:
            with self._lock:
                self._directories[path] = directory
                self._borrowed.add(path)
                self._grow(directory, len(directory))

    def _grow(self, directory: Directory, files: int) -> None:
        """Count files that came into a directory; once there are many, pack them all, and then whatever comes.

        A borrowed directory is packed where it belongs, too: nobody adds to it, and its files stay the same.
        """
        were_few = self._count <= FEW
        self._count += files
        if self._count > FEW:
            for each in self._directories.values() if were_few else (directory,):
                each.pack()

    def without(self, left_out: Callable[[str], bool]) -> FileSet:
        """The same files but for some; nobody may add to this set any more.

        :param left_out: says of a path whether it is left out.
        """
        rest = FileSet()
        for path, directory in self._directories.items():
            kept = [name for name in directory if not left_out(f"{path}/{name}" if path else name)]
            if len(kept) < len(directory):
                for name in kept:
                    rest.add(directory[name])
            else:
                rest._borrow(path, directory)
        return rest

    def files(self, directory: str = "") -> Mapping[str, StoredFile]:
        """Files directly in ``directory``, by name."""
        return self._directories.get(directory, _NOTHING)

    @property
    def directories(self) -> Iterable[str]:
        """Paths of the directories that hold files."""
        return self._directories.keys()

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return bool(self._directories)

    def __iter__(self) -> Iterator[str]:
        for path in sorted(self._directories):
            yield from (f"{path}/{name}" if path else name for name in self._directories[path])

    def __contains__(self, path: object) -> bool:
        if not isinstance(path, str):
            return False
        directory, _, name = path.rpartition("/")
        return name in self._directories.get(directory, _NOTHING)

    def __getitem__(self, path: str) -> StoredFile:
        directory, _, name = path.rpartition("/")
        return self._directories.get(directory, _NOTHING)[name]

    def get(self, path: str, default: StoredFile | None = None) -> StoredFile | None:  # type: ignore[override]
        """The file at ``path``, if there is one."""
        directory, _, name = path.rpartition("/")
        files = self._directories.get(directory)
        return (files.find(name) if files is not None else None) or default

    def each(self) -> Iterator[StoredFile]:
        """The files, in their order."""
        for path in sorted(self._directories):
            yield from self._directories[path].each()

    def each_named(self) -> Iterator[tuple[str, StoredFile]]:
        """Paths and files, in their order."""
        return ((file.path, file) for file in self.each())

    def values(self) -> ValuesView[StoredFile]:
        """The files."""
        return _Files(self)

    def items(self) -> ItemsView[str, StoredFile]:
        """Paths and files."""
        return _Named(self)


class _Files(ValuesView[StoredFile]):
    """As the mapping's own, but without a search for each."""

    _mapping: Directory | FileSet

    def __iter__(self) -> Iterator[StoredFile]:
        return self._mapping.each()


class _Named(ItemsView[str, StoredFile]):
    """As the mapping's own, but without a search for each."""

    _mapping: Directory | FileSet

    def __iter__(self) -> Iterator[tuple[str, StoredFile]]:
        return self._mapping.each_named()


def order(path: str) -> tuple[str, str, str]:
    """The key by which the files of a :class:`FileSet` are ordered: directories, and names in each."""
    return path.rpartition("/")


_NOTHING = Directory("", _Plain())
