"""Five fields of cron, as Airflow takes them: one that it refuses would remove the DAGs of all streams of the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta
from functools import lru_cache
from itertools import pairwise

from airflow_ckpt_provider.units import is_number

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
#: ``*``, a number or a range, each with a step.
_PART = re.compile(r"(?:\*|([0-9]{1,2}|[A-Z]{3})(?:-([0-9]{1,2}|[A-Z]{3}))?)(?:/([0-9]{1,4}))?")
#: ``MON#2``: the second Monday of a month; ``L5``: its last Friday.
_NTH = re.compile(rf"L[0-7]|([0-7]|{'|'.join(_DAYS)})#[1-5]")
#: The presets of a declaration, as Airflow reads them.
PRESETS = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *"}
#: Minutes of a day.
_A_DAY = 24 * 60
#: 28 years with seven leap years, by their days.
_YEARS = (date(2001, 1, 1).toordinal(), date(2030, 1, 1).toordinal())
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


@lru_cache(maxsize=1024)  # streams share schedules
def longest_interval(text: str) -> timedelta:
    """The longest time between two dates of a schedule, in a year of 365 or 366 days of 24 hours.

    :param text: a preset such as ``@daily``, or five fields for which :func:`is_cron` is true.
    """
    minute, hour, day, month, weekday = PRESETS.get(text, text).upper().split()
    a_day = [60 * h + m for h in sorted(_numbers(hour, 0, 23)) for m in sorted(_numbers(minute, 0, 59))]
    within = max((later - before for before, later in pairwise(a_day)), default=0)
    night = _A_DAY - a_day[-1] + a_day[0]
    apart = 1 if _every_day(day, month, weekday) else _days_apart(day, month, weekday)
    return timedelta(minutes=max(within, night + (apart - 1) * _A_DAY))


def _every_day(day: str, month: str, weekday: str) -> bool:
    return day in ("*", "?") and weekday in ("*", "?") and month == "*"


@lru_cache(maxsize=256)  # schedules of many streams differ in their minutes alone
def _days_apart(day: str, month: str, weekday: str) -> int:
    """The most days from one that fits to the next: of 28 years, in which every date has had every day of the week."""
    months, fits_itself = _numbers(month, 1, 12, _MONTHS), _day_test(day, weekday)
    days = map(date.fromordinal, range(*_YEARS))
    fits = [each.toordinal() for each in days if each.month in months and fits_itself(each)]
    return max((later - before for before, later in pairwise(fits)), default=_YEARS[1] - _YEARS[0])


def _day_test(day: str, weekday: str) -> Callable[[date], bool]:
    """Whether a day fits to the fields of the day and of the day of the week: where both are given, to either."""
    numbers = ",".join(part for part in day.split(",") if part != "L")
    days = _numbers(numbers, 1, 31) if numbers and day not in ("*", "?") else set()
    last = "L" in day.split(",")
    nths = [part for part in weekday.split(",") if _NTH.fullmatch(part)]
    weekdays = set() if nths or weekday in ("*", "?") else {n % 7 for n in _numbers(weekday, 0, 7, _DAYS)}
    any_day = day in ("*", "?") and weekday in ("*", "?")

    def fits(at: date) -> bool:
        return (
            any_day
            or at.day in days
            or at.isoweekday() % 7 in weekdays
            or (last and (at + timedelta(days=1)).day == 1)
            or any(_is_nth(at, part) for part in nths)
        )

    return fits


def _is_nth(at: date, part: str) -> bool:
    number = at.isoweekday() % 7
    if part[0] == "L":
        return number == int(part[1]) % 7 and (at + timedelta(days=7)).month != at.month
    name, _, nth = part.partition("#")
    return number == _number(name, 0, _DAYS) % 7 and (at.day + 6) // 7 == int(nth)


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
