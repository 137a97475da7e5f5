"""Probes that need no process and no Airflow: the driver's progress lines, and Spark's REST interface."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from airflow_ckpt_provider.change.rest import StopProbe
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry
from airflow_ckpt_provider.checkpoint.poll import read_entry
from airflow_ckpt_provider.checkpoint.progress_events import TERMINATED, DriverEvent, read_events
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE, parse_query_id
from airflow_ckpt_provider.errors import StorageError, UnreadableLogError
from airflow_ckpt_provider.guards.spark_rest import SparkApplicationEnded
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.units import format_time

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProgressLinesEnded:
    """Reports that a query has ended if the driver's progress lines have an end of each of its runs.

    If one run has no end, the result is "not known": that run may still be running. A driver that is killed writes no end; give
    another proof then. If a batch in the checkpoint was triggered after the last end, a run without lines has triggered it, and
    the result is "not known" too.

    :param lines: the file that :class:`~airflow_ckpt_provider.spark.progress_lines.ProgressLines` writes.
    :param checkpoint: the checkpoint.
    :param query_id: the query; the file may hold lines of others. ``None``: the one in the checkpoint's ``metadata``.
    """

    lines: Location
    checkpoint: Location
    query_id: str | None = None

    def ended(self) -> str | None:
        """Return which run ended when, or ``None``."""
        try:
            query_id = self.query_id or parse_query_id(self.checkpoint.read(METADATA_FILE))
            events = [event for event in read_events(self.lines) if event.query_id == query_id]
        except (FileNotFoundError, StorageError, UnreadableLogError) as e:
            log.warning("%s does not show whether the query has ended: %s", self.lines, e)
            return None
        last = _last_end(events)
        if last is None or last.at is None or self._has_later_batch(last):
            return None
        first = next(iter((last.error or "").strip().splitlines()), "")
        error = f" by an error: {first[:200]}" if first else ""
        return f"{self.lines} says that run {last.run_id} of query {query_id} ended at {format_time(last.at)}{error}"

    def _has_later_batch(self, end: DriverEvent) -> bool:
        """Whether a batch was triggered after an end; both times are of a driver's clock."""
        names = (file.path.rpartition("/")[2] for file in self.checkpoint.list(OFFSETS).files)
        for number in sorted((n for n in map(batch_id_of, names) if n is not None), reverse=True):
            try:
                entry = read_entry(self.checkpoint, number)
            except UnreadableLogError:
                continue  # a damaged entry has no time; it is a case for a repair
            if isinstance(entry, OffsetEntry):
                return entry.time is not None and end.at is not None and entry.time > end.at
        return False


def _last_end(events: list[DriverEvent]) -> DriverEvent | None:
    """The newest end, if every run has one and no other event follows it."""
    ends = {event.run_id: event for event in events if event.kind == TERMINATED}
    if not ends or events[-1].kind != TERMINATED or any(event.run_id not in ends for event in events):
        return None
    return events[-1]


def probes_of(
    checkpoint: Location,
    *,
    progress_log: Location | None = None,
    spark_rest: str | None = None,
    query_id: str | None = None,
) -> tuple[StopProbe, ...]:
    """Make the probes that the arguments name.

    :param checkpoint: the checkpoint.
    :param progress_log: the driver's progress lines; default: no such probe.
    :param spark_rest: address of the application in Spark's REST interface, ``http://<host>:<port>/api/v1/applications/<id>``;
        default: no such probe.
    :param query_id: the id of the query; default: the one in the checkpoint's ``metadata``.
    :raises RefusedError: the address is not that of an application.
    """
    probes: list[StopProbe] = []
    if progress_log is not None:
        probes.append(ProgressLinesEnded(progress_log, checkpoint, query_id))
    if spark_rest:
        probes.append(SparkApplicationEnded.at(spark_rest))
    return tuple(probes)
