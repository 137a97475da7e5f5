"""The files of a big backup in little room: in memory, and what a manifest holds in the place of a long ``file_list``.

Lines of JSON, each a list of up to 500 rows ``[path, size, object, sha256, checksum, identity, batches]``, deflated (RFC
1950) and in base64. Rows end before what they have nothing to say of. What follows from the rest of a row is left out,
for hashes are what does not shrink:

* ``object`` is relative to ``objects/<name>/``, unless it begins with ``/``; ``*`` in it stands for the content's hash;
* ``identity`` is ``true`` where it is the same as ``checksum``.

Written and read a line at a time: the text of a hundred thousand rows is never in memory as a whole.
"""

from __future__ import annotations

import base64
import json
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, overload

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.packed import Packed
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.file_set import order

_ROWS = 500
_PIECE = 64 * 1024
#: Bytes that are inflated at once, and of the longest line that is read: 500 rows of 8 KiB, more than paths can have.
_INFLATED, _LONGEST_LINE = 256 * 1024, 4 * 1024**2
#: Of the texts in the rows of a line: it ends earlier where they are long.
_LONG_LINE = 256 * 1024
#: Of a document. Higher levels take several times as long for a few percent.
_LEVEL = 3
#: In memory.
_LEVEL_IN_MEMORY = 1
#: Files of a table that :func:`kept_in_memory` keeps: up to 1 KB each.
_FEW = 20_000
#: By how many values a row has: those it ended before.
_REST: tuple[list[None], ...] = tuple([None] * (7 - length) for length in range(8))


#: Reads files that nobody needed before.
ReadLater = Callable[[], Sequence[FileEntry]]


class FileTable(Sequence[FileEntry]):
    """Files of a backup, some fifty bytes each; for reading in turn.

    :param name: name of the stream.
    :param files: the files.
    """

    def __init__(self, name: str, files: Iterable[FileEntry] = ()) -> None:
        self.name = name
        #: Total size of the files.
        self.bytes = 0
        self._length = 0
        self._prefix = f"objects/{name}/"
        self._blocks: list[bytes] = []
        #: How many files come before the end of each block.
        self._ends: list[int] = []
        self._rows: list[list[Any]] = []
        self._long = 0
        self._last: tuple[int, list[list[Any]]] | None = None
        #: Its files, while :func:`kept_in_memory` is for it; how many such blocks there are.
        self._kept: list[FileEntry] | None = None
        self._keepers = 0
        self._is_ordered = True
        #: Whether contents of some of them lie in packs; not known before it is read.
        self.has_packed = False
        self._newest = order("")
        #: Reads the files, where nobody has asked for one yet.
        self._later: ReadLater | None = None
        for file in files:
            self.append(file)

    @classmethod
    def read(
        cls, table: bytes | memoryview, *, name: str, length: int | None = None, packed: Packed | None = None
    ) -> FileTable:
        """Read what :meth:`write` wrote.

        :param table: the text.
        :param name: name of the stream.
        :param length: how many files there may be; by default any number.
        :param packed: to be shown each file.
        :raises ValueError: it is no table, or one that names a place outside a checkpoint or the objects of the stream.
        """
        self = cls(name)
        objects = self._prefix.rstrip("/")
        try:
            for line in _lines(table):
                rows = load_json(line)
                if not rows or (length is not None and len(self) + len(rows) > length):
                    raise ValueError(f"it has a line of no files, or more than {length} files")
                for row in rows:
                    entry = _entry(row, self._prefix).checked(objects)
                    self._count(entry.path, entry.size)
                    self.has_packed = self.has_packed or entry.is_packed
                    if packed is not None:
                        packed.add(entry)
                self._blocks.append(zlib.compress(line, _LEVEL_IN_MEMORY))
                self._ends.append((self._ends[-1] if self._ends else 0) + len(rows))
        except (zlib.error, TypeError, IndexError, KeyError, AttributeError) as e:
            raise ValueError(f"no table of files: {e}") from e
        return self

    @classmethod
    def later(cls, read: ReadLater, *, name: str, length: int, size: int) -> FileTable:
        """One that is read when somebody asks for a file: how many there are, and how big, is known without that.

        :param read: reads it, or says why it cannot be read.
        :param name: name of the stream.
        :param length: number of files.
        :param size: their bytes.
        """
        self = cls(name)
        self._later, self._length, self.bytes = read, length, size
        return self

    @property
    def is_ordered(self) -> bool:
        """Whether the files are in the order of a :class:`~airflow_ckpt_provider.storage.file_set.FileSet`."""
        self.read_now()
        return self._is_ordered

    def read_now(self) -> None:
        """Read the files, where that has still to be done."""
        if self._later is not None:
            files = self._later()
            whole = files if isinstance(files, FileTable) else FileTable(self.name, files)
            self._blocks, self._ends, self._rows = whole._blocks, whole._ends, whole._rows
            self._is_ordered, self._newest, self.has_packed = whole._is_ordered, whole._newest, whole.has_packed
            self._later = None  # last: several threads may be here, and all of them read the same

    def write(self) -> Iterator[bytes]:
        """The table as text, in pieces."""
        deflating = zlib.compressobj(_LEVEL)
        rest = b""
        for line in self._texts():
            rest += deflating.compress(line + b"\n")
            whole = len(rest) // 3 * 3
            yield base64.b64encode(rest[:whole])
            rest = rest[whole:]
        yield base64.b64encode(rest + deflating.flush())

    def append(self, file: FileEntry) -> None:
        """Add a file."""
        self.read_now()
        self._kept = None
        self._rows.append(_row(file, self._prefix))
        self._long += len(file.path) + len(file.object)
        self._count(file.path, file.size)
        self.has_packed = self.has_packed or file.is_packed
        if len(self._rows) == _ROWS or self._long > _LONG_LINE:
            self._long = 0
            self._blocks.append(zlib.compress(_text(self._rows), _LEVEL_IN_MEMORY))
            self._ends.append((self._ends[-1] if self._ends else 0) + len(self._rows))
            self._rows = []

    def _count(self, path: str, size: int) -> None:
        key = order(path)
        if key < self._newest:
            self._is_ordered = False
        self._newest = key
        self._length += 1
        self.bytes += size

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sequence)
            and len(self) == len(other)
            and all(a == b for a, b in zip(self, other, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[FileEntry]:
        if (kept := self._kept) is not None:
            return iter(kept)
        self.read_now()
        if self._keepers and self._length <= _FEW:
            kept = self._kept = list(self._all())
            return iter(kept)
        return self._all()

    def paths(self) -> Iterator[str]:
        """The paths of the files, for less than the files."""
        if (kept := self._kept) is not None:
            return (entry.path for entry in kept)
        self.read_now()
        return (row[0] for rows in self._each_rows() for row in rows)

    def _each_rows(self) -> Iterator[list[list[Any]]]:
        for block in self._blocks:
            yield load_json(zlib.decompress(block))
        yield self._rows

    def _all(self) -> Iterator[FileEntry]:
        for rows in self._each_rows():
            yield from self._entries(rows)

    @overload
    def __getitem__(self, index: int) -> FileEntry: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[FileEntry, ...]: ...

    def __getitem__(self, index: int | slice) -> FileEntry | tuple[FileEntry, ...]:
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(len(self))))
        self.read_now()
        at = range(len(self))[index]
        number = bisect_right(self._ends, at)
        if number == len(self._blocks):
            return _entry(self._rows[at - (self._ends[-1] if self._ends else 0)], self._prefix)
        last = self._last  # another thread may look elsewhere meanwhile
        if last is None or last[0] != number:
            last = self._last = number, load_json(zlib.decompress(self._blocks[number]))
        return _entry(last[1][at - (self._ends[number - 1] if number else 0)], self._prefix)

    def _entries(self, rows: Iterable[list[Any]]) -> Iterator[FileEntry]:
        return (_entry(row, self._prefix) for row in rows)

    def _texts(self) -> Iterator[bytes]:
        self.read_now()
        yield from map(zlib.decompress, self._blocks)
        if self._rows:
            yield _text(self._rows)


