"""Which backups of a stream to keep: restic's rules.

The rules are those of ``restic forget`` (``internal/data/snapshot_policy.go``, since 0.16): counted from the newest backup
down, a bucket keeps the newest backup of each of its last n hours, days, ISO weeks, months or years that have one, and the
oldest backup of all while it has counts left; ``within`` reaches back from the newest backup, not from now. Hours and days
are those of UTC. What holds whatever the rules say is in :mod:`~airflow_ckpt_provider.backup.expire_plan`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.units import is_number

#: As a count: all of them.
UNLIMITED = -1
_SPAN = re.compile(r"(\d+)([ymdh])")
COUNT_RULES = ("last", "hourly", "daily", "weekly", "monthly", "yearly", "replayable")
SPAN_RULES = ("within", "within-hourly", "within-daily", "within-weekly", "within-monthly", "within-yearly")
_UNITS = {"y": "years", "m": "months", "d": "days", "h": "hours"}


class Dated(Protocol):
    """What the rules decide by."""

    @property
    def created(self) -> datetime:
        """When the backup was made."""

    @property
    def tags(self) -> Mapping[str, str]:
        """Its tags."""


@dataclass(frozen=True, slots=True)
class Span:
    """A length of time of the calendar, such as two years and five months."""

    years: int = 0
    months: int = 0
    days: int = 0
    hours: int = 0

    @classmethod
    def parse(cls, text: str) -> Span:
        """Understand ``2y5m7d3h``, as restic writes it.

        :raises RefusedError: it is none, or zero.
        """
        stripped = text.strip()
        found = {_UNITS[unit]: int(number) for number, unit in _SPAN.findall(stripped)}
        if not re.fullmatch(f"(?:{_SPAN.pattern})+", stripped) or not any(found.values()):
            raise RefusedError(f"{text!r} is no span of time", hint="write it as 2y5m7d3h: years, months, days, hours")
        return cls(**found)

    def __str__(self) -> str:
        parts = ((self.years, "y"), (self.months, "m"), (self.days, "d"), (self.hours, "h"))
        return "".join(f"{number}{unit}" for number, unit in parts if number)

    def before(self, time: datetime) -> datetime:
        """The moment that lies this long before another, as Go's ``AddDate`` has it: a month before 31 March is 3 March."""
        months = time.year * 12 + time.month - 1 - self.years * 12 - self.months
        try:
            first = time.replace(year=months // 12, month=months % 12 + 1, day=1)
            return first + timedelta(days=time.day - 1 - self.days, hours=-self.hours)
        except (ValueError, OverflowError):  # before the year 1
            return datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Policy:
    """What to keep of a stream. A backup stays where any rule says so.

    :param last: the newest n; :data:`UNLIMITED` for all, as with every count.
    :param hourly: the newest of each of the last n hours that have a backup.
    :param daily: the same for days (UTC).
    :param weekly: the same for ISO weeks.
    :param monthly: the same for months.
    :param yearly: the same for years.
    :param within: all that are at most this much older than the newest.
    :param within_hourly: of those, the newest of each hour.
    :param within_daily: of those, the newest of each day.
    :param within_weekly: of those, the newest of each week.
    :param within_monthly: of those, the newest of each month.
    :param within_yearly: of those, the newest of each year.
    :param tags: those that have all tags of one of these, ``key`` or ``key=value`` each.
    :param replayable: the newest n whose sources still have what they would read next. Not one of restic's rules.
    """

    last: int = 0
    hourly: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0
    yearly: int = 0
    within: Span | None = None
    within_hourly: Span | None = None
    within_daily: Span | None = None
    within_weekly: Span | None = None
    within_monthly: Span | None = None
    within_yearly: Span | None = None
    tags: tuple[tuple[str, ...], ...] = ()
    replayable: int = 0

    @classmethod
    def parse(cls, rules: Mapping[str, Any]) -> Policy:
        """Understand rules by the names of restic's options, without ``keep-``.

        :param rules: such as ``{"last": 7, "within-daily": "1m", "tag": ["env=prod", "a,b"], "monthly": "unlimited"}``;
            empty ones are left out.
        :raises RefusedError: a name or a value is none.
        """
        values: dict[str, Any] = {}
        for rule, value in rules.items():
            name = str(rule).replace("_", "-").removeprefix("keep-")
            field = "tags" if name == "tag" else name.replace("-", "_")
            if value in (None, "", "None", [], ()):
                continue
            if field in values:
                raise RefusedError(f"keep-{name} is given twice", hint="remove one: a rule has several spellings")
            if name == "tag":
                values[field] = tuple(map(_tags, value if isinstance(value, list | tuple) else [value]))
            elif name in SPAN_RULES:
                values[field] = Span.parse(str(value))
            elif name in COUNT_RULES:
                values[field] = _count(name, value)
            else:
                known = ", ".join((*COUNT_RULES, *SPAN_RULES, "tag"))
                raise RefusedError(f"there is no rule {rule!r}", hint=f"rules are: {known}")
        return cls(**values)

    @property
    def is_empty(self) -> bool:
        """Whether no rule is given."""
        return self == Policy()

    def to_json(self) -> dict[str, Any]:
        """The rules that are given, as plain JSON."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name)}
        return {
            name: str(value) if isinstance(value, Span) else [",".join(t) for t in value] if name == "tags" else value
            for name, value in given.items()
        }

    def __str__(self) -> str:
        def words(name: str, value: Any) -> str:
            if name == "tags":
                return f"keep-tag {' or '.join(value)}"
            return f"keep-{name.replace('_', '-')} {'unlimited' if value == UNLIMITED else value}"

        return ", ".join(words(name, value) for name, value in self.to_json().items())


def _count(name: str, value: Any) -> int:
    text = str(value).strip()
    if text == "unlimited":
        return UNLIMITED
    if not is_number(text):
        raise RefusedError(f"keep-{name} is {value!r}", hint="give a whole number, or unlimited")
    return int(text)


def _tags(value: Any) -> tuple[str, ...]:
    """Tags that a backup has to have, all of them. What no backup could have would silently keep none."""
    is_text = isinstance(value, str | int) and not isinstance(value, bool)
    parts = tuple(part.strip() for part in str(value).split(",")) if is_text else ()
    if not parts or not all(parts):
        raise RefusedError(f"keep-tag is {value!r}", hint="give `key` or `key=value`, several with commas between")
    return parts


def _week(time: datetime) -> tuple[int, ...]:
    year, week, _ = time.isocalendar()
    return (year, week)


#: Rule -> the part of the calendar it goes by.
_BUCKETS: dict[str, Callable[[datetime], tuple[int, ...]]] = {
    "hourly": lambda t: (t.year, t.month, t.day, t.hour),
    "daily": lambda t: (t.year, t.month, t.day),
    "weekly": _week,
    "monthly": lambda t: (t.year, t.month),
    "yearly": lambda t: (t.year,),
}


class _Bucket:
    """One counted rule, going through the backups from the newest to the oldest."""

    def __init__(self, count: int, since: datetime | None, part: Callable[[datetime], tuple[int, ...]] | None) -> None:
        self._left = count
        self._since = since
        self._part = part
        self._filled: set[tuple[int, ...]] = set()  # all: after a clock that was wrong, times are not in order

    def keeps(self, time: datetime, number: int, *, oldest: bool) -> str | None:
        """``""`` or ``"oldest "`` where this rule keeps a backup, to begin its reason with; else ``None``."""
        if self._left == 0 or (self._since is not None and time <= self._since):
            return None
        part = self._part(time) if self._part else (number,)
        again = part in self._filled
        if again and not oldest:
            return None
        self._filled.add(part)
        if self._left > 0:
            self._left -= 1
        return "oldest " if again else ""


def reasons_to_keep(backups: Sequence[Dated], policy: Policy) -> list[tuple[str, ...]]:
    """Why the rules keep each backup; an empty tuple where none does.

    :param backups: backups of one stream, newest first, none of them from the future.
    :param policy: the rules; ``replayable`` is ignored.
    """
    if not backups:
        return []
    newest = backups[0].created.astimezone(UTC)
    buckets = [("last backup", _Bucket(policy.last, None, None))]
    for name, part in _BUCKETS.items():
        buckets.append((f"{name} backup", _Bucket(getattr(policy, name), None, part)))
    for name, part in _BUCKETS.items():
        span: Span | None = getattr(policy, f"within_{name}")
        if span:
            buckets.append((f"{name} within {span}", _Bucket(UNLIMITED, span.before(newest), part)))
    within = policy.within.before(newest) if policy.within else None
    found = []
    for number, backup in enumerate(backups):
        time = backup.created.astimezone(UTC)
        why = [f"has tags [{', '.join(wanted)}]" for wanted in policy.tags if has_tags(backup.tags, wanted)]
        if within is not None and time > within:
            why.append(f"within {policy.within}")
        for reason, bucket in buckets:
            start = bucket.keeps(time, number, oldest=number == len(backups) - 1)
            if start is not None:
                why.append(start + reason)
        found.append(tuple(why))
    return found


def has_tags(tags: Mapping[str, str], wanted: Sequence[str]) -> bool:
    """Whether all wanted tags are there, each a ``key`` or ``key=value``."""
    return all(w in tags or w in {f"{key}={value}" for key, value in tags.items()} for w in wanted)
