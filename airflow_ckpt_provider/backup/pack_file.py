"""What a pack is like inside: contents one behind the other, and at the end an index that says which.

::

    8 bytes                  magic
    …                        contents, without a gap
    36 bytes for each        index: SHA-256 of the content, its bytes (unsigned, big-endian)
    32 + 4 bytes             SHA-256 of the index; how many contents (unsigned, big-endian)
    8 bytes                  magic

The index holds no offsets: they follow from the lengths, so no two contents can overlap and none can lie elsewhere. Backups are read
by their manifests, without it. It says what a pack holds that no manifest lists any more, and verifying compares it with the contents
and with the manifests.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

#: What a pack begins and ends with.
MAGIC = b"ACKPACK\x01"
_ROW = struct.Struct(">32sI")
_TRAILER = struct.Struct(">32sI8s")
#: Of a pack's contents, bytes that are none.
OVERHEAD = len(MAGIC) + _TRAILER.size
ROW = _ROW.size


class PackBuilder:
    """A pack that is being filled."""

    def __init__(self) -> None:
        self._body = bytearray(MAGIC)
        self._index = bytearray()

    def __len__(self) -> int:
        return len(self._body)

    def add(self, content: bytes, sha256: str) -> int:
        """Add a content; return where it begins."""
        start = len(self._body)
        self._body += content
        self._index += _ROW.pack(bytes.fromhex(sha256), len(content))
        return start

    def sealed(self) -> bytes:
        """The whole pack."""
        index = bytes(self._index)
        trailer = _TRAILER.pack(hashlib.sha256(index).digest(), len(index) // ROW, MAGIC)
        return b"".join((self._body, index, trailer))


def read_index(pack: bytes) -> list[tuple[str, int, int]]:
    """What a pack says that it holds: SHA-256, beginning and bytes of each content.

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
    found = []
    start = len(MAGIC)
    for digest, length in _ROW.iter_unpack(index):
        found.append((digest.hex(), start, length))
        start += length
    if start != begins:
        raise ValueError(f"its index ends at byte {start}, and its contents at byte {begins}")
    return found


def index_problem(pack: bytes, listed: Iterable[tuple[str, int, int]]) -> str | None:
    """What is wrong with the index of a pack: it cannot be read, or says something else than manifests; ``None``: nothing.

    :param pack: the whole pack.
    :param listed: SHA-256, beginning and bytes of contents as manifests have them.
    """
    try:
        held = frozenset(read_index(pack))
    except ValueError as e:
        return str(e)
    strange = next((each for each in listed if each not in held), None)
    return None if strange is None else f"its index has no content {strange[0]} of {strange[2]} bytes at {strange[1]}"
