"""How much time has passed, however long a process or its machine was suspended."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.units import format_time

#: Seconds by which wall clocks of hosts may differ.
CLOCKS_DIFFER = 60.0


class Clocks:
    """Seconds since a moment, by whichever clock of this host says most.

    ``CLOCK_MONOTONIC`` stops while a laptop sleeps, and both it and ``CLOCK_BOOTTIME`` may while a virtual machine is
    paused; the wall clock is then put right by the hypervisor or by NTP. A wall clock that jumps forward ends a lease too early,
    which costs one attempt; none of the three can make it last longer than the others say.

    :param passed: seconds that had passed already when this object was made.
    """

    _boot = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def __init__(self, *, passed: float = 0.0) -> None:
        self._since = self._now()
        self._passed = max(0.0, passed)

    @classmethod
    def of_process(cls) -> Clocks:
        """Since this process was started, where the system says when that was; else since now."""
        passed = 0.0
        with suppress(OSError, ValueError, IndexError):
            # Field 22 of proc(5): clock ticks after boot. The program's name, in brackets, may hold anything.
            ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
            passed = time.clock_gettime(cls._boot) - ticks / os.sysconf("SC_CLK_TCK")
        return cls(passed=passed)

    @classmethod
    def since_said(cls, at: datetime) -> Clocks:
        """Since somebody said that a query is stopped.

        :param at: when, by a wall clock of this or of another host.
        :raises RefusedError: it is more than a minute ahead of the wall clock of this host: a change that was made since then
            would not make void what was said.
        """
        passed = (datetime.now(UTC) - at).total_seconds()
        if passed < -CLOCKS_DIFFER:
            raise RefusedError(
                f"the query is said to have been stopped at {format_time(at)}, which is in the future",
                hint="see that the clocks of all hosts agree, or give the time when it was stopped; then try again",
            )
        return cls(passed=passed)

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), time.clock_gettime(self._boot), time.time()

    @property
    def elapsed(self) -> float:
        """Seconds since that moment."""
        (monotonic, boot, wall), (now_monotonic, now_boot, now_wall) = self._since, self._now()
        return self._passed + max(now_monotonic - monotonic, now_boot - boot, now_wall - wall)
