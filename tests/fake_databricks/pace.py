"""How updates and statements move on: with each poll, with the clock, or when the test says so."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Pace:
    """How many steps something has to go at a moment.

    :param every: seconds a step by the clock; None where the clock counts for nothing.
    :param looks: whether each poll at it is a step.
    """

    every: float | None = None
    looks: bool = True
    _last: float = field(default_factory=time.monotonic)

    @classmethod
    def by_look(cls) -> Pace:
        """A step for each request that looks."""
        return cls()

    @classmethod
    def by_clock(cls, seconds: float) -> Pace:
        """A step every so many seconds, whether anybody looks or not."""
        return cls(every=seconds, looks=False)

    @classmethod
    def by_hand(cls) -> Pace:
        """Only when the test calls ``advance``."""
        return cls(looks=False)

    def steps(self, look: bool) -> int:
        """Steps that are due."""
        if self.every is None:
            return int(look and self.looks)
        due = int((time.monotonic() - self._last) / self.every)
        self._last += due * self.every
        return due

    def begin(self) -> None:
        """Something new begins: its first step takes its full time."""
        self._last = time.monotonic()
