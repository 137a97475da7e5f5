"""What the driver of a stream says besides its checkpoint: its progress lines and its text log.

A crash at the start shows nowhere else. No batch appears after it, so whoever reads the checkpoint alone waits until the time
is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.checkpoint.error_log import LogPosition, end_of, uncaught_error
from airflow_ckpt_provider.checkpoint.progress_events import STARTED, TERMINATED, DriverEvent, read_events
from airflow_ckpt_provider.checkpoint.seal import SEAL_PREFIX
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.units import format_time

#: Lines of an error that are quoted.
_LINES = 5
_LONGEST = 2000


@dataclass(frozen=True, slots=True)
class DriverLogs:
    """The files, each a place of its own.

    :param progress: the JSON lines that :class:`~airflow_ckpt_provider.spark.progress_lines.ProgressLines` writes.
    :param errors: the driver's text log.
    """

    progress: Location | None = None
    errors: Location | None = None


@dataclass(frozen=True, slots=True)
class DriverMark:
    """What the driver had said by a moment: it does not count later.

    :param at: the moment, in UTC.
    :param runs: runs that the progress lines tell of; ``None`` where they were not read. What becomes of these is not the new
        code's doing: they were stopped for it, by whatever means.
    :param log: how long the text log was; ``None`` where it was not read.
    """

    at: datetime | None = None
    runs: tuple[str, ...] | None = None
    log: LogPosition | None = None

    def to_json(self) -> dict[str, Any]:
        """The mark as plain JSON."""
        return {
            "at": self.at.isoformat() if self.at else None,
            "runs": None if self.runs is None else list(self.runs),
            "log": self.log.to_json() if self.log else None,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any] | None) -> DriverMark | None:
        """The mark that :meth:`to_json` wrote."""
        if value is None:
            return None
        at, runs = value["at"], value["runs"]
        return cls(
            datetime.fromisoformat(at) if at else None,
            None if runs is None else tuple(runs),
            LogPosition.from_json(value["log"]),
        )


@dataclass(frozen=True, slots=True)
class Crash:
    """An error that ended a run.

    :param found_in: the file that shows it.
    :param error_class: Spark's error class, ``None`` where it has none or the text log shows.
    :param error: the error; of a text log the line.
    :param at: when, where it is known.
    :param run_id: the run, likewise.
    """

    found_in: str
    error: str
    error_class: str | None = None
    at: datetime | None = None
    run_id: str | None = None

    @property
    def in_words(self) -> str:
        """The error's class and its first lines."""
        lines = "\n".join(self.error.strip().splitlines()[:_LINES])[:_LONGEST]
        if self.run_id is None:
            return f"an uncaught error is in {self.found_in}: {lines}"
        when = f" at {format_time(self.at)}" if self.at else ""
        return f"the query was terminated{when} by {self.error_class or 'an error without a class'}: {lines}"

    def to_json(self) -> dict[str, Any]:
        """The crash as plain JSON."""
        return {
            "found_in": self.found_in,
            "error_class": self.error_class,
            "error": self.error[:_LONGEST],
            "at": self.at.isoformat() if self.at else None,
            "run_id": self.run_id,
        }


def mark_logs(logs: DriverLogs, now: datetime) -> DriverMark:
    """Note what the driver has said until now.

    :raises StorageError: a file cannot be read; one that does not exist yet is fine.
    """
    runs = None
    if logs.progress is not None:
        runs = tuple(dict.fromkeys(event.run_id for event in read_events(logs.progress)))
    return DriverMark(now, runs, end_of(logs.errors) if logs.errors is not None else None)


def find_crash(
    logs: DriverLogs, since: DriverMark, *, query_id: str | None, position: LogPosition | None
) -> tuple[Crash | None, LogPosition | None]:
    """Check whether a run that began after a mark has crashed.

    :param since: what does not count.
    :param query_id: the stream's query; other queries of its session do not count. ``None``: all do.
    :param position: how far the text log was read; ``None`` before the first poll, which begins at the mark, or where that has
        none, at the end.
    :return: the crash, and how far the text log was read.
    :raises StorageError: a file cannot be read; one that does not exist yet is fine.
    """
    if logs.progress is not None:
        events = [e for e in read_events(logs.progress) if query_id in (None, e.query_id)]
        ended = next((e for e in reversed(events) if _counts(e, events, since)), None)
        if ended is not None:
            return Crash(logs.progress.uri, ended.error or "", ended.error_class, ended.at, ended.run_id), position
    if logs.errors is not None:
        position = position or since.log or end_of(logs.errors)
        line, position = uncaught_error(logs.errors, position)
        if line is not None:
            return Crash(logs.errors.uri, line), position
    return None, position


def _counts(event: DriverEvent, events: Sequence[DriverEvent], since: DriverMark) -> bool:
    if event.kind != TERMINATED or not event.error or SEAL_PREFIX.decode() in event.error:
        return False
    if since.runs is not None:
        return event.run_id not in since.runs
    # By the times: a run whose start is not logged any more began long ago.
    started = next((e.at for e in events if e.kind == STARTED and e.run_id == event.run_id), None)
    return started is not None and since.at is not None and started > since.at
