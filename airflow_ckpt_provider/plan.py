"""The words every change here is announced in: what would happen, and how sure we are."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What the next start of a query, or a change, does to its data."""

    SAFE = "SAFE"
    WILL_SKIP = "WILL_SKIP"
    WILL_DUPLICATE = "WILL_DUPLICATE"
    WILL_LOSE = "WILL_LOSE"
    WILL_FAIL = "WILL_FAIL"
    UNKNOWN = "UNKNOWN"
