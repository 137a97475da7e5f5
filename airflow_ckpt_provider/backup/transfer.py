"""Many files at once: what creating, verifying and restoring a backup have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Requests under way at once. Small objects dominate, so it is latency that has to be hidden.
WORKERS = 64


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far a long piece of work is."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int


OnProgress = Callable[[CopyProgress], None]


class Meter:
    """Counts what is done and tells whoever wants to know. May be used from several threads.

    :param on_progress: called after each file, or ``None``.
    """

    def __init__(self, on_progress: OnProgress | None, *, files: int, size: int) -> None:
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._progress = CopyProgress(0, files, 0, size)

    def add(self, size: int) -> None:
        """Count one more file of ``size`` bytes."""
        with self._lock:
            p = self._progress
            self._progress = CopyProgress(p.files_done + 1, p.files_total, p.bytes_done + size, p.bytes_total)
            if self._on_progress:
                self._on_progress(self._progress)


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item], *, workers: int = WORKERS) -> list[Result]:
    """Apply ``work`` to all items, several at once; results in the order of the items.

    The first error is raised after what was under way has ended; nothing new is begun after it.
    """
    with ThreadPoolExecutor(max_workers=workers) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            done, pending = wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:  # Ctrl-C: what is queued must not run first
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        for future in pending:
            future.cancel()
    for future in done:
        if error := future.exception():
            raise error
    return [future.result() for future in futures]
