"""Reading contents, those in packs by few requests: parts of a pack that lie close together are read as one."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from airflow_ckpt_provider.backup.big_blocks import give_back_big_blocks
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.file_table import FileTable
from airflow_ckpt_provider.backup.packing import PACK_SIZE, PACKED_BELOW
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import DamagedFileError, StorageError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import Moved, Part, file_of, pack_size, part_of, read_moved

#: Bytes that are read by one request at most, unless one content has more; and bytes between two contents that are read
#: with them, for a request takes about as long as these. A pack is full from 16 MiB on, with a content that may reach behind
#: that, so two requests read all of it only where each may have half of it and one content more.
SPAN, GAP = PACK_SIZE // 2 + PACKED_BELOW, 256 * 1024
#: Parts of packs that are read at once, so that they fit into memory.
PACKS_AT_ONCE = 3
#: Fewer entries than this are kept as they are.
_FEW = 20_000
_NOTHING_MOVED = Moved()
#: Limits how many read at once.
Turn = AbstractContextManager[Any]
_AT_ANY_TIME: Turn = nullcontext()


class MovedContents:
    """Where the contents of a repository have been moved to; the records of a stream are read when somebody asks for one.

    Not by the format of the repository: a migration may have raised it since it was opened.

    :param repository: the repository.
    :param known: what is known of some streams, by their names.
    """

    def __init__(self, repository: Repository, known: Mapping[str, Moved] | None = None) -> None:
        self._repository = repository
        self._by_stream: dict[str, Moved] = dict(known or {})

    def of(self, path: str) -> Moved:
        """What was moved of the stream that an object belongs to."""
        name = path.split("/")[1]
        if name not in self._by_stream:
            self._by_stream[name] = read_moved(self._repository.location, name)
        return self._by_stream[name]

    def now(self, path: str) -> str:
        """Where an object is now."""
        return self.of(path).now(path)


class Span:
    """A part of a pack that is read at once, when somebody wants the first of its contents.

    :param place: the repository.
    :param pack: path of the pack.
    :param entries: the files whose contents in it are wanted.
    :param start: where it begins.
    :param end: where it ends.
    :param moved: where contents have been moved to: an entry may name another place than this pack.
    :param turn: held while it is read.
    """

    def __init__(
        self,
        place: Location,
        pack: str,
        entries: Sequence[FileEntry],
        start: int,
        end: int,
        moved: Moved,
        turn: Turn = _AT_ANY_TIME,
    ) -> None:
        self.pack = pack
        self.entries = entries
        self.start, self.end = start, end
        self._place = place
        self._moved = moved
        self._turn = turn
        self._lock = threading.Lock()
        self._data: bytes | None = None
        self._failed: StorageError | None = None
        #: Where contents were moved to since, and the parts of other packs that these are in; read once for all of them.
        self._now: Moved | None = None
        self._elsewhere: dict[str, Span] | None = None

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
                    with self._turn:
                        self._data = self._place.read_from_pack(self.pack, self.start, length) if length else b""
                except StorageError as e:
                    self._failed = e  # one question about all of its contents, one answer
                    raise
            return self._data

    def part(self, entry: FileEntry) -> Part | None:
        """Where the content of one of its entries is in the pack."""
        return part_of(self._moved.now(entry.object))

    def read(self, entry: FileEntry) -> bytes:
        """The content of one of its entries; shorter where the pack ends before.

        :raises FileNotFoundError: it is missing.
        """
        part = self.part(entry)
        if part is None or not part.length:
            return self._place.read(entry.object, self._records)
        moved = part.pack != file_of(entry.object)
        try:
            content = self.data()[part.start - self.start : part.end - self.start]
        except FileNotFoundError:
            return self._read_elsewhere(entry, moved=moved)
        except DamagedFileError:
            if moved:
                return self._place.read(entry.object, self._records)  # it may still be where it was
            raise
        if moved and not entry.is_content(content):  # so a forged record hides nothing
            return self._place.read(entry.object, self._records)
        return content

    def _records(self) -> Moved:
        """Where contents are by now. Records are read again only where there are others: a rotten pack can hold ten thousands."""
        name = self.pack.split("/")[1]
        if self._now is None:
            with self._lock:
                self._now = self._now or read_moved(self._place, name)
            return self._now
        self._now = read_moved(self._place, name, self._now)  # a repack since then has moved contents again
        return self._now

    def _read_elsewhere(self, entry: FileEntry, *, moved: bool) -> bytes:
        """A content whose pack is missing, or was repacked since the records were read."""
        now = self._records()
        with self._lock:
            if self._elsewhere is None:
                found = [each for each in self.entries if now.now(each.object) != self._moved.now(each.object)]
                again = (
                    span
                    for pack, each in _by_pack(found, now)
                    for span in spans(self._place, pack, each, moved=now, turn=self._turn)
                )
                self._elsewhere = {each.object: span for span in again for each in span.entries}
        if span := self._elsewhere.get(entry.object):
            return span.read(entry)
        if moved:
            return self._place.read(entry.object, self._records)
        raise FileNotFoundError(self.pack)


def _by_pack(entries: Iterable[FileEntry], moved: Moved) -> Iterable[tuple[str, list[FileEntry]]]:
    found: dict[str, list[FileEntry]] = {}
    for entry in entries:
        found.setdefault(file_of(moved.now(entry.object)), []).append(entry)
    return found.items()


class ByPack:
    """Entries by the pack that their contents lie in, or have been moved to.

    :param repository: the repository.
    :param moved: where contents have been moved to, if that is known.
    """

    def __init__(self, repository: Repository, moved: MovedContents | None = None) -> None:
        give_back_big_blocks()
        self._place = repository.location
        self._moved = moved or MovedContents(repository)
        self._packs: dict[str, list[FileEntry] | FileTable] = {}
        self._length = 0
        # Where a part costs as much as the whole, readers of a part each hold a whole pack.
        self._turn = _AT_ANY_TIME if self._place.store.reads_parts else threading.Semaphore(PACKS_AT_ONCE)

    def __bool__(self) -> bool:
        return bool(self._packs)

    def add(self, entry: FileEntry) -> bool:
        """Take an entry whose content lies in a pack; return whether it does.

        One that no hash is known of is taken from where its manifest says: nothing shows that a record is right.
        """
        now = self._moved.now(entry.object)
        if (part := part_of(now)) is None or (now != entry.object and not entry.is_computable):
            return False
        self._length += 1
        if (group := self._packs.get(part.pack)) is None:
            group = self._packs[part.pack] = [] if self._length < _FEW else FileTable(part.pack.split("/")[1])
        group.append(entry)
        return True

    def spans(self, *, whole: bool = False) -> Iterator[Span]:
        """The parts of packs to read, see :func:`spans`."""
        for pack, entries in self._packs.items():
            yield from spans(self._place, pack, entries, moved=self._moved.of(pack), whole=whole, turn=self._turn)


def spans(
    place: Location,
    pack: str,
    entries: Iterable[FileEntry],
    *,
    moved: Moved = _NOTHING_MOVED,
    whole: bool = False,
    turn: Turn = _AT_ANY_TIME,
) -> Iterator[Span]:
    """The parts of a pack to read for some of its contents.

    :param place: the repository.
    :param pack: path of the pack.
    :param entries: the files whose contents in it are wanted.
    :param moved: where contents have been moved to: an entry may name another place than this pack.
    :param whole: read all of a pack of which half is wanted, with its index.
    :param turn: held while one of them is read.
    """
    parts = [(part, entry) for entry in entries if (part := part_of(moved.now(entry.object)))]
    parts.sort(key=lambda each: (each[0].start, each[0].length))
    size = pack_size(pack) or 0
    if whole and 2 * sum({part.start: part.length for part, _ in parts}.values()) >= size:
        yield Span(place, pack, [entry for _, entry in parts], 0, size, moved, turn)
        return
    wanted: list[FileEntry] = []
    start = end = 0
    for part, entry in parts:
        # Where a part of a file costs as much as the file, it is read once.
        if wanted and place.store.reads_parts and not _is_near(part, start, end):
            yield Span(place, pack, wanted, start, end, moved, turn)
            wanted = []
        if not wanted:
            start = end = part.start
        wanted.append(entry)
        end = max(end, part.end)
    if wanted:
        yield Span(place, pack, wanted, start, end, moved, turn)


def _is_near(part: Part, start: int, end: int) -> bool:
    return part.start - end <= GAP and max(end, part.end) - start <= SPAN
