"""How far the copies are: what creating, verifying and restoring a backup have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far a long piece of work is."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int


OnProgress = Callable[[CopyProgress], None]


class Meter:
    """Counts what is done and informs whoever wants to know. May be used from several threads.

    :param on_progress: called after each file, or ``None``.
    """

    def __init__(self, on_progress: OnProgress | None, *, files: int, size: int) -> None:
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._progress = CopyProgress(0, files, 0, size)

    def add(self, size: int, files: int = 1) -> None:
        """Count one more file, or several, of ``size`` bytes."""
        with self._lock:
            p = self._progress
            self._progress = CopyProgress(p.files_done + files, p.files_total, p.bytes_done + size, p.bytes_total)
            if self._on_progress:
                self._on_progress(self._progress)
