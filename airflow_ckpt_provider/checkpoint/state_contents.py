"""Is what a state file holds whole? What a listing cannot tell: files cut off, or with bytes changed.

Records of ``.delta`` and ``.snapshot`` files, and of ``.changelog`` files of version 1 and 3, are ``int`` length of the key, key,
``int`` length of the value (-1: deleted), value; a length of -1 ends the file. Changelogs of versions 2 and 4 have a byte for the
type of each record, and 0 at the end. Table files (``SSTs/``) are not read: their sizes are compared where they are needed.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from airflow_ckpt_provider.checkpoint.rocksdb import check_members, shared_files
from airflow_ckpt_provider.checkpoint.state_codec import codec_name, decompressed_parts
from airflow_ckpt_provider.checkpoint.state_schema import read_utf
from airflow_ckpt_provider.errors import NotJudgedError, UnreadableLogError
from airflow_ckpt_provider.json_text import load_json

_POLYNOMIAL = 0x82F63B78


def content_damage(data: bytes, *, path: str, codec: str) -> str | None:
    """Say what is wrong with a state file, or ``None``. Files of a kind that is not known here are not judged.

    :param path: its path; the ending shows the kind.
    :param codec: compression of the checkpoint's state files.
    :raises NotJudgedError: the compression cannot be undone here.
    """
    kind = path.rpartition(".")[2]
    try:
        if kind == "zip":
            shared_files(data, path=path)
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                check_members(archive)
                broken = archive.testzip()
            return f"{broken} in it does not match its checksum" if broken else None
        if kind in ("delta", "snapshot", "changelog"):
            if not data:
                return "it is empty (0 bytes)"
            _check_records(decompressed_parts(data, codec, verify=True))
    except NotJudgedError as e:
        e.add_subject(path)
        raise
    except UnreadableLogError as e:
        return e.message.removeprefix(f"{path}: ")
    except (ValueError, struct.error, zlib.error, zipfile.BadZipFile, RuntimeError, OSError, EOFError) as e:
        return "it is cut off" if isinstance(e, struct.error) else str(e)
    return None


def is_self_checking(path: str, *, codec: str) -> bool:
    """Whether a file of this kind carries checksums of its own, so that :func:`content_damage` overlooks nothing."""
    kind = path.rpartition(".")[2]
    return kind == "zip" or (kind in ("delta", "snapshot", "changelog") and codec_name(codec) == "lz4")


class _Stream:
    """Bytes that come in parts, of which no more than is asked for is kept.

    :param parts: the parts.
    """

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._part = b""
        self._at = 0

    def take(self, length: int) -> bytes:
        """The next bytes.

        :raises struct.error: there are not so many.
        """
        found = self.peek(length)
        if len(found) < length:
            raise struct.error("cut off")
        self._at += length
        return found

    def peek(self, length: int) -> bytes:
        """The next bytes, which stay; fewer where there are not so many."""
        while len(self._part) - self._at < length and (more := next(self._parts, None)) is not None:
            self._part, self._at = self._part[self._at :] + more, 0
        return self._part[self._at : self._at + length]

    def skip(self, length: int) -> None:
        """Pass over bytes.

        :raises struct.error: there are not so many.
        """
        while (here := len(self._part) - self._at) < length:
            length -= here
            if (more := next(self._parts, None)) is None:
                raise struct.error("cut off")
            self._part, self._at = more, 0
        self._at += length

    def text(self) -> str:
        """A string of Java's ``writeUTF``."""
        (length,) = struct.unpack(">H", head := self.take(2))
        return read_utf(head + self.take(length))[0]

    def last(self) -> bytes:
        """The last byte of all that is left; empty where nothing is."""
        last = self._part[self._at :][-1:]
        for part in self._parts:
            last = part[-1:] or last
        return last


def _check_records(parts: Iterator[bytes]) -> None:
    stream, version = _Stream(parts), ""
    if stream.peek(3) in (b"\x00\x02v", b"\x00\x03v"):
        version = stream.text()
        if version in ("v3", "v4"):
            stream.text()
    if version in ("v2", "v4"):
        if stream.last() != b"\x00":
            raise ValueError("it does not end as it should: it is cut off")
        return
    while True:
        (key,) = struct.unpack(">i", stream.take(4))
        if key == -1:
            break
        if key < 0:
            raise ValueError("its records make no sense")
        stream.skip(key)
        (value,) = struct.unpack(">i", stream.take(4))
        if value < -1:
            raise ValueError("its records make no sense")
        try:
            stream.skip(max(value, 0))
        except struct.error:
            raise ValueError("its records make no sense") from None
    stream.last()  # the checksums of what may follow


@dataclass(frozen=True, slots=True)
class Checksum:
    """A visible ``<file>.crc`` (``ChecksumCheckpointFileManager``, Spark 4.1+).

    :param size: bytes that the main file had.
    :param value: its CRC-32C.
    """

    size: int
    value: int


def parse_checksum(data: bytes) -> Checksum:
    """Parse a checksum file.

    :raises ValueError: it is none, or of another algorithm.
    """
    try:
        content = load_json(data)
        if content["algorithm"] != "CRC32C":
            raise ValueError(f"algorithm {content['algorithm']!r} is not known here")
        return Checksum(int(content["mainFileSize"]), int(content["value"]) & 0xFFFFFFFF)
    except (KeyError, TypeError) as e:
        raise ValueError(f"it is no checksum file ({type(e).__name__}: {e})") from e


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), some 10 MB in a second."""
    table = _table()
    value = 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    entries = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        entries.append(value)
    return tuple(entries)
