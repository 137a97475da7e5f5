"""Reading contents, those in packs by few requests: parts of a pack that lie close together are read as one."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.file_table import FileTable
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import Moved, Part, file_of, pack_size, part_of, read_moved

#: Bytes that are read by one request at most, unless one content has more; and bytes between two contents that are read
#: with them, for a request takes about as long as these.
SPAN, GAP = 8 * 1024**2, 256 * 1024
#: Parts of packs that are read at once, so that they fit into memory.
PACKS_AT_ONCE = 4
#: Fewer entries than this are kept as they are.
_FEW = 20_000


class Span:
    """A part of a pack that is read at once, when somebody wants the first of its contents.

    :param place: the repository.
    :param pack: path of the pack.
    :param entries: the contents in it that are wanted.
    :param start: where it begins.
    :param end: where it ends.
    """

    def __init__(self, place: Location, pack: str, entries: Sequence[FileEntry], start: int, end: int) -> None:
        self.pack = pack
        self.entries = entries
        self.start, self.end = start, end
        self._place = place
        self._lock = threading.Lock()
        self._data: bytes | None = None
        self._failed: StorageError | None = None
        #: Where the contents were moved to, and the parts of other packs that they are in; read once for all of them.
        self._moved: Moved | None = None
        self._elsewhere: dict[str, Span] = {}

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole pack."""
        return self.start == 0 and self.end == pack_size(self.pack)

    @property
    def was_read(self) -> bool:
        """Whether its bytes could be read."""
        return self._data is not None

    def data(self) -> bytes:
        """The bytes of it.

        :raises FileNotFoundError: the pack is missing.
        :raises StorageError: it could not be read.
        """
        with self._lock:
            if self._failed is not None:
                raise self._failed
            if self._data is None:
                length = self.end - self.start
                try:
                    self._data = self._place.read_part(self.pack, self.start, length) if length else b""
                except StorageError as e:
                    self._failed = e  # one question about all of its contents, one answer
                    raise
            return self._data

    def read(self, entry: FileEntry) -> bytes:
        """The content of one of its entries; shorter where the pack ends before.

        :raises FileNotFoundError: it is missing.
        """
        part = part_of(entry.object)
        if part is None or not part.length:
            return self._place.read(entry.object)
        if self._moved is None:
            try:
                return self.data()[part.start - self.start : part.end - self.start]
            except FileNotFoundError:  # packed anew since its manifest was read, or missing
                pass
        now = self._now(entry.object)
        if span := self._elsewhere.get(now):
            return span.read(replace(entry, object=now))
        return self._place.read(entry.object)

    def _now(self, path: str) -> str:
        """Where a content is, if the pack is missing."""
        with self._lock:
            if self._moved is None:
                moved = read_moved(self._place, self.pack.split("/")[1])
                by_pack: dict[str, dict[str, FileEntry]] = {}
                for entry in self.entries:
                    if (now := moved.now(entry.object)) != entry.object:
                        by_pack.setdefault(file_of(now), {})[now] = replace(entry, object=now)
                for pack, entries in by_pack.items():
                    for span in spans(self._place, pack, entries.values()):
                        self._elsewhere |= {entry.object: span for entry in span.entries}
                self._moved = moved
            return self._moved.now(path)


class ByPack:
    """Entries by the pack that their contents lie in."""

    def __init__(self) -> None:
        self._packs: dict[str, list[FileEntry] | FileTable] = {}
        self._length = 0

    def __bool__(self) -> bool:
        return bool(self._packs)

    def add(self, entry: FileEntry) -> bool:
        """Take an entry whose content lies in a pack; return whether it does."""
        if (part := part_of(entry.object)) is None:
            return False
        self._length += 1
        if (group := self._packs.get(part.pack)) is None:
            group = self._packs[part.pack] = [] if self._length < _FEW else FileTable(part.pack.split("/")[1])
        group.append(entry)
        return True

    def spans(self, place: Location, *, whole: bool = False) -> Iterator[Span]:
        """The parts of packs to read, see :func:`spans`."""
        for pack, entries in self._packs.items():
            yield from spans(place, pack, entries, whole=whole)


def spans(place: Location, pack: str, entries: Iterable[FileEntry], *, whole: bool = False) -> Iterator[Span]:
    """The parts of a pack to read for some of its contents.

    :param place: the repository.
    :param pack: path of the pack.
    :param entries: the contents in it that are wanted.
    :param whole: read all of a pack of which half is wanted, with its index.
    """
    parts = [(part, entry) for entry in entries if (part := part_of(entry.object))]
    parts.sort(key=lambda each: (each[0].start, each[0].length))
    size = pack_size(pack) or 0
    if whole and 2 * sum({part.start: part.length for part, _ in parts}.values()) >= size:
        yield Span(place, pack, [entry for _, entry in parts], 0, size)
        return
    wanted: list[FileEntry] = []
    start = end = 0
    for part, entry in parts:
        # Where a part of a file costs as much as the file, it is read once.
        if wanted and place.store.reads_parts and not _is_near(part, start, end):
            yield Span(place, pack, wanted, start, end)
            wanted = []
        if not wanted:
            start = end = part.start
        wanted.append(entry)
        end = max(end, part.end)
    if wanted:
        yield Span(place, pack, wanted, start, end)


def _is_near(part: Part, start: int, end: int) -> bool:
    return part.start - end <= GAP and max(end, part.end) - start <= SPAN
