"""The workspace's clock: the machine's, moved on by tests that need yesterday."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any


class Clock:
    """Time as the workspace sees it, in UTC.

    :param start: time at which the clock starts; the machine's own where it is left out.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._offset = timedelta() if start is None else start - datetime.now(UTC)

    def now(self) -> datetime:
        return datetime.now(UTC) + self._offset

    def advance(self, **duration: Any) -> None:
        """Move on, as in ``advance(hours=2)``."""
        self._offset += timedelta(**duration)


def millis(time: datetime) -> int:
    """As ``UpdateInfo.creation_time`` has it."""
    return int(time.timestamp() * 1000)


def text(time: datetime) -> str:
    """As ``UpdateStateInfo.creation_time`` and events have it."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse(value: str) -> datetime:
    """A time in a request or an option; without a zone it is UTC.

    :raises ValueError: it is none.
    """
    time = datetime.fromisoformat(value)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time
