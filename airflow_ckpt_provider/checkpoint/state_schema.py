"""Schemas of a store's keys and values: ``state/<op>/0/[<store>/]_metadata/schema`` (versions 1, 2), ``_stateSchema`` (3)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.json_text import load_json

#: Names of Spark's type of a column that is always null; the second one is that of older Sparks.
_NULL_TYPES = ("void", "null")


def parse_key_schema(data: bytes, *, path: str) -> dict[str, Any]:
    """Return the schema of a store's keys, as Spark's JSON.

    Version 2 is Java's ``writeUTF`` of ``v2``, a count of chunks, and that many ``writeUTF`` chunks of JSON; version 1 has
    the JSON in a single one.

    :raises UnreadableLogError: the file is damaged.
    """
    try:
        first, rest = read_utf(data)
        return _schema(_chunks(rest)[0] if first == "v2" else first)
    except (ValueError, TypeError, KeyError, struct.error) as e:
        raise _unreadable(path, e) from e


@dataclass(frozen=True, slots=True)
class StoreSchema:
    """Keys and values of a store, or of one of its column families.

    :param name: of the column family, such as ``total`` or ``$count_values``; empty for a store without.
    :param key: the keys, as Spark's JSON.
    :param value: the values.
    """

    name: str
    key: dict[str, Any]
    value: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """``{"name", "key", "value"}``."""
        return {"name": self.name, "key": self.key, "value": self.value}


def parse_store_schemas(data: bytes, *, path: str) -> tuple[StoreSchema, ...]:
    """Return all that a schema file of version 1, 2 or 3 says of keys and values.

    Version 3 is Java's ``writeUTF`` of ``v3``, a count of column families and for each its name, id and chunks of the key's
    schema, id and chunks of the value's, and in chunks the key's encoder and metadata (``StateSchemaV3Writer``).

    :raises UnreadableLogError: the file is damaged.
    """
    try:
        first, rest = read_utf(data)
        if first == "v2":
            key, rest = _chunks(rest)
            return (StoreSchema("", _schema(key), _schema(_chunks(rest)[0])),)
        if first != "v3":
            return (StoreSchema("", _schema(first), _schema(read_utf(rest)[0])),)
        (families,) = struct.unpack_from(">i", rest)
        if families < 1:
            raise ValueError(f"{families} column families")
        rest = rest[4:]
        found = []
        for _ in range(families):
            name, rest = read_utf(rest)
            key, rest = _chunks(rest[2:])
            value, rest = _chunks(rest[2:])
            _encoder, rest = _chunks(rest)
            _metadata, rest = _chunks(rest)
            found.append(StoreSchema(name, _schema(key), _schema(value)))
        return tuple(found)
    except (ValueError, TypeError, KeyError, struct.error) as e:
        raise _unreadable(path, e) from e


def _chunks(data: bytes) -> tuple[str, bytes]:
    """Read a count of strings and join them; return the text and what follows."""
    (count,) = struct.unpack_from(">i", data)
    rest = data[4:]
    text = ""
    for _ in range(count):
        chunk, rest = read_utf(rest)
        text += chunk
    return text, rest


def _schema(text: str) -> dict[str, Any]:
    schema: dict[str, Any] = load_json(text)
    if not all(isinstance(field["name"], str) and "type" in field for field in schema["fields"]):
        raise ValueError("fields without name and type")
    return schema


def _unreadable(path: str, reason: Exception) -> UnreadableLogError:
    return UnreadableLogError(
        f"{path}: not a readable state schema ({reason})",
        path=path,
        hint="delete it if the state is whole (Spark writes it again, without checking the schema), or restore a backup",
    )


def may_have_one_partition(key_schema: dict[str, Any], operator_name: str | None) -> bool:
    """Whether the keys are those of an operator whose rows all go to partition 0.

    That is a global limit, an aggregation without grouping keys, or a session window without any. A column of the user
    can have the same name as Spark's own, so this is a hint and no proof.

    :param key_schema: schema of the operator's keys.
    :param operator_name: from the operator's metadata, which names the number of shuffle partitions all the same;
        ``None`` without metadata (Spark 3.5 and older).
    """
    fields = key_schema["fields"]
    if not fields:
        return True
    if len(fields) > 1:
        return False
    name, type_ = fields[0]["name"], fields[0]["type"]
    if name == "key" and type_ in _NULL_TYPES:
        return operator_name in (None, "globalLimit")
    if name != "sessionStartTime" or type_ != "timestamp":
        return False
    if operator_name is None:
        return fields[0].get("nullable") is False
    # Spark 4.3 writes the column as nullable.
    return operator_name.startswith("sessionWindowStateStoreSave")


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
