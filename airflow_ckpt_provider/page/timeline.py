"""One stream over time: batches that the checkpoint has, backups, what the sources keep, changes; and what can be recovered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from airflow_ckpt_provider.page.backup_point import BackupPoint
from airflow_ckpt_provider.page.change_record import ChangeRecord
from airflow_ckpt_provider.page.stream_row import StreamRow

#: In units of the drawing.
WIDTH, LEFT, RIGHT = 1000, 110, 20
#: Points of the batches that a click rewinds to, at most.
_STOPS = 12
#: Two points closer than this cannot be distinguished by a pointer.
_APART = 15.0
#: Lengths between two marks of the axis, in seconds.
_STEPS = (60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400, 30 * 86400, 91 * 86400)


@dataclass(frozen=True, slots=True)
class Span:
    """A bar.

    :param x: where it begins.
    :param width: at least 1.
    """

    x: float
    width: float
    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Mark:
    """A point."""

    x: float
    at: datetime


@dataclass(frozen=True, slots=True)
class BackupMark:
    """A backup on the drawing.

    :param level: 0 to 2: those that lie close to each other are drawn below each other.
    """

    x: float
    point: BackupPoint
    level: int = 0


@dataclass(frozen=True, slots=True)
class ChangeMark:
    """A change on the drawing."""

    x: float
    change: ChangeRecord


@dataclass(frozen=True, slots=True)
class Timeline:
    """The drawing, as places of its parts.

    :param batches: what the checkpoint has, from its oldest to its newest batch; ``None``: not known.
    :param stops: points of that.
    :param sources: since when the sources have the rows, estimated by what the guards found; ``None``: not known, or no limit.
    :param sources_endless: the sources keep all rows.
    :param window: from where the stream can be recovered without loss, as estimated: a batch or backup is there, and its rows are
        still in the sources; ``None``: not known. The plan asks the sources themselves.
    """

    begin: datetime
    end: datetime
    ticks: tuple[Mark, ...]
    batches: Span | None
    stops: tuple[Mark, ...]
    backups: tuple[BackupMark, ...]
    sources: Span | None
    sources_endless: bool
    window: Span | None
    changes: tuple[ChangeMark, ...]


def timeline(row: StreamRow, backups: Sequence[BackupPoint], changes: Iterable[ChangeRecord]) -> Timeline | None:
    """Lay out what is known of a stream; ``None`` where nothing has a time."""
    changed = [change for change in changes if change.at]
    dated = [point for point in backups if point.batch_time]
    oldest = row.oldest[1] if row.oldest else None
    times = [point.batch_time for point in dated] + [change.at for change in changed] + [row.newest, oldest]
    there = [each for each in times if each is not None and each <= row.now]
    if not there:
        return None
    begin, end = min(there), row.now
    begin -= min(max((end - begin) * 0.03, timedelta(seconds=30)), begin - datetime.min.replace(tzinfo=UTC))

    def x(at: datetime) -> float:
        share = (at - begin) / (end - begin)
        return round(LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - RIGHT), 1)

    def span(since: datetime | None, until: datetime | None) -> Span | None:
        if since is None or until is None or until < since:
            return None
        since = max(since, begin)
        return Span(x(since), max(1.0, round(x(until) - x(since), 1)), since, until)

    kept = _kept_since(row)
    endless = row.left_known and row.left is None
    whole = [point.batch_time for point in dated if point.can_be_restored and point.batch_time]
    reach = [each for each in [*whole, oldest] if each is not None]
    # Older than the sources' rows a restore begins with rows that are gone.
    good = [each for each in reach if endless or (kept is not None and each >= kept)]
    if kept and oldest and row.newest and oldest < kept < row.newest:
        good.append(kept)  # the checkpoint has batches from there on
    batches = span(oldest, row.newest)
    return Timeline(
        begin=begin,
        end=end,
        ticks=tuple(Mark(x(at), at) for at in _ticks(begin, end)),
        batches=batches,
        stops=_stops(batches),
        backups=_apart([BackupMark(x(point.batch_time), point) for point in dated if point.batch_time]),
        sources=span(kept, end),
        sources_endless=endless,
        # After its newest batch there is nothing of the stream to recover.
        window=span(min(good), max([*good, *([row.newest] if row.newest else [])])) if good else None,
        changes=tuple(ChangeMark(x(change.at), change) for change in changed if change.at),
    )


def _kept_since(row: StreamRow) -> datetime | None:
    """Since when the sources have the rows, about.

    What the next start reads is deleted in ``left`` seconds, so the sources keep rows for about the time from the newest batch
    until then. A stream that lagged more behind at an earlier batch than now is estimated too well.
    """
    if row.left is None or row.newest is None or row.looked_at is None or not row.left_known or row.left <= 0:
        return None
    try:
        keeps = row.looked_at + timedelta(seconds=row.left) - row.newest
        return row.now - keeps
    except OverflowError:
        return None


def _stops(batches: Span | None) -> tuple[Mark, ...]:
    """Points from the oldest batch to the newest, as many as have room."""
    if batches is None:
        return ()
    many = min(_STOPS, int(batches.width / _APART))
    step = (batches.end - batches.begin) / max(many, 1)
    return tuple(
        Mark(round(batches.x + batches.width * n / max(many, 1), 1), batches.begin + step * n) for n in range(many + 1)
    )


def _apart(marks: Sequence[BackupMark]) -> tuple[BackupMark, ...]:
    """Backups that lie close to each other, on levels of their own."""
    found: list[BackupMark] = []
    for mark in sorted(marks, key=lambda each: each.x):
        near = {other.level for other in found[-3:] if mark.x - other.x < _APART}
        found.append(replace(mark, level=next((n for n in range(3) if n not in near), 2)))
    return tuple(found)


def _ticks(begin: datetime, end: datetime) -> list[datetime]:
    """Whole hours, days or weeks, six to twelve of them."""
    seconds = (end - begin).total_seconds()
    step = next((each for each in _STEPS if seconds / each <= 9), seconds / 6)
    first = begin.timestamp() // step * step + step
    found = []
    while first <= end.timestamp():
        found.append(datetime.fromtimestamp(first, tz=begin.tzinfo))
        first += step
    return found
