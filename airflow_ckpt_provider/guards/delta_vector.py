"""Deletion vectors of a Delta table: files that say which rows of a data file do not count (Delta's PROTOCOL.md)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def vector_path(vector: Mapping[str, Any]) -> str | None:
    """The file that a deletion vector is in, relative to the table or as a URI; ``None`` for one that is in the log itself.

    Of ``u`` the last 20 characters are the id of the file in Z85, and what is before them its directory (Delta's PROTOCOL.md).
    """
    stored, where = str(vector.get("pathOrInlineDv", "")), vector.get("storageType")
    if where == "p":
        return stored
    if where != "u" or len(stored) < 20:
        return None
    directory, number = stored[:-20], b""
    try:
        for at in range(len(directory), len(stored), 5):
            value = 0
            for character in stored[at : at + 5]:
                value = value * 85 + _Z85.index(character)
            number += value.to_bytes(4)
    except (ValueError, OverflowError):
        return None  # in a form that the protocol does not have
    name = f"deletion_vector_{uuid.UUID(bytes=number)}.bin"
    return f"{directory}/{name}" if directory else name
