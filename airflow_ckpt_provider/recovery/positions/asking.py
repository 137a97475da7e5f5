"""From what was asked, in words, to positions: the one way in for the operator and the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.positions.choice import Choice, choose_batch, choose_newest, choose_time
from airflow_ckpt_provider.recovery.positions.logs import ReadableLogs
from airflow_ckpt_provider.recovery.positions.mirror import Mirror
from airflow_ckpt_provider.recovery.positions.positions import StartingPositions, starting_positions
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.units import is_number, parse_duration, parse_time


@dataclass(frozen=True, slots=True)
class Question:
    """Which positions are wanted. At most one of the three is given; none means the newest committed batch.

    :param batch: a committed batch.
    :param to_datetime: the newest batch at or before a time, ISO 8601 with a zone.
    :param by_duration: the same for a time that long ago, ISO 8601 such as ``PT2H``.
    """

    batch: int | None = None
    to_datetime: str | None = None
    by_duration: str | None = None

    def choose(self, logs: ReadableLogs, *, now: datetime | None = None) -> Choice:
        """Find the batch.

        :param now: the present; by default the clock.
        :raises RefusedError: more than one is given, a time cannot be read or lies in the future, or no batch fits.
        """
        if sum(value is not None for value in (self.batch, self.to_datetime, self.by_duration)) > 1:
            raise RefusedError(
                "batch, to_datetime and by_duration exclude each other",
                hint="give one of them, or none for the newest batch",
            )
        if self.batch is not None:
            return choose_batch(logs, self.batch)
        present = now or datetime.now(UTC)
        if self.to_datetime is not None:
            time = _in_range(self.to_datetime, lambda: parse_time(self.to_datetime or ""))
            if time > present:
                raise RefusedError(f"{self.to_datetime} lies in the future", hint="give a time that has passed")
            return choose_time(logs, time)
        if self.by_duration is not None:
            return choose_time(
                logs, _in_range(self.by_duration, lambda: present - parse_duration(self.by_duration or ""))
            )
        return choose_newest(logs)


def ask(
    logs: ReadableLogs,
    question: Question,
    *,
    kafka_partitions: Mapping[str, int] | None = None,
    tables: Mapping[str, Location] | None = None,
    mirror: Mirror | None = None,
) -> StartingPositions:
    """Answer a question; see :func:`~.positions.starting_positions` for the rest."""
    return starting_positions(
        logs, question.choose(logs), kafka_partitions=kafka_partitions, tables=tables, mirror=mirror
    )


def partitions_of(words: Mapping[str, object]) -> dict[str, int]:
    """Read topic -> number of partitions.

    :raises RefusedError: one is no whole number from 1 up.
    """
    found = {}
    for topic, count in words.items():
        text = str(count).strip()
        if not is_number(text) or int(text) < 1:
            raise RefusedError(f"{count!r} is no number of partitions for {topic!r}", hint=f"such as {topic}=12")
        found[topic] = int(text)
    return found


def _in_range(text: str, read: Callable[[], datetime]) -> datetime:
    """No stream ran before 1970; Python's own limits are not to be met either."""
    try:
        time = read()
    except OverflowError:
        time = datetime.min.replace(tzinfo=UTC)
    if time < datetime.fromtimestamp(0, UTC):
        raise RefusedError(f"{text} reaches back before the year 1970", hint="give a time at which the stream ran")
    return time
