"""Five fields of cron, as Airflow takes them: one that it refuses would remove the DAGs of all streams of the file."""

from __future__ import annotations

import re
from datetime import timedelta

from airflow_ckpt_provider.units import is_number

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
#: ``*``, a number or a range, each with a step.
_PART = re.compile(r"(?:\*|([0-9]{1,2}|[A-Z]{3})(?:-([0-9]{1,2}|[A-Z]{3}))?)(?:/([0-9]{1,4}))?")
#: ``MON#2``: the second Monday of a month; ``L5``: its last Friday.
_NTH = re.compile(rf"L[0-7]|([0-7]|{'|'.join(_DAYS)})#[1-5]")
#: Days of each month, in a leap year.
_LENGTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_cron(text: str) -> bool:
    """Whether a text is five fields of cron, for dates that exist.

    :param text: such as ``30 2 * * MON-FRI``. A day may also be ``?``, ``L`` (the last one), ``MON#2`` or ``L5``.
    """
    fields = text.upper().split()
    if len(fields) != 5:
        return False
    minute, hour, day, month, weekday = fields
    months, days = _numbers(month, 1, 12, _MONTHS), _days(day)
    if not (_numbers(minute, 0, 59) and _numbers(hour, 0, 23) and months):
        return False
    if all(map(_NTH.fullmatch, weekday.split(","))):
        if day not in ("*", "?"):
            return False  # croniter wants both, and few dates are
    elif not (weekday == "?" or _numbers(weekday, 0, 7, _DAYS)):
        return False
    return any(number <= _LENGTHS[of - 1] for number in days for of in months)


def average_interval(text: str) -> timedelta:
    """How far apart the dates of a cron expression are on average.

    :param text: five fields, for which :func:`is_cron` is true.
    """
    minute, hour, day, month, weekday = text.upper().split()
    a_day = len(_numbers(minute, 0, 59)) * len(_numbers(hour, 0, 23))
    shares = []  # of the days; where both fields are given, a day of either will do
    if day not in ("*", "?"):
        shares.append(len(_days(day)) / 30)
    if all(map(_NTH.fullmatch, weekday.split(","))):
        shares.append(len(weekday.split(",")) / 30)
    elif weekday not in ("*", "?"):
        shares.append(len({number % 7 for number in _numbers(weekday, 0, 7, _DAYS)}) / 7)
    a_year = a_day * min(1.0, sum(shares) if shares else 1.0) * len(_numbers(month, 1, 12, _MONTHS)) / 12
    return timedelta(seconds=round(86400 / a_year))


def _days(field: str) -> set[int]:
    parts = "*" if field == "?" else field
    numbers = [part for part in parts.split(",") if part != "L"]
    found = _numbers(",".join(numbers), 1, 31) if numbers else set()
    return found | {28, 29, 30, 31} if "L" in parts.split(",") and (found or not numbers) else found


def _numbers(field: str, low: int, high: int, names: tuple[str, ...] = ()) -> set[int]:
    """What a field means; nothing if a part of it is wrong."""
    found: set[int] = set()
    for part in field.split(","):
        match = _PART.fullmatch(part)
        if match is None or (match[3] and not int(match[3])):
            return set()
        first = _number(match[1], low, names) if match[1] else low
        last = _number(match[2], low, names) if match[2] else first if match[1] and not match[3] else high
        if not (low <= first <= high and low <= last <= high):
            return set()
        run = range(first, last + 1) if first <= last else (*range(first, high + 1), *range(low, last + 1))
        found.update(run[:: int(match[3] or 1)])
    return found


def _number(text: str, low: int, names: tuple[str, ...]) -> int:
    if text in names:
        return names.index(text) + low
    return int(text) if is_number(text) else -1
