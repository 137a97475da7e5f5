"""The files of a directory as rows in one block of bytes: some sixty bytes a file instead of half a kilobyte.

A file is found by the hash of its name, and becomes a :class:`~airflow_ckpt_provider.storage.store.StoredFile` when somebody
asks for it.
"""

from __future__ import annotations

import math
import struct
import threading
from array import array
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from airflow_ckpt_provider.storage.store import StoredFile

#: What follows the name of a file and a zero: bytes, time of writing in seconds since 1970 (NaN: not known).
_NUMBERS = struct.Struct("<Qd")
_LENGTH = struct.Struct("<H")
#: How a mark is kept: none, the same as the one before, an MD5 as S3 has it for its ETag, any text.
_NONE, _SAME, _MD5, _TEXT = (bytes((kind,)) for kind in range(4))
_MD5_MARK = "etag:"
_MD5_LENGTH = len(_MD5_MARK) + 32


class FileRows:
    """Files of one directory, in the order of their names. Several threads may use them at once.

    :param prefix: what comes before a name in a path.
    :param files: the files.
    """

    __slots__ = ("_greatest", "_is_ordered", "_lock", "_prefix", "_rows", "_slots", "_starts")

    def __init__(self, prefix: str, files: Iterable[StoredFile] = ()) -> None:
        self._prefix = prefix
        self._rows = bytearray()
        #: Where the rows begin.
        self._starts = array("Q")
        #: Numbers of rows, from 1, by the hashes of their names; made when a name is first looked for.
        self._slots = array("I")
        self._is_ordered = True
        self._greatest = b""
        #: Held while they are changed or searched.
        self._lock = threading.Lock()
        for file in files:
            self.add(file.path[len(prefix) :], file)

    def __len__(self) -> int:
        return len(self._starts)

    def names(self) -> Iterator[str]:
        """The names, in their order."""
        return (self._key(start).decode("utf-8", "surrogatepass") for start in self._in_order())

    def each(self) -> Iterator[StoredFile]:
        """The files, in the order of their names."""
        return map(self._file, self._in_order())

    def find(self, name: str) -> StoredFile | None:
        """The file of a name, if there is one."""
        key = name.encode("utf-8", "surrogatepass")
        with self._lock:
            at = self._search(key)
            if at is None:
                return None
            start = self._starts[at]
        return _unpacked(self._prefix + name, self._rows, start + len(key) + 1)

    def add(self, name: str, file: StoredFile) -> bool:
        """Take a file in, and say whether it is one more; one of the same name is replaced."""
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
                    return False
                self._is_ordered = False
            self._starts.append(start)
            number = len(self._starts)
            if 3 * number > 2 * len(self._slots):
                self._slots = array("I")  # made with room, when the next name is looked for
            else:
                _enter(self._slots, key, number)
        return True

    def part(self, names: Iterable[str]) -> FileRows:
        """Some of the files, which take no room of their own; nothing may be added to either of the two any more."""
        part = FileRows(self._prefix)
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

    def copied(self) -> FileRows:
        """The same files again."""
        return FileRows(self._prefix, self.each())

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


def _enter(slots: array[int], key: bytes, number: int) -> None:
    last = len(slots) - 1
    slot = hash(key) & last
    while slots[slot]:
        slot = (slot + 1) & last
    slots[slot] = number


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
