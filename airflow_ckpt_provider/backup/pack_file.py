"""What a pack is like inside: contents one behind the other, and at the end an index that says which.

::

    8 bytes                  magic
    …                        contents, without a gap
    36 bytes for each        index: SHA-256 of the content, its bytes (unsigned, big-endian)
    32 + 4 bytes             SHA-256 of the index; how many contents (unsigned, big-endian)
    8 bytes                  magic

The index holds no offsets: they follow from the lengths, so no two contents can overlap and none can lie elsewhere.
Backups are read by their manifests, without it. It says what a pack holds that no manifest lists any more, and
verifying compares it with the contents and with the manifests.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from io import BytesIO

#: What a pack begins and ends with.
MAGIC = b"ACKPACK\x01"
_ROW = struct.Struct(">32sI")
_TRAILER = struct.Struct(">32sI8s")
#: Of a pack's contents, bytes that are none.
OVERHEAD = len(MAGIC) + _TRAILER.size
ROW = _ROW.size


class PackBuilder:
    """A pack that is being filled; in memory once, also when it is sealed."""

    def __init__(self) -> None:
        self._pack = BytesIO()
        self._pack.write(MAGIC)
        self._index = bytearray()

    def __len__(self) -> int:
        return self._pack.tell()

    @property
    def contents(self) -> int:
        """How many contents it has."""
        return len(self._index) // ROW

    def add(self, content: bytes, sha256: str) -> int:
        """Add a content; return where it begins."""
        start = len(self)
        self._pack.write(content)
        self._index += _ROW.pack(bytes.fromhex(sha256), len(content))
        return start

    def sealed(self) -> bytes:
        """The whole pack, which nothing is added to any more; the builder does not keep it."""
        pack, self._pack = self._pack, BytesIO()
        pack.write(self._index)
        pack.write(_TRAILER.pack(hashlib.sha256(self._index).digest(), self.contents, MAGIC))
        return pack.getvalue()  # the very bytes, no copy of them


def read_index(pack: bytes) -> Iterator[tuple[str, int, int]]:
    """What a pack says that it holds: SHA-256, beginning and bytes of each content, one at a time: a forged index has millions.

    :raises ValueError: the index is damaged or forged; the message says how.
    """
    if len(pack) < OVERHEAD or not pack.startswith(MAGIC):
        raise ValueError("it does not begin as a pack does")
    sha256, count, magic = _TRAILER.unpack_from(pack, len(pack) - _TRAILER.size)
    if magic != MAGIC:
        raise ValueError("it does not end as a pack does")
    begins = len(pack) - _TRAILER.size - count * ROW
    if begins < len(MAGIC):
        raise ValueError(f"its index has {count} contents, which is more than it has room for")
    index = memoryview(pack)[begins : len(pack) - _TRAILER.size]
    if hashlib.sha256(index).digest() != sha256:
        raise ValueError("its index is not what was written")
    if (end := len(MAGIC) + sum(length for _, length in _ROW.iter_unpack(index))) != begins:
        raise ValueError(f"its index ends at byte {end}, and its contents at byte {begins}")
    return _rows(index)


def _rows(index: memoryview) -> Iterator[tuple[str, int, int]]:
    start = len(MAGIC)
    for digest, length in _ROW.iter_unpack(index):
        yield digest.hex(), start, length
        start += length


def with_index(pack: bytes | bytearray, listed: Iterable[tuple[str, int, int]]) -> bytes:
    """A pack with its index written again, where contents that manifests list fill it without a gap; else as it is.

    :param pack: as many bytes as it had.
    :param listed: SHA-256, beginning and bytes of contents.
    """
    rows = sorted(listed, key=lambda row: (row[1], row[2]))
    index = b"".join(_ROW.pack(bytes.fromhex(sha256), length) for sha256, _, length in rows)
    end = len(MAGIC)
    for _, start, length in rows:
        if start != end:
            return bytes(pack)
        end += length
    trailer = _TRAILER.pack(hashlib.sha256(index).digest(), len(rows), MAGIC)
    made = b"".join((MAGIC, pack[len(MAGIC) : end], index, trailer))
    return made if len(made) == len(pack) else bytes(pack)
