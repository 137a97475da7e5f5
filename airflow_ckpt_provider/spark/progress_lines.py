"""How a stream goes, as JSON lines in a file that a health gate reads without reaching the driver."""

from __future__ import annotations

import atexit
import json
import logging
import threading
from collections import deque
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.streaming.listener import (  # noqa: TID253 - a listener is a subclass of Spark's
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.opening import open_location

log = logging.getLogger(__name__)

#: Seconds that a process which ends waits to learn how its queries have ended: Spark informs its listeners a little later.
_END_WITHIN = 5.0


class ProgressLines(StreamingQueryListener):
    """Writes what the queries of a session do: ``spark.streams.addListener(ProgressLines(uri))``.

    Events: ``started``, ``progress`` (a batch, or an idle moment), ``terminated`` with its error. The file holds the newest
    lines, those of an earlier process too, and is replaced as a whole: stores of objects know no appending. What cannot be
    written is logged and tried again with the next event; the stream continues.

    :param uri: the file: a path or a URI that fsspec knows.
    :param keep: lines that are kept.
    """

    def __init__(self, uri: str, *, keep: int = 200) -> None:
        directory, _, self._name = uri.rpartition("/")
        self._directory = open_location(directory or ".")
        self._lines: deque[str] = deque(maxlen=keep)
        self._lock = threading.Lock()
        self._has_earlier = False
        self._running: set[str] = set()
        self._ended = threading.Condition()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Note the start."""
        with self._ended:
            self._running.add(str(event.runId))
        # A driver that ends as soon as its query has failed would else take the error with it.
        atexit.unregister(self._see_ends)
        atexit.register(self._see_ends)
        self._write("started", event.id, event.runId, name=event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Note a batch."""
        progress = event.progress
        duration = progress.durationMs.get("triggerExecution")
        self._write(
            "progress",
            progress.id,
            progress.runId,
            name=progress.name,
            batch_id=progress.batchId,
            input_rows=progress.numInputRows,
            input_rows_per_second=progress.inputRowsPerSecond,
            processed_rows_per_second=progress.processedRowsPerSecond,
            seconds=None if duration is None else duration / 1000,
            watermark=progress.eventTime.get("watermark"),
            state_rows=sum(operator.numRowsTotal for operator in progress.stateOperators),
            sources=[
                {
                    "description": source.description,
                    "end_offset": source.endOffset,
                    "metrics": dict(source.metrics or {}),
                }
                for source in progress.sources
            ],
        )

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing to note: the last progress stands."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Note the end, and the error where it was one."""
        self._write("terminated", event.id, event.runId, error=event.exception, error_class=event.errorClassOnException)
        with self._ended:
            self._running.discard(str(event.runId))
            self._ended.notify_all()

    def _see_ends(self) -> None:
        with self._ended:
            self._ended.wait_for(lambda: not self._running, timeout=_END_WITHIN)

    def _write(self, event: str, query_id: Any, run_id: Any, **more: Any) -> None:
        head = {"event": event, "at": datetime.now(UTC).isoformat(), "query_id": str(query_id), "run_id": str(run_id)}
        line = json.dumps({**head, **more}, default=str, separators=(",", ":"))
        with self._lock:
            self._lines.append(line)
            try:
                self._take_earlier()
                self._directory.replace(self._name, "".join(f"{kept}\n" for kept in self._lines).encode())
            except StorageError as e:
                log.warning("progress could not be written: %s", e.message)

    def _take_earlier(self) -> None:
        """Begin with the lines that are there: a query that fails again and again would else hide it behind its newest start."""
        if self._has_earlier:
            return
        self._has_earlier = True
        try:
            earlier = self._directory.read(self._name).decode(errors="replace").splitlines()
        except FileNotFoundError:
            return
        except StorageError as e:  # it may be written and not be read
            log.warning("earlier progress could not be read, continuing without: %s", e.message)
            return
        self._lines = deque([*earlier, *self._lines], maxlen=self._lines.maxlen)
