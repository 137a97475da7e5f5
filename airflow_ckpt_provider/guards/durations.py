"""Lengths of time as people write and read them."""

from __future__ import annotations

import re

from airflow_ckpt_provider.errors import RefusedError

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0, "ms": 0.001}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|[dhms])\s*")


def seconds_of(text: str, *, field: str) -> float:
    """Read a length of time: ``24h``, ``1d 12h``, ``90min``, ``45s``, or a number of seconds.

    :param text: what was written.
    :param field: what to call it in messages.
    :raises RefusedError: it is none.
    """
    stripped = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", stripped):
        return float(stripped)
    if not stripped or not re.fullmatch(f"(?:{_PART.pattern})+", stripped):
        raise RefusedError(f"{field} is {text!r}", hint="give a length of time such as 24h, 90min or 1d 12h")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(stripped))


def in_words(seconds: float) -> str:
    """Say a length of time in its two largest units, such as ``1 d 4 h``, rounded down."""
    if seconds < 0:
        return f"-{in_words(-seconds)}"
    if seconds < 1:
        return f"{seconds:.1f} s"
    rest = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])
