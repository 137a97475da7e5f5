"""Putting small contents together into packs while they are read, by many threads at once.

A content is added to the pack that is being filled; the thread that fills it writes it, while the others fill the
next one. The name of a pack is known when it is full, so a content has a path of its own until :meth:`Packer.finish`
says what has become of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from airflow_ckpt_provider.backup.big_blocks import give_back_big_blocks
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.pack_file import PackBuilder
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.packs import content_path

#: Contents of fewer bytes are packed.
PACKED_BELOW = 512 * 1024
#: A pack is full from so many bytes on.
PACK_SIZE = 16 * 1024**2
#: And from so many contents on: whoever reads a pack holds an entry of half a kilobyte for each, and a record of those that
#: were moved has a line for each.
CONTENTS = 20_000
#: Packs in memory besides the one that is being filled: those that are written.
_WRITTEN_AT_ONCE = 2
#: Of so many contents it is remembered that they are packed, so that the same content is not packed twice.
_REMEMBERED = 100_000
_PENDING = "packing"

#: Writes a pack, and returns its path.
WritePack = Callable[[bytes], str]


def is_pending(path: str) -> bool:
    """Whether a path is one that a content has until :meth:`Packer.finish`."""
    return path.split("/", 3)[2:3] == [_PENDING]


class Packer:
    """The packs of one backup.

    :param directory: where the objects of the stream are.
    :param write: writes a pack.
    :param pack_size: bytes from which on a pack is full.
    :param copies: how often a pack is in memory while it is written.
    """

    def __init__(self, directory: str, write: WritePack, *, pack_size: int = PACK_SIZE, copies: int = 1) -> None:
        give_back_big_blocks()
        self._prefix = f"{directory}/{_PENDING}/"
        self._write = write
        self._pack_size = pack_size
        self._lock = threading.Lock()
        self._places = threading.Semaphore(1 + max(1, _WRITTEN_AT_ONCE // copies))
        self._open: PackBuilder | None = None
        #: Path of each pack that was begun; empty until it is written.
        self._packs: list[str] = []
        self._remembered: dict[bytes, str] = {}

    def add(self, content: bytes, sha256: str) -> str:
        """Add a content to a pack.

        :return: its path until :meth:`finish`.
        :raises StorageError: a pack could not be written.
        """
        key, full = bytes.fromhex(sha256), None
        with self._lock:
            if known := self._remembered.get(key):
                return known
            if self._open is None:
                self._places.acquire()  # whoever reads faster than packs are written waits here, or at the lock
                self._open = PackBuilder()
                self._packs.append("")
            number = len(self._packs) - 1
            path = f"{self._prefix}{number}/{sha256}-{self._open.add(content, sha256)}-{len(content)}"
            if len(self._remembered) < _REMEMBERED:
                self._remembered[key] = path
            if len(self._open) >= self._pack_size or self._open.contents >= CONTENTS:
                full, self._open = self._open, None
        if full is not None:
            self._seal(number, full)
        return path

    def _seal(self, number: int, pack: PackBuilder) -> None:
        try:
            self._packs[number] = self._write(pack.sealed())
        finally:
            self._places.release()

    def finish(self, entries: Iterable[FileEntry]) -> Iterator[FileEntry]:
        """Write the pack that is not full, and give each entry the final path of its content.

        :param entries: entries whose paths may be those that :meth:`add` returned.
        :raises StorageError: the pack could not be written.
        """
        with self._lock:
            pack, self._open = self._open, None
        if pack is not None:
            self._seal(len(self._packs) - 1, pack)
        return map(self._placed, entries)

    def _placed(self, entry: FileEntry) -> FileEntry:
        if not entry.object.startswith(self._prefix):
            return entry
        number, _, content = entry.object.removeprefix(self._prefix).partition("/")
        if not self._packs[int(number)]:
            raise StorageError(f"{entry.path}: the pack of its content was not written", hint="run it again")
        sha256, start, length = content.split("-")
        path = content_path(self._packs[int(number)], sha256, int(start), int(length))
        return entry._replace(object=path)