def paths_of(files: Sequence[FileEntry]) -> Iterator[str]:
    """The paths of files, without the files where that is less work."""
    return files.paths() if isinstance(files, FileTable) else (entry.path for entry in files)


@contextmanager
def kept_in_memory(files: Sequence[FileEntry]) -> Iterator[None]:
    """Keep the files of a small table as they are as long as the block lasts: for a step that reads them many times.

    For one backup at a time: a step that reads hundreds would hold them all.

    :param files: the files; what is no table is in memory already.
    """
    if not isinstance(files, FileTable):
        yield
        return
    files._keepers += 1
    try:
        yield
    finally:
        files._keepers -= 1
        if not files._keepers:
            files._kept = None


def _text(rows: list[list[Any]]) -> bytes:
    return json.dumps(rows, separators=(",", ":")).encode()


def _lines(table: bytes | memoryview) -> Iterator[bytes]:
    inflating = zlib.decompressobj()
    rest = b""
    for start in range(0, len(table), _PIECE):
        piece = base64.b64decode(table[start : start + _PIECE], validate=True)
        while piece:  # a piece can become a thousand times as long
            *whole, rest = (rest + inflating.decompress(piece, _INFLATED)).split(b"\n")
            yield from whole
            if len(rest) > _LONGEST_LINE:
                raise ValueError(f"a line of it has more than {_LONGEST_LINE} bytes")
            piece = inflating.unconsumed_tail
    if rest or not inflating.eof:
        raise ValueError("it is cut off")


def _row(file: FileEntry, prefix: str) -> list[Any]:
    identity: str | bool | None = file.identity
    if identity is not None and identity == file.checksum:
        identity = True
    content = _hash_of(file.sha256, file.checksum)
    if not file.object.startswith(prefix) or file.object.startswith(f"{prefix}/") or "*" in file.object:
        path = f"/{file.object}"
    else:
        path = file.object[len(prefix) :]
        path = path.replace(content, "*", 1) if content else path
    row = [file.path, file.size, path, file.sha256, file.checksum, identity, file.batches]
    while row[-1] is None:
        row.pop()
    return row


def _entry(row: list[Any], prefix: str) -> FileEntry:
    path, size, object_path, sha256, checksum, identity, batches = row + _REST[len(row)]
    if object_path.startswith("/"):
        object_path = object_path[1:]
    elif "*" in object_path:
        object_path = prefix + object_path.replace("*", _hash_of(sha256, checksum))
    else:
        object_path = prefix + object_path
    if identity is True:
        identity = checksum
    return FileEntry(path, size, object_path, sha256, checksum, identity, None if batches is None else tuple(batches))


def _hash_of(sha256: str | None, checksum: str | None) -> str:
    return sha256 or (checksum or "").partition(":")[2]
