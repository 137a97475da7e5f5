"""Sizes, durations and times: one parser and one format each, for files, options, operator arguments, logs and pages."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from airflow_ckpt_provider.errors import RefusedError

_SECONDS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0, "ms": 0.001}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|[wdhms])\s*")
_PARTS = re.compile(f"(?:{_PART.pattern})+")
#: ISO 8601 without years and months, whose length is not fixed.
_ISO = re.compile(
    r"P(?:(?P<weeks>\d+(?:\.\d+)?)W)?(?:(?P<days>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)
#: What a template makes of a ``timedelta``.
_PRINTED = re.compile(r"(?:(\d+) days?, )?(\d+):(\d\d):(\d\d(?:\.\d+)?)")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?", re.IGNORECASE)
_TRUE, _FALSE = frozenset({"true", "yes", "1", "on"}), frozenset({"false", "no", "0", "off"})
_SIZE_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def parse_duration(value: str | float | timedelta, *, field: str = "the duration") -> timedelta:
    """Read a duration: ``24h``, ``1d 12h``, ``90min``, ISO 8601 such as ``PT2H``, a number of seconds, or a ``timedelta``,
    also one that a template has made a text of.

    ``m`` and ``min`` are minutes. What this module prints is read again.

    :param value: what was written.
    :param field: what to call it in messages.
    :raises RefusedError: it is no duration, or a negative one.
    """
    if isinstance(value, timedelta):
        found: timedelta | None = value
    else:
        try:
            seconds = _seconds(value)
            found = None if seconds is None else timedelta(seconds=seconds)
        except (OverflowError, ValueError):
            found = None
    if found is None or found < timedelta(0):
        raise RefusedError(
            f"{field} is {value!r}, which is no duration", hint="give a duration such as 24h, 90min, 1d 12h or PT2H"
        )
    return found


def parse_seconds(value: str | float | timedelta, *, field: str = "the duration") -> float:
    """Read a duration as :func:`parse_duration` does, in seconds.

    :param value: what was written.
    :param field: what to call it in messages.
    :raises RefusedError: it is no duration, or a negative one.
    """
    return parse_duration(value, field=field).total_seconds()


def _seconds(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        return None
    text = value.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if _PARTS.fullmatch(text):
        return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    if printed := _PRINTED.fullmatch(text):
        return float(printed[1] or 0) * 86400 + int(printed[2]) * 3600 + int(printed[3]) * 60 + float(printed[4])
    iso = _ISO.fullmatch(text)
    parts = {name: float(number) for name, number in iso.groupdict().items() if number} if iso else {}
    return timedelta(**parts).total_seconds() if parts and not text.upper().endswith("T") else None


def format_duration(value: float | timedelta) -> str:
    """Show a duration in its two largest units, such as ``1 d 4 h``, rounded down.

    :param value: a ``timedelta``, or seconds.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
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


def exact_duration(value: timedelta) -> str:
    """Write a duration in all its units, for whoever reads it again: ``1d2h3min4s``; fractions of a second as ``0.5s``.

    :param value: the duration.
    """
    rest = value - timedelta(days=value.days, seconds=value.seconds)
    hours, seconds = divmod(value.seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    second = f"{seconds}.{rest.microseconds:06d}".rstrip("0").rstrip(".")
    parts = ((value.days, "d"), (hours, "h"), (minutes, "min"), (second, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number not in (0, "0")) or "0s"


def parse_flag(value: object, *, field: str) -> bool:
    """Read true or false.

    :param value: what was written: a boolean, or ``true``, ``yes``, ``1``, ``on``, ``false``, ``no``, ``0``, ``off``.
    :param field: what to call it in messages.
    :raises RefusedError: it is neither.
    """
    said = str(value).strip().lower()
    if said in _TRUE or said in _FALSE:
        return said in _TRUE
    raise RefusedError(f"{field} is {value!r}", hint="give true or false")


def parse_size(value: str | int, *, field: str = "the size") -> int:
    """Read a size in bytes: ``200M``, ``1.5 GiB``, ``4 kB``, or a number of bytes. Units are powers of 1024, as in restic.

    :param value: what was written.
    :param field: what to call it in messages.
    :raises RefusedError: it is no size.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or (match[3] and not match[2]):
        raise RefusedError(f"{field} is {value!r}, which is no size", hint="give a size such as 200M, 1.5 GiB or 4096")
    return int(float(match[1]) * 1024 ** _POWERS[match[2].lower()])


def format_size(number: int) -> str:
    """Show bytes in powers of 1024: ``1023 B``, ``4.0 KiB``, ``1.4 GiB``.

    :param number: bytes.
    """
    if number < 1024:
        return f"{number} B"
    amount, unit = number / 1024, 0
    while amount >= 1023.95 and unit < len(_SIZE_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_SIZE_UNITS[unit]}"


def is_number(text: str) -> bool:
    """Whether a text is a whole number from 0 up, of at most 19 digits: ``int`` reads it.

    :param text: such as ``12``. ``str.isdigit`` is true for ``²`` and for a number that is longer than ``int`` reads.
    """
    return re.fullmatch(r"[0-9]{1,19}", text) is not None


def parse_time(text: str) -> datetime:
    """Read a time in ISO 8601 with a zone, as UTC.

    :param text: what was written, such as ``2026-11-21T14:05:00Z``.
    :raises RefusedError: it is none, has no zone, or is beyond the times that there are.
    """
    try:
        value = datetime.fromisoformat(text.strip())
    except ValueError as e:
        raise RefusedError(
            f"{text!r} is not a time in ISO 8601", hint="such as 2026-11-21T14:05:00Z or 2026-11-21T15:05:00+01:00"
        ) from e
    if value.tzinfo is None:
        raise RefusedError(f"{text!r} has no time zone", hint=f"add one, such as {value.isoformat()}Z for UTC")
    try:
        return value.astimezone(UTC)
    except OverflowError as e:
        raise RefusedError(f"{text!r} is beyond the times there are", hint="such as 2026-11-21T14:05:00Z") from e


def format_time(time: datetime) -> str:
    """Show a time in UTC, to the second: ``2026-11-21 14:05:00 UTC``.

    :param time: with a zone.
    """
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def shown_time(time: object) -> str:
    """Show a time as :func:`format_time`, also one of a document; what is none is shown as it is.

    :param time: with a zone, or as the document has it, in ISO 8601; ``None``: nobody knows it.
    """
    if time is None:
        return "time not known"
    try:
        return format_time(time if isinstance(time, datetime) else zoned_time(time))
    except ValueError:
        return str(time)


def format_ago(time: datetime, now: datetime | None = None) -> str:
    """Show how long ago a time was, in its largest unit: ``3 h ago``.

    :param time: with a zone.
    :param now: the moment to count from; ``None``: the clock.
    """
    passed = ((now or datetime.now(UTC)) - time).total_seconds()
    if passed < 0:
        return "in the future"
    if passed < 1:
        return "just now"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= 2 * length or (unit == "min" and passed >= length):
            return f"{int(passed // length)} {unit} ago"
    return f"{int(passed)} s ago"


def zoned_time(text: object) -> datetime:
    """Read a time of a document as :func:`parse_time`, where whoever reads it says what is wrong with the document.

    :param text: the time.
    :raises ValueError: it is none, has no zone, or is beyond the times that there are.
    """
    if not isinstance(text, str):
        raise ValueError(f"{text!r:.80} is no time")
    try:
        return parse_time(text)
    except RefusedError as e:
        raise ValueError(e.message) from e
