"""Ctrl-C and SIGTERM: they end the demo, but not between the start of a process and the note that it was started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruptions:
    """Raises ``KeyboardInterrupt`` for both signals, while it is entered; later, while it is held."""

    def __init__(self) -> None:
        self._holding = 0
        self._pending = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._handle)

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let nothing interrupt what must not stop in the middle."""
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1
        if self._pending and not self._holding:
            self._pending = False
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._holding:
            raise KeyboardInterrupt
        self._pending = True
