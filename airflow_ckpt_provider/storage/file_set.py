"""Many files in little room: what a listing found, some sixty bytes a file instead of half a kilobyte.

A checkpoint may have a million files, and a backup looks at several listings of as many. So the files of a directory are rows in
one block of bytes, found by the hashes of their names, and become a :class:`~airflow_ckpt_provider.storage.store.StoredFile` when
somebody asks for one.
"""

from __future__ import annotations

import math
import struct
import threading
from array import array
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from datetime import UTC, datetime
from itertools import groupby

from airflow_ckpt_provider.storage.store import StoredFile

#: What follows the name of a file and a zero: bytes, time of writing in seconds since 1970 (NaN: not known).
_NUMBERS = struct.Struct("<Qd")
_LENGTH = struct.Struct("<H")
#: How a mark is kept: none, the same as the one before, an MD5 as S3 has it for its ETag, any text.
_NONE, _SAME, _MD5, _TEXT = (bytes((kind,)) for kind in range(4))
_MD5_MARK = "etag:"
_MD5_LENGTH = len(_MD5_MARK) + 32


class Directory(Mapping[str, StoredFile]):
    """The files directly in one directory, by name and in the order of their names.

    :param prefix: what comes before a name in a path.
    :param lock: held while it is changed or searched.
    """

    __slots__ = ("_greatest", "_is_ordered", "_lock", "_prefix", "_rows", "_slots", "_starts")

    def __init__(self, prefix: str, lock: threading.Lock) -> None:
        self._prefix = prefix
        self._rows = bytearray()
        #: Where the rows begin.
        self._starts = array("Q")
        #: Numbers of rows, from 1, by the hashes of their names; made when a name is first looked for.
        self._slots = array("I")
        self._is_ordered = True
        self._greatest = b""
        self._lock = lock

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[str]:
        return (self._key(start).decode("utf-8", "surrogatepass") for start in self._in_order())

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
        return map(self._file, self._in_order())

    def each_named(self) -> Iterator[tuple[str, StoredFile]]:
        """Names and files, in the order of names."""
        before = len(self._prefix)
        return ((file.path[before:], file) for file in self.each())

    def find(self, name: str) -> StoredFile | None:
        """The file of a name, if there is one."""
        key = name.encode("utf-8", "surrogatepass")
        with self._lock:
            at = self._search(key)
            if at is None:
                return None
            start = self._starts[at]
        return _unpacked(self._prefix + name, self._rows, start + len(key) + 1)

    def add(self, name: str, file: StoredFile) -> None:
        """Take a file in; one of the same name is replaced."""
        key = name.encode("utf-8", "surrogatepass")
        row = key + b"\0" + _packed(file)
        with self._lock:
            start = len(self._rows)
            self._rows += row
            if key > self._greatest or not self._starts:  # as listings come, mostly
                self._greatest = key
            else:
                at = self._search(key)
                if at is not None:
                    self._starts[at] = start
                    return
                self._is_ordered = False
            self._starts.append(start)
            number = len(self._starts)
            if 3 * number > 2 * len(self._slots):
                self._slots = array("I")  # made anew, with room, when the next name is looked for
            else:
                _enter(self._slots, key, number)

    def part(self, names: Iterable[str]) -> Directory:
        """Some of the files, which take no room of their own; nothing may be added to either of the two any more."""
        part = Directory(self._prefix, self._lock)
        part._rows = self._rows
        found = set()
        for name in names:  # which may come from this very directory
            with self._lock:
                at = self._search(name.encode("utf-8", "surrogatepass"))
            if at is not None:
                found.add(at)
        part._starts.extend(self._starts[at] for at in sorted(found))
        part._is_ordered = self._is_ordered
        return part

    def copied(self, lock: threading.Lock) -> Directory:
        """Another one with the same files."""
        copy = Directory(self._prefix, lock)
        for file in self.each():
            copy.add(file.path[len(self._prefix) :], file)
        return copy

    def _search(self, key: bytes) -> int | None:
        if not self._slots:
            self._make_slots()
        slots, starts, rows = self._slots, self._starts, self._rows
        wanted, last = key + b"\0", len(slots) - 1
        slot = hash(key) & last
        while number := slots[slot]:
            if rows.startswith(wanted, starts[number - 1]):
                return number - 1
            slot = (slot + 1) & last
        return None

    def _make_slots(self) -> None:
        """With more than half as many again as there are rows, and a power of two of them."""
        self._slots = array("I", bytes(4 * 2 ** (2 * len(self._starts) + 1).bit_length()))
        for number, start in enumerate(self._starts, 1):
            _enter(self._slots, self._key(start), number)

    def _in_order(self) -> array[int]:
        """Where the rows begin, in the order of their names."""
        with self._lock:
            if not self._is_ordered:
                self._starts = array("Q", sorted(self._starts, key=self._key))
                self._slots = array("I")
                self._is_ordered = True
            return self._starts

    def _key(self, start: int) -> bytes:
        return bytes(self._rows[start : self._rows.index(0, start)])

    def _file(self, start: int) -> StoredFile:
        end = self._rows.index(0, start)
        return _unpacked(self._prefix + self._rows[start:end].decode("utf-8", "surrogatepass"), self._rows, end + 1)


