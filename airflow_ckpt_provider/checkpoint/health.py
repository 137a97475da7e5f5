"""The pace of a stream, and whether it keeps it: batch duration and input rate against a baseline taken before.

Both come from the logs alone. A batch lasts from its entry in ``offsets/`` to that in ``commits/``, by the store's clock;
what came in is the difference of two offset log entries over the time between them. Nobody has to run Spark or ask a
source for it.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.checkpoint.driver_logs import DriverMark
from airflow_ckpt_provider.checkpoint.offsets import OffsetEntry
from airflow_ckpt_provider.checkpoint.poll import Logs, list_logs, read_entry
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE, parse_query_id
from airflow_ckpt_provider.checkpoint.source_offsets import (
    DeltaOffset,
    FileOffset,
    KafkaOffset,
    Offset,
    RateMicroBatchOffset,
)
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.location import Location

#: Differences of a batch's duration below this many seconds say nothing.
_NEGLIGIBLE = 0.2
#: The same where the store gives its times in whole seconds, as S3 does.
_NEGLIGIBLE_IN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a stream runs.

    :param checkpoint: where it was measured.
    :param query_id: the query's id, ``None`` where it was not read.
    :param batch_id: newest committed batch of those measured, -1 for none.
    :param batches: how many were measured.
    :param seconds_per_batch: mean duration, the fastest and the slowest quarter left out; ``None`` where it cannot be known.
    :param input_per_second: source -> records a second (Kafka), rows (rate per micro-batch), entries of its log (files), versions
        (Delta); ``None`` for sources whose offsets cannot be counted.
    :param whole_seconds: the store gives times in whole seconds.
    :param time: when it was measured, in UTC; ``None`` for a measurement that is compared, and in baselines of earlier versions.
    :param lag: source -> the largest lag over the measured batches, from the progress lines; ``None`` where they were not read.
    :param driver: what the driver had said by then, which does not count later; ``None`` where it was not asked.
    """

    checkpoint: str
    query_id: str | None
    batch_id: int
    batches: int
    seconds_per_batch: float | None
    input_per_second: dict[str, float | None]
    whole_seconds: bool
    time: datetime | None = None
    lag: dict[str, float] | None = None
    driver: DriverMark | None = None

    def to_json(self) -> dict[str, Any]:
        """The pace as plain JSON."""
        return {
            "checkpoint": self.checkpoint,
            "query_id": self.query_id,
            "batch_id": self.batch_id,
            "batches": self.batches,
            "seconds_per_batch": self.seconds_per_batch,
            "input_per_second": self.input_per_second,
            "whole_seconds": self.whole_seconds,
            "time": self.time.isoformat() if self.time else None,
            "lag": self.lag,
            "driver": self.driver.to_json() if self.driver else None,
        }

    @classmethod
    def from_json(cls, value: Any) -> Pace:
        """The pace that :meth:`to_json` wrote.

        :raises RefusedError: it is something else.
        """
        try:
            known = {f.name: value[f.name] for f in fields(cls) if f.default is MISSING or f.name in value}
            known["time"] = datetime.fromisoformat(known["time"]) if known.get("time") else None
            known["driver"] = DriverMark.from_json(known.get("driver"))
            return cls(**known)
        except (KeyError, TypeError, ValueError) as e:
            raise RefusedError(
                f"baseline is {str(value)[:80]!r}", hint="give what stream_baseline(…) returned before the deployment"
            ) from e


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison with the baseline.

    :param what: ``seconds_per_batch``, ``input_per_second of source <n>`` or ``<metric of its lag> of source <n>``.
    :param change_percent: how much more than the baseline, negative for less; ``None`` where it cannot be known.
    :param ok: within what is allowed; ``None`` where it cannot be known.
    """

    what: str
    baseline: float | None
    measured: float | None
    change_percent: float | None
    allowed_percent: float
    ok: bool | None

    def __str__(self) -> str:
        if self.change_percent is None:
            return f"{self.what}: unknown (baseline {self.baseline}, now {self.measured})"
        return (
            f"{self.what}: {self.measured:g} instead of {self.baseline:g}, {self.change_percent:+.0f} % "
            f"({self.allowed_percent:g} % allowed)"
        )

    def to_json(self) -> dict[str, Any]:
        """The check as plain JSON."""
        return {
            "what": self.what,
            "baseline": self.baseline,
            "measured": self.measured,
            "change_percent": self.change_percent,
            "allowed_percent": self.allowed_percent,
            "ok": self.ok,
        }


def measure(location: Location, *, batches: int, after: int = -1, with_query_id: bool = False) -> Pace:
    """Measure the newest committed batches: two listings and at most three small reads.

    :param batches: how many; fewer where fewer are retained.
    :param after: only batches beyond this one.
    :param with_query_id: read the query's id too.
    :raises UnreadableLogError: the first or last of their offset log entries cannot be parsed.
    """
    logs = list_logs(location)
    chosen = [b for b in sorted(logs.commits) if b > after and b in logs.offsets][-batches:]
    query_id = None
    if with_query_id:
        try:
            query_id = parse_query_id(location.read(METADATA_FILE))
        except FileNotFoundError:
            query_id = None
    times = [logs.commits[b].modified for b in chosen]
    return Pace(
        checkpoint=location.uri,
        query_id=query_id,
        batch_id=chosen[-1] if chosen else -1,
        batches=len(chosen),
        seconds_per_batch=_middle_mean(_durations(logs, chosen)),
        input_per_second=_input(location, logs, chosen[0], chosen[-1]) if len(chosen) > 1 else {},
        whole_seconds=bool(times) and all(t is not None and t.microsecond == 0 for t in times),
    )


def compare(
    baseline: Pace,
    now: Pace,
    *,
    duration_within: float | None,
    input_within: float | None,
    catching_up: bool = False,
) -> list[Check]:
    """Compare a pace with the baseline.

    :param duration_within: percent by which a batch may take longer or shorter; ``None``: not compared.
    :param input_within: percent by which each source may bring more or less; ``None``: not compared.
    :param catching_up: more input is no fault: what arrived while the stream was down is read as well.
    """
    checks = []
    if duration_within is not None:
        coarse = baseline.whole_seconds or now.whole_seconds
        slack = _NEGLIGIBLE_IN_SECONDS if coarse else _NEGLIGIBLE
        checks.append(
            _check("seconds_per_batch", baseline.seconds_per_batch, now.seconds_per_batch, duration_within, slack)
        )
    if input_within is not None:
        for source, rate in baseline.input_per_second.items():
            measured = now.input_per_second.get(source)
            what = f"input_per_second of source {source}"
            checks.append(_check(what, rate, measured, input_within, 0.0, more_is_fine=catching_up))
    return checks


def _check(
    what: str,
    baseline: float | None,
    measured: float | None,
    allowed: float,
    slack: float,
    *,
    more_is_fine: bool = False,
) -> Check:
    # Of a source that brought nothing, any rate is infinitely more.
    if baseline is None or measured is None or not baseline:
        near = baseline is not None and measured is not None and abs(measured - baseline) <= slack
        return Check(what, baseline, measured, None, allowed, True if near else None)
    change = 100 * (measured - baseline) / baseline
    ok = abs(change) <= allowed or abs(measured - baseline) <= slack or (more_is_fine and change > 0)
    return Check(what, baseline, measured, round(change, 1), allowed, ok)


def _durations(logs: Logs, batches: list[int]) -> list[float]:
    pairs = ((logs.offsets[b].modified, logs.commits[b].modified) for b in batches)
    return [max(0.0, (done - began).total_seconds()) for began, done in pairs if began and done]


def _middle_mean(values: list[float]) -> float | None:
    """Mean of the middle half: one slow batch does not move it, and times in whole seconds do not make it jump."""
    if not values:
        return None
    quarter = len(values) // 4
    middle = sorted(values)[quarter : len(values) - quarter]
    return round(sum(middle) / len(middle), 3)


def _input(location: Location, logs: Logs, first: int, last: int) -> dict[str, float | None]:
    earlier, later = read_entry(location, first), read_entry(location, last)
    if not (isinstance(earlier, OffsetEntry) and isinstance(later, OffsetEntry)):
        return {}
    began, ended = _time(earlier, logs), _time(later, logs)
    if began is None or ended is None or ended <= began:
        return {}
    seconds = (ended - began).total_seconds()
    before = {source.source: source.offset for source in earlier.sources}
    found: dict[str, float | None] = {}
    for source in later.sources:
        amount = _amount(before.get(source.source), source.offset)
        found[source.source] = None if amount is None else round(amount / seconds, 3)
    return found


def _time(entry: OffsetEntry, logs: Logs) -> datetime | None:
    modified = logs.offsets[entry.batch_id].modified
    return entry.time or (modified.astimezone(UTC) if modified else None)


def _amount(before: Offset | None, after: Offset | None) -> int | None:
    match before, after:
        case KafkaOffset(), KafkaOffset():
            return sum(
                end - before.partitions[topic][partition]
                for topic, partitions in after.partitions.items()
                for partition, end in partitions.items()
                if partition in before.partitions.get(topic, {})
            )
        case FileOffset(), FileOffset():
            return after.log_offset - before.log_offset
        case RateMicroBatchOffset(), RateMicroBatchOffset():
            return after.rows - before.rows
        case DeltaOffset(), DeltaOffset():
            return after.table_version - before.table_version
        case _:
            return None
