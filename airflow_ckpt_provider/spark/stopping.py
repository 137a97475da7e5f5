"""Stop a stream at a batch boundary by a file: whoever is to stop it need not reach its driver.

``StreamingQuery.stop()`` interrupts the batch that is under way: it is run again at the next start, and until then the
checkpoint has a gap, which no upgrade may begin with. Here the batch is carried to its end.

.. seealso:: :doc:`/howto/stop-a-stream`
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.redaction import redacted
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

_BETWEEN_LOOKS = 0.05


@dataclass(frozen=True, slots=True)
class StopRequest:
    """What a stop marker says.

    :param reason: why.
    :param made_by: the run or user.
    :param at: when, ISO 8601; empty where the marker is not of our making: any file at the place is one.
    """

    reason: str = ""
    made_by: str = ""
    at: str = ""


def request_stop(stop_uri: str, *, reason: str = "", made_by: str = "") -> StopRequest:
    """Ask the stream that watches a place to stop; asking twice is fine.

    :param stop_uri: the marker: a path or a URI, one for each stream.
    :raises StorageError: it could not be written.
    """
    request = StopRequest(reason, made_by, datetime.now(UTC).isoformat())
    directory, name = _marker(stop_uri)
    content = {"reason": request.reason, "made_by": request.made_by, "at": request.at}
    directory.replace(name, json.dumps(content).encode())
    return request


def clear_stop(stop_uri: str) -> None:
    """Remove a marker before the stream is started again, if there is one.

    :raises StorageError: it could not be deleted.
    """
    directory, name = _marker(stop_uri)
    directory.delete(name)


def stop_requested(stop_uri: str) -> StopRequest | None:
    """The marker, or ``None`` if there is none.

    :raises StorageError: it could not be read.
    """
    directory, name = _marker(stop_uri)
    try:
        data = directory.read(name)
    except FileNotFoundError:
        return None
    try:
        content = load_json(data)
        return StopRequest(*(str(content.get(key, "")) for key in ("reason", "made_by", "at")))
    except (ValueError, AttributeError):
        return StopRequest(data.decode(errors="replace").strip()[:200])


def run_until_stopped(query: StreamingQuery, stop_uri: str, *, poll_interval: float = 1.0) -> StopRequest | None:
    """Wait until a query ends, or end it after its current batch when the marker appears.

    A marker that is there already ends it after its first batch. One that cannot be read for a while, because its store does not
    answer, is looked for again: the stream does not die of that.

    :param query: the running query.
    :param stop_uri: the marker, see :func:`request_stop`.
    :param poll_interval: seconds between two polls.
    :return: the marker by which it was stopped; ``None``: it ended by itself.
    :raises StreamingQueryException: the query failed.
    """
    while not query.awaitTermination(poll_interval):  # type: ignore[arg-type]  # fractions of a second are taken
        try:
            request = stop_requested(stop_uri)
        except StorageError as e:
            log.warning("%s could not be read, trying again: %s", redacted(stop_uri), e.message)
            continue
        if request is not None:
            log.info(
                "%s: stopping after the current batch (%s)", redacted(stop_uri), request.reason or "no reason given"
            )
            stop_after_batch(query)
            query.awaitTermination()
            return request
    return None


def stop_after_batch(query: StreamingQuery) -> None:
    """End a query without interrupting its batch; returns when it has ended.

    If the query is stopped (``StreamExecution.state``: no public interface, seen on Spark 4.0.0) a query begins no other batch.
    Where it cannot be determined, as over Spark Connect, the next moment between two batches is taken; a batch that
    begins within that moment is interrupted, as by ``query.stop()`` alone.
    """
    with suppress(Exception):  # py4j's errors, or no JVM at all
        _tell(query)
    while query.status["isTriggerActive"]:
        time.sleep(_BETWEEN_LOOKS)
    # It sleeps until its next trigger, however far that is, or is gone: nothing is interrupted.
    query.stop()


def _tell(query: StreamingQuery) -> None:
    execution: Any = query._jsq
    if "Wrapper" in str(execution.getClass().getSimpleName()):
        execution = execution.streamingQuery()
    state = execution.state()
    active = state.get().getClass()
    if str(active.getSimpleName()) != "ACTIVE$":
        return
    name = str(active.getName()).replace("ACTIVE$", "TERMINATED$")
    terminated = active.getClassLoader().loadClass(name).getField("MODULE$").get(None)
    state.set(terminated)


def _marker(stop_uri: str) -> tuple[Location, str]:
    directory, _, name = stop_uri.rpartition("/")
    return open_location(directory or "."), name
