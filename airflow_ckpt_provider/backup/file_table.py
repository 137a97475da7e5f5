"""The files of a big backup in little room: what a manifest holds in the place of a long ``file_list``.

Lines of JSON, each a list of up to 500 rows ``[path, size, object, sha256, checksum, identity, batches]``, deflated (RFC
1950) and in base64. Rows end before what they have nothing to say of. What can be told from the rest of a row is left out,
for hashes are what does not shrink:

* ``object`` is relative to ``objects/<name>/``, unless it begins with ``/``; ``*`` in it stands for the content's hash;
* ``identity`` is ``true`` where it is the same as ``checksum``.

Written and read a line at a time: the text of a hundred thousand rows is never in memory as a whole.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.json_text import load_json

if TYPE_CHECKING:
    from airflow_ckpt_provider.backup.manifest import FileEntry

_ROWS = 500
_PIECE = 64 * 1024
#: Higher levels take several times as long for a few percent.
_LEVEL = 3


def pack(files: Iterable[FileEntry], *, name: str) -> str:
    """Write a table.

    :param files: the files.
    :param name: name of the stream.
    """
    prefix = f"objects/{name}/"
    deflating = zlib.compressobj(_LEVEL)
    rows = (_row(file, prefix) for file in files)
    pieces = []
    while block := list(islice(rows, _ROWS)):
        pieces.append(deflating.compress(json.dumps(block, separators=(",", ":")).encode() + b"\n"))
    pieces.append(deflating.flush())
    return base64.b64encode(b"".join(pieces)).decode()


def unpack(table: str, *, name: str) -> Iterator[tuple[Any, ...]]:
    """Read a table: the arguments of each :class:`FileEntry`.

    :param table: as :func:`pack` wrote it.
    :param name: name of the stream.
    :raises ValueError: it is no table.
    """
    prefix = f"objects/{name}/"
    try:
        for line in _lines(base64.b64decode(table, validate=True)):
            for row in load_json(line):
                yield _values(row, prefix)
    except (zlib.error, TypeError, IndexError, KeyError) as e:
        raise ValueError(f"no table of files: {e}") from e


def _lines(data: bytes) -> Iterator[bytes]:
    inflating = zlib.decompressobj()
    rest = b""
    for start in range(0, len(data), _PIECE):
        *whole, rest = (rest + inflating.decompress(data[start : start + _PIECE])).split(b"\n")
        yield from whole
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


def _values(row: Sequence[Any], prefix: str) -> tuple[Any, ...]:
    path, size, object_path, sha256, checksum, identity, batches = (*row, None, None, None, None)[:7]
    if object_path.startswith("/"):
        object_path = object_path[1:]
    else:
        content = _hash_of(sha256, checksum)
        object_path = prefix + (object_path.replace("*", content) if content else object_path)
    if identity is True:
        identity = checksum
    return path, size, object_path, sha256, checksum, identity, None if batches is None else tuple(batches)


def _hash_of(sha256: str | None, checksum: str | None) -> str:
    return sha256 or (checksum or "").partition(":")[2]
