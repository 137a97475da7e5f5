"""What is inside RocksDB's state files: the table files a zip needs, the lineage a changelog records."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.checkpoint.state_codec import decompressed
from airflow_ckpt_provider.checkpoint.state_files import StateVersion
from airflow_ckpt_provider.checkpoint.state_schema import read_utf
from airflow_ckpt_provider.errors import UnreadableLogError
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

    Only the zip tells: names of table files carry a uuid of their own. The zip of an empty store needs none.

    :raises UnreadableLogError: the zip is damaged.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(zip_content)) as archive:
            _, _, text = archive.read("metadata").decode().partition("\n")
        metadata: dict[str, Any] = load_json(text)
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
        with zipfile.ZipFile(io.BytesIO(zip_content)) as archive:
            _, _, text = archive.read("metadata").decode().partition("\n")
        number = int(load_json(text).get("numKeys", -1))
    except _BROKEN_ZIP as e:
        raise UnreadableLogError(f"{path}: not a readable RocksDB snapshot ({e})", path=path, hint=_DAMAGED) from e
    return number if number >= 0 else None


def lineage(changelog: bytes, *, codec: str, path: str) -> tuple[StateVersion, ...]:
    """Read the versions since the last snapshot that a format-2 changelog records, without itself.

    A changelog begins, decompressed, with Java's ``writeUTF`` of ``v3`` (``v4`` with column families), then of a JSON
    array. Version 1 has an empty one.

    :param codec: the pinned ``stateStore.compression.codec``.
    :raises UnreadableLogError: the header cannot be read.
    """
    try:
        header = decompressed(changelog, codec)
        version, rest = read_utf(header)
        if version not in ("v3", "v4"):
            raise ValueError(f"changelog version {version!r} has no lineage")
        entries = load_json(read_utf(rest)[0])
        return tuple(sorted(StateVersion(int(e["version"]), e["checkpointUniqueId"]) for e in entries))
    except (ValueError, KeyError, TypeError, OverflowError, struct.error) as e:
        raise UnreadableLogError(f"{path}: not a readable RocksDB changelog ({e})", path=path, hint=_DAMAGED) from e
