"""Progress of a copy in a task's log: a line now and then, never one for each file."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from airflow_ckpt_provider.units import format_size

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_ckpt_provider.backup.copy_progress import CopyProgress


class ProgressLog:
    """Called with each step of a copy; logs every tenth of the way, and every ten seconds where that takes longer.

    .. code-block:: python

        import structlog

        from airflow_ckpt_provider.backup.copy_progress import CopyProgress

        show = ProgressLog(structlog.get_logger(), "Copied")
        show(CopyProgress(files_done=1, files_total=10, bytes_done=4096, bytes_total=40960))

    :param log: the task's log.
    :param verb: what is done to files, in the past tense: ``"Copied"``.
    :param percent: a line each time this much more is done.
    :param most: seconds after which there is a line in any case.
    :param least: seconds within which there is no second line; a short copy needs none at all.
    """

    def __init__(self, log: Logger, verb: str, *, percent: int = 10, most: float = 10.0, least: float = 1.0) -> None:
        self._log = log
        self._verb = verb
        self._percent = percent
        self._most = most
        self._least = least
        self._lock = threading.Lock()  # copies run in several threads
        self._last_step = 0
        self._last_time = time.monotonic()

    def __call__(self, progress: CopyProgress) -> None:
        """Log where the copy stands, if it is time to."""
        done = _percent(progress)
        now = time.monotonic()
        with self._lock:
            step = done // self._percent
            waited = now - self._last_time
            if waited < self._least or (step <= self._last_step and waited < self._most):
                return
            self._last_step = max(step, self._last_step)
            self._last_time = now
        self._log.info(
            "%s %d of %d files, %s of %s (%d %%)",
            self._verb,
            progress.files_done,
            progress.files_total,
            format_size(progress.bytes_done),
            format_size(progress.bytes_total),
            done,
        )


def _percent(progress: CopyProgress) -> int:
    done, total = progress.bytes_done, progress.bytes_total
    if not total:
        done, total = progress.files_done, progress.files_total
    return 100 * done // total if total else 100