class FileSet(Mapping[str, StoredFile]):
    """Files by path, in the order of their directories, and of their names in each. Several threads may use one at once.

    :param files: the files.
    """

    __slots__ = ("_borrowed", "_directories", "_lock")

    def __init__(self, files: Iterable[StoredFile] = ()) -> None:
        self._directories: dict[str, Directory] = {}
        #: Directories that are those of other sets, too.
        self._borrowed: set[str] = set()
        self._lock = threading.Lock()
        for file in files:
            self.add(file)

    def add(self, file: StoredFile) -> None:
        """Take a file in; one of the same path is replaced."""
        path, slash, name = file.path.rpartition("/")
        directory = self._directories.get(path)
        if directory is None:
            directory = self._directories.setdefault(path, Directory(path + slash, self._lock))
        elif path in self._borrowed:
            directory = self._directories[path] = directory.copied(self._lock)
            self._borrowed.remove(path)
        directory.add(name, file)

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
            self._directories[path] = directory
            self._borrowed.add(path)

    def without(self, left_out: Callable[[str], bool]) -> FileSet:
        """The same files but for some.

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
        return sum(map(len, self._directories.values()))

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


def _enter(slots: array[int], key: bytes, number: int) -> None:
    last = len(slots) - 1
    slot = hash(key) & last
    while slots[slot]:
        slot = (slot + 1) & last
    slots[slot] = number


def order(path: str) -> tuple[str, str, str]:
    """The key by which the files of a :class:`FileSet` are ordered: directories, and names in each."""
    return path.rpartition("/")


_NOTHING = Directory("", threading.Lock())


def _packed(file: StoredFile) -> bytes:
    numbers = _NUMBERS.pack(file.size, file.modified.timestamp() if file.modified else math.nan)
    mark = _packed_mark(file.identity)
    return numbers + mark + (_SAME if file.checksum == file.identity else _packed_mark(file.checksum))


def _packed_mark(mark: str | None) -> bytes:
    if mark is None:
        return _NONE
    if len(mark) == _MD5_LENGTH and mark.startswith(_MD5_MARK):
        try:
            digest = bytes.fromhex(mark[len(_MD5_MARK) :])
        except ValueError:
            digest = b""
        if digest.hex() == mark[len(_MD5_MARK) :]:
            return _MD5 + digest
    text = mark.encode("utf-8", "surrogatepass")
    return _TEXT + _LENGTH.pack(len(text)) + text


def _unpacked(path: str, rows: bytearray, at: int) -> StoredFile:
    size, modified = _NUMBERS.unpack_from(rows, at)
    at += _NUMBERS.size
    identity, at = _unpacked_mark(rows, at)
    checksum = identity if rows.startswith(_SAME, at) else _unpacked_mark(rows, at)[0]
    written = None if modified != modified else datetime.fromtimestamp(modified, UTC)  # NaN is not itself
    return StoredFile(path, size, identity, checksum, written)


def _unpacked_mark(rows: bytearray, at: int) -> tuple[str | None, int]:
    kind, at = rows[at : at + 1], at + 1
    if kind == _NONE:
        return None, at
    if kind == _MD5:
        return _MD5_MARK + rows[at : at + 16].hex(), at + 16
    (length,) = _LENGTH.unpack_from(rows, at)
    at += _LENGTH.size
    return rows[at : at + length].decode("utf-8", "surrogatepass"), at + length
