"""``state/<op>/0/[<store>/]_metadata/schema``: the schema of a store's keys and values, versions 1 and 2."""

from __future__ import annotations

import struct
from typing import Any

from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.json_text import load_json


def parse_key_schema(data: bytes, *, path: str) -> dict[str, Any]:
    """Return the schema of a store's keys, as Spark's JSON.

    Version 2 is Java's ``writeUTF`` of ``v2``, a count of chunks, and that many ``writeUTF`` chunks of JSON; version 1 has
    the JSON in a single one.

    :raises UnreadableLogError: the file is damaged.
    """
    try:
        first, rest = read_utf(data)
        if first == "v2":
            (chunks,) = struct.unpack_from(">i", rest)
            rest = rest[4:]
            first = ""
            for _ in range(chunks):
                chunk, rest = read_utf(rest)
                first += chunk
        schema: dict[str, Any] = load_json(first)
        if not all(isinstance(field["name"], str) and "type" in field for field in schema["fields"]):
            raise ValueError("fields without name and type")
        return schema
    except (ValueError, TypeError, KeyError, struct.error) as e:
        raise UnreadableLogError(
            f"{path}: not a readable state schema ({e})",
            path=path,
            hint="delete it if the state is whole (Spark writes it again, without checking the schema), or restore a backup",
        ) from e


def has_one_partition(key_schema: dict[str, Any]) -> bool:
    """Whether all rows of the operator go to partition 0: a global limit, or an aggregation without grouping keys.

    The operator's metadata does not tell: it names the number of shuffle partitions all the same.
    """
    fields = [(field["name"], field["type"]) for field in key_schema["fields"]]
    return fields in ([], [("key", "void")]) or [name for name, _ in fields] == ["sessionStartTime"]


def read_utf(data: bytes) -> tuple[str, bytes]:
    """Read a string as Java's ``writeUTF`` wrote it; return it and what follows.

    :raises ValueError: it is cut off.
    :raises struct.error: there is not even a length.
    """
    (length,) = struct.unpack_from(">H", data)
    if len(data) < 2 + length:
        raise ValueError("cut off")
    # Java's own UTF-8: NUL takes two bytes, and what lies beyond U+FFFF is written as two surrogates.
    text = data[2 : 2 + length].replace(b"\xc0\x80", b"\x00").decode("utf-8", "surrogatepass")
    return text.encode("utf-16", "surrogatepass").decode("utf-16"), data[2 + length :]
