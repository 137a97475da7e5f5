"""How long an offset will still be there: a lower bound, an estimate, and the retention that a downtime needs.

Kafka deletes whole segments, oldest first, once the newest record of a segment is older than ``retention.ms``, whenever a timer
looks. So no record goes before its own timestamp + ``retention.ms``: the lower bound. The rest of its segment and the timer
are added: the estimate. Limits by size depend on what producers will send, so they give an estimate only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.guards.kafka_log import LogEnds, Record, TopicConfig
from airflow_ckpt_provider.guards.time_left import hours_needed
from airflow_ckpt_provider.units import format_size

_HOUR_MS = 3_600_000
#: Bytes that Kafka's format adds to a record, about.
_OVERHEAD = 12
#: Producers whose newest record is older than this part of the retention may write records that are deleted at once.
_LATE = 0.5


@dataclass(frozen=True, slots=True)
class TimeToLoss:
    """How long an offset will still be there.

    :param at_least: seconds from now; 0 when it may go at any moment; ``None`` without a known bound, or if none is needed.
    :param estimate: seconds from now; ``None`` where none can be made or nothing will be deleted.
    :param limited_by: ``retention.ms``, ``retention.bytes``, or ``nothing``.
    :param reason: how it was found.
    """

    at_least: float | None
    estimate: float | None
    limited_by: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """The bounds as plain JSON, in seconds."""
        return {
            "seconds_left": _rounded(self.at_least),
            "seconds_left_estimate": _rounded(self.estimate),
            "limited_by": self.limited_by,
            "time_to_loss_reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Movement:
    """How far the earliest offset moved between two polls.

    :param offsets: by how many.
    :param seconds: in which time.
    """

    offsets: int
    seconds: float


def time_to_loss(
    offset: int,
    ends: LogEnds,
    config: TopicConfig,
    *,
    now_ms: int,
    at_offset: Record | None,
    oldest: Record | None,
    newest_ms: int | None = None,
    movement: Movement | None = None,
) -> TimeToLoss:
    """Say how long an offset that is still there will be.

    :param offset: the next offset to read.
    :param ends: both ends of the log.
    :param config: settings of the topic.
    :param now_ms: the present, milliseconds since the epoch.
    :param at_offset: the first record at or after ``offset``; ``None`` if there is none yet, or none was read.
    :param oldest: the first record of the log, where it was read.
    :param newest_ms: the newest timestamp in the partition, where known; where all is read and the partition is empty, in the
        topic.
    :param movement: how the earliest offset moved lately, where it was measured.
    """
    if not config.deletes:
        why = "retention.ms is -1" if "delete" in config.cleanup else "cleanup.policy is compact: no age or size limit"
        return TimeToLoss(None, None, "nothing", why)
    if missing := config.limits_unreported:
        return TimeToLoss(None, None, missing[0], f"the broker does not report {' and '.join(missing)} of the topic")
    if offset >= ends.latest:
        return _of_what_comes(ends, config, now_ms=now_ms, newest_ms=newest_ms)
    rate = _records_per_second(ends, oldest or at_offset, newest_ms)
    by_age = _by_age(
        config, at_offset, now_ms, newest_ms, _span(config, rate, at_offset or oldest), config.retention_ms
    )
    by_size = _by_size(offset, ends, config, rate, at_offset or oldest, movement)
    if by_size is None:
        return by_age or TimeToLoss(None, None, "retention.ms", "the record at the offset could not be read in time")
    if by_age is None or by_age.estimate is None:
        return by_size
    if by_size.estimate is None:  # the size may be what strikes first, at a time that nobody knows
        return TimeToLoss(None, None, by_size.limited_by, f"{by_size.reason}; {by_age.reason}")
    if by_age.estimate <= by_size.estimate:
        # The limit by size may still be the first to strike: no bound can be promised.
        return TimeToLoss(None, by_age.estimate, by_age.limited_by, f"{by_age.reason}; {by_size.reason}")
    return by_size


def _of_what_comes(ends: LogEnds, config: TopicConfig, *, now_ms: int, newest_ms: int | None) -> TimeToLoss:
    if config.retention_ms is None or config.retention_bytes is not None:
        return TimeToLoss(None, None, "retention.bytes", "all is read; what comes is kept as long as the size allows")
    seconds = config.retention_ms / 1000
    reason = "all is read; what comes now is kept for retention.ms"
    if config.append_time:
        return TimeToLoss(seconds, seconds, "retention.ms", reason)
    is_gone = newest_ms is None and 0 < ends.latest == ends.earliest
    if is_gone or (newest_ms is not None and now_ms - newest_ms > config.retention_ms * _LATE):
        late = "deleted already" if is_gone else "older than half of retention.ms"
        why = f"all is read; timestamps are the producers' own, and the newest record is {late}: so may be what comes"
        return TimeToLoss(None, None, "retention.ms", why)
    return TimeToLoss(seconds, seconds, "retention.ms", f"{reason}, if producers do not write old timestamps")


def _by_age(
    config: TopicConfig,
    at_offset: Record | None,
    now_ms: int,
    newest_ms: int | None,
    span_ms: float,
    retention_ms: int | None,
) -> TimeToLoss | None:
    if retention_ms is None or at_offset is None or at_offset.timestamp_ms is None:
        return None
    due = (at_offset.timestamp_ms + retention_ms - now_ms) / 1000
    # On average half a segment lies behind the record, and half an interval passes until the timer looks.
    rest_of_segment = span_ms / 2
    # Its end is the newest record, if no more come; where that is not known, it is no younger than now.
    newest = now_ms if newest_ms is None else newest_ms
    rest_of_segment = min(rest_of_segment, max(0, newest - at_offset.timestamp_ms))
    timer = (config.check_interval_ms or 300_000) / 2
    late = (rest_of_segment + timer) / 1000
    reason = f"timestamp of the record + retention.ms; about {late:.0f} s more for its segment and the broker's timer"
    if not config.append_time:
        reason += "; timestamps are the producers' own"
    if config.tiered:
        reason += (
            "; tiered storage: local.retention.* moves records only, when remote ones are deleted is not known better"
        )
    return TimeToLoss(max(0.0, due), max(0.0, due + late), "retention.ms", reason)


def _by_size(
    offset: int,
    ends: LogEnds,
    config: TopicConfig,
    rate: float | None,
    sample: Record | None,
    movement: Movement | None,
) -> TimeToLoss | None:
    limit = config.retention_bytes
    if limit is None:
        return None
    if movement is not None and movement.offsets > 0 and movement.seconds > 0:
        seconds = (offset - ends.earliest) / (movement.offsets / movement.seconds)
        reason = f"the earliest offset moved by {movement.offsets:,} in {movement.seconds:,.0f} s"
        return TimeToLoss(None, seconds, "retention.bytes", f"{reason}: retention.bytes allows no bound")
    if rate is None or sample is None:
        return TimeToLoss(
            None, None, "retention.bytes", f"retention.bytes is {limit:,}: size and throughput are not known"
        )
    size = sample.size + _OVERHEAD
    room = max(0.0, limit - (ends.latest - offset) * size)
    reason = (
        f"retention.bytes is {limit:,}; about {rate:,.1f} records of {format_size(size)} a second: "
        "no bound, an estimate only"
    )
    return TimeToLoss(None, room / (rate * size) if rate else None, "retention.bytes", reason)


def _records_per_second(ends: LogEnds, since: Record | None, newest_ms: int | None) -> float | None:
    if since is None or since.timestamp_ms is None or newest_ms is None or newest_ms <= since.timestamp_ms:
        return None
    return (ends.latest - since.offset) / ((newest_ms - since.timestamp_ms) / 1000)


def _span(config: TopicConfig, rate: float | None, sample: Record | None) -> float:
    """Milliseconds from the first to the last record of a segment."""
    if not rate or sample is None:
        return float(config.segment_ms)
    return min(float(config.segment_ms), config.segment_bytes / (rate * (sample.size + _OVERHEAD)) * 1000)


def retention_needed_ms(needed_seconds: float, *, oldest_unread_ms: int | None, now_ms: int) -> int:
    """Return the ``retention.ms`` with which the oldest unread record outlives a downtime, in whole hours, rounded up.

    :param needed_seconds: the downtime and its buffer, from now on.
    :param oldest_unread_ms: timestamp of the record at the resume point; ``None`` where all is read.
    :param now_ms: the present.
    """
    age = max(0, now_ms - oldest_unread_ms) if oldest_unread_ms is not None else 0
    return hours_needed(age + needed_seconds * 1000) * _HOUR_MS


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
