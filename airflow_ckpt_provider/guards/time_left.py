"""How long sources will still have what is read next, and the retention for that."""

from __future__ import annotations

import math

_HOUR_MS, _MINUTE_MS = 3_600_000, 60_000


def hours_needed(milliseconds: float) -> int:
    """The retention to set, in whole hours, rounded up.

    A minute is added, for data grows older until it is set and judged again.

    :param milliseconds: age of the oldest that is needed, and for how long from now on it is needed.
    """
    return math.ceil((milliseconds + _MINUTE_MS) / _HOUR_MS)
