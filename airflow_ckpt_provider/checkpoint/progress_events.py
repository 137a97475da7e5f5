"""What the queries of a driver say of themselves: the JSON lines that ``spark/progress_lines.py`` writes, read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.location import Location

STARTED, PROGRESS, TERMINATED = "started", "progress", "terminated"
#: Metrics by which a source reports how much it has not read yet. Offsets: Kafka's
#: (`KafkaMicroBatchStream.metrics`). Bytes and files: Databricks' Delta and Auto Loader sources.
_OFFSETS = ("maxOffsetsBehindLatest", "avgOffsetsBehindLatest", "minOffsetsBehindLatest")
_AMOUNTS = ("numBytesOutstanding", "numFilesOutstanding")


@dataclass(frozen=True, slots=True)
class Lag:
    """What a source had not read yet when a batch was planned.

    :param metric: Spark's name for it.
    :param value: offsets, bytes or files.
    :param one_batch: as much of the same unit as one batch reads, where the unit is that of rows; else 0. That much waits for the
        next batch in any stream that runs.
    """

    metric: str
    value: float
    one_batch: float = 0.0


@dataclass(frozen=True, slots=True)
class DriverEvent:
    """One line.

    :param kind: ``started``, ``progress`` or ``terminated``.
    :param at: when, by the driver's clock; ``None`` where the line does not say.
    :param run_id: changes with each start of the query.
    :param batch_id: of a ``progress``.
    :param lags: of a ``progress``: number of the source, as in the offset log -> its lag; sources that tell none are left out.
    :param sources: of a ``progress``: number of the source -> Spark's description.
    :param error: of a ``terminated`` that is one.
    :param error_class: Spark's error class, where it has one.
    """

    kind: str
    at: datetime | None
    query_id: str
    run_id: str
    batch_id: int = -1
    lags: Mapping[str, Lag] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    error_class: str | None = None


def read_events(file: Location) -> tuple[DriverEvent, ...]:
    """Read the lines of a driver, oldest first; none if there is no such file yet.

    :param file: the file itself.
    :raises StorageError: it cannot be read.
    """
    try:
        data = file.read("")
    except FileNotFoundError:
        return ()
    events = (_event(line) for line in data.decode(errors="replace").splitlines())
    return tuple(event for event in events if event is not None)


def _event(line: str) -> DriverEvent | None:
    try:
        value = load_json(line)
        kind, query_id, run_id = value["event"], str(value["query_id"]), str(value["run_id"])
    except (ValueError, KeyError, TypeError):
        return None  # somebody else's line
    sources: Sequence[Any] = value.get("sources") or ()
    rows = value.get("input_rows") or 0
    lags = ((str(n), _lag(source.get("metrics") or {}, rows)) for n, source in enumerate(sources))
    return DriverEvent(
        kind=str(kind),
        at=_time(value.get("at")),
        query_id=query_id,
        run_id=run_id,
        batch_id=int(value.get("batch_id", -1)),
        lags={source: lag for source, lag in lags if lag is not None},
        sources={str(n): str(source.get("description")) for n, source in enumerate(sources)},
        error=value.get("error"),
        error_class=value.get("error_class"),
    )


def _lag(metrics: Mapping[str, Any], rows: float) -> Lag | None:
    for name in (*_OFFSETS, *_AMOUNTS):
        try:
            return Lag(name, float(metrics[name]), rows if name in _OFFSETS else 0.0)
        except (KeyError, TypeError, ValueError):
            continue
    return None


def _time(value: Any) -> datetime | None:
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
