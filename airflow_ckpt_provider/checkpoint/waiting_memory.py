"""What a wait remembers from one poll to the next, as plain JSON, so that it survives the process that looked."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any

from airflow_ckpt_provider.checkpoint.error_log import LogPosition
from airflow_ckpt_provider.storage.store import StoredFile


def stamp(file: StoredFile) -> str:
    """What is different for another file of the same name."""
    return f"{file.size} {file.identity} {file.modified.isoformat() if file.modified else None}"


@dataclass(frozen=True, slots=True)
class Memory:
    """The past of one wait. ``Memory()`` is that of a wait which has not begun.

    :param started: when the wait began, by our clock.
    :param base: newest batch committed when it began, -1 for none; ``None`` before the first poll.
    :param committed: newest commit seen.
    :param committed_at: when that commit was written, by the store's clock.
    :param query_id: the query's id, once it was read.
    :param entry: the newest offset log entry whose content is known to be one, with its stamp.
    :param seals: files in ``offsets/`` known to be seals: number, stamp and sentence of each.
    :param logs: newest logged and newest committed batch of the last poll.
    :param seen: when a poll first showed ``logs``, by our clock.
    :param before: when a poll last showed something else.
    :param looked: when the last poll was that succeeded; ``None`` before the first.
    :param active: when anything in ``state/`` was last written, as far as that was asked.
    :param unchecked: looks since ``metadata`` was read.
    :param failures: looks that failed, one after the other, up to the last one.
    :param log: how far the driver's text log was read; ``None`` before that.
    """

    started: datetime | None = None
    base: int | None = None
    committed: int | None = None
    committed_at: datetime | None = None
    query_id: str | None = None
    entry: tuple[int, str] | None = None
    seals: tuple[tuple[int, str, str], ...] = field(default=())
    logs: tuple[int | None, int | None] | None = None
    seen: datetime | None = None
    before: datetime | None = None
    looked: datetime | None = None
    active: datetime | None = None
    unchecked: int = 0
    failures: int = 0
    log: LogPosition | None = None

    def age(self, newest: datetime | None, now: datetime) -> timedelta:
        """How long ago the logs were last written to.

        The time of the newest file says so by the store's clock. What was seen by our own clock sets its limits: not
        less than since a poll first showed these logs, not more than since one showed others. So a clock that is wrong
        can mislead the first poll at most.
        """
        least = now - (self.seen or now)
        age = least if newest is None else max(now - newest, least)
        return age if self.before is None else min(age, now - self.before)

    def to_json(self) -> dict[str, Any]:
        """The memory as plain JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: _plain(value) for name, value in values.items() if value is not None and value != ()}

    @classmethod
    def from_json(cls, value: dict[str, Any] | None) -> Memory:
        """The memory that :meth:`to_json` wrote; ``None`` is a wait that has not begun."""
        known = dict(value or {})
        for name in ("started", "committed_at", "seen", "before", "looked", "active"):
            if known.get(name):
                known[name] = datetime.fromisoformat(known[name])
        for name in ("entry", "logs"):
            if known.get(name) is not None:
                known[name] = tuple(known[name])
        known["seals"] = tuple((int(number), mark, said) for number, mark, said in known.get("seals", ()))
        known["log"] = LogPosition.from_json(known.get("log"))
        names = {f.name for f in fields(cls)}
        return cls(**{name: each for name, each in known.items() if name in names})


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, LogPosition):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value
