"""Values of documents that somebody else may have written: of the kind that is expected, or not there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def text(value: Any) -> str:
    """A text that can be sent; empty where it is none. JSON can have half a character in it, which no page can."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def number(value: Any) -> float | None:
    """A finite number; ``None`` where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def whole(value: Any) -> int | None:
    """A whole number; ``None`` where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def time(value: Any) -> datetime | None:
    """A time in UTC; ``None`` where it is none, or has no time zone."""
    try:
        found = datetime.fromisoformat(value)
        return found.astimezone(UTC) if found.tzinfo else None
    except (TypeError, ValueError, OverflowError):
        return None


def inner(value: Any) -> Mapping[str, Any]:
    """An object; empty where it is none."""
    return value if isinstance(value, Mapping) else {}


def texts(value: Any) -> tuple[str, ...]:
    """The texts of a list."""
    return tuple(text(each) for each in value if isinstance(each, str)) if isinstance(value, list | tuple) else ()
