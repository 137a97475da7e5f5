"""What is inside RocksDB's state files: the table files a zip needs, the lineage a changelog records."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.checkpoint.state_codec import decompressed_parts
from airflow_ckpt_provider.checkpoint.state_files import StateVersion
from airflow_ckpt_provider.checkpoint.state_schema import read_utf
from airflow_ckpt_provider.errors import NotJudgedError, UnreadableLogError
from airflow_ckpt_provider.json_text import load_json

#: All that a damaged zip makes the standard library raise.
_BROKEN_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    EOFError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    OSError,
)
#: By how much deflate can make anything smaller.
_DEFLATE_RATIO = 1033
#: Bytes of a snapshot's metadata: a hundred for each of its files, which is what a snapshot of many terabytes has.
_MOST_METADATA = 32 * 1024**2
#: Two strings of ``writeUTF`` are no longer.
_MOST_HEADER = 2 * (2 + 65_535)
_DAMAGED = "the file is damaged; Spark cannot load this version either: restore an older backup or rewind"


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file outside the zip that its version needs.

    :param name: path relative to the store's directory: ``SSTs/<name>`` or ``logs/<name>``.
    :param size: bytes; Spark insists on exactly this size.
    """

    name: str
    size: int


def shared_files(zip_content: bytes, *, path: str) -> tuple[SharedFile, ...]:
    """Read which files a ``<version>.zip`` needs besides itself (``RocksDBCheckpointMetadata``).

    Only the zip shows: names of table files carry a uuid of their own. The zip of an empty store needs none.

    :raises UnreadableLogError: the zip is damaged.
    """
    try:
        metadata = _metadata(zip_content)
        tables = [("SSTs", f["dfsSstFileName"], f["sizeBytes"]) for f in metadata.get("sstFiles") or ()]
        logs = [("logs", f["dfsLogFileName"], f["sizeBytes"]) for f in metadata.get("logFiles") or ()]
        needed = tuple(SharedFile(f"{directory}/{name}", int(size)) for directory, name, size in (*tables, *logs))
    except _BROKEN_ZIP as e:
        raise UnreadableLogError(f"{path}: not a readable RocksDB snapshot ({e})", path=path, hint=_DAMAGED) from e
    return needed


def key_count(zip_content: bytes, *, path: str) -> int | None:
    """Read how many keys a ``<version>.zip`` holds; ``None`` where Spark did not count them.

    Spark writes -1 with ``stateStore.rocksdb.trackTotalNumberOfRows`` switched off.

    :raises UnreadableLogError: the zip is damaged.
    """
    try:
        number = int(_metadata(zip_content).get("numKeys", -1))
    except _BROKEN_ZIP as e:
        raise UnreadableLogError(f"{path}: not a readable RocksDB snapshot ({e})", path=path, hint=_DAMAGED) from e
    return number if number >= 0 else None


def check_members(archive: zipfile.ZipFile) -> None:
    """See that no member of a zip can become more than its bytes can, before one is read.

    :raises ValueError: one is packed otherwise than Java does it, or says that it becomes more.
    """
    for member in archive.infolist():
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{member.filename} in it is packed in a way that Spark does not use")
        if member.file_size > member.compress_size * _DEFLATE_RATIO + 64:
            raise ValueError(
                f"{member.filename} in it has {member.compress_size} bytes and says that it becomes {member.file_size}"
            )


def _metadata(zip_content: bytes) -> dict[str, Any]:
    """The member ``metadata``. What is wrong with it is one of :data:`_BROKEN_ZIP`."""
    with zipfile.ZipFile(io.BytesIO(zip_content)) as archive:
        check_members(archive)
        with archive.open("metadata") as member:
            # Not archive.read(): that inflates all there is, whatever the directory says.
            content = member.read(_MOST_METADATA + 1)
    if len(content) > _MOST_METADATA:
        raise ValueError(f"metadata in it has more than {_MOST_METADATA} bytes")
    metadata: dict[str, Any] = load_json(content.decode().partition("\n")[2])
    return metadata


def lineage(changelog: bytes, *, codec: str, path: str) -> tuple[StateVersion, ...]:
    """Read the versions since the last snapshot that a format-2 changelog records, without itself.

    A changelog begins, decompressed, with Java's ``writeUTF`` of ``v3`` (``v4`` with column families), then of a JSON
    array. Version 1 has an empty one.

    :param codec: the pinned ``stateStore.compression.codec``.
    :raises UnreadableLogError: the header cannot be read.
    :raises NotJudgedError: the compression cannot be undone here.
    """
    try:
        header = b""
        for part in decompressed_parts(changelog, codec):
            header += part
            if len(header) > _MOST_HEADER:
                break
        version, rest = read_utf(header)
        if version not in ("v3", "v4"):
            raise ValueError(f"changelog version {version!r} has no lineage")
        entries = load_json(read_utf(rest)[0])
        return tuple(sorted(StateVersion(int(e["version"]), e["checkpointUniqueId"]) for e in entries))
    except NotJudgedError as e:
        e.add_subject(path)
        raise
    except (ValueError, KeyError, TypeError, OverflowError, struct.error) as e:
        raise UnreadableLogError(f"{path}: not a readable RocksDB changelog ({e})", path=path, hint=_DAMAGED) from e
