"""Clocks that have not begun yet."""

from __future__ import annotations

from airflow_ckpt_provider.storage.clocks import Clocks


class InAnHour(Clocks):
    """Begins in an hour: whatever has ended has ended before it, also on a machine that pauses between two looks at a clock."""

    @property
    def elapsed(self) -> float:
        """Seconds since that moment, a negative number."""
        return super().elapsed - 3600
