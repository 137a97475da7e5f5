"""Waiting for a condition, with an end."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object], what: str = "what the test waits for", *, within: float = 120.0
) -> None:
    """Wait until a condition holds.

    :param condition: asked again and again.
    :param what: is to happen; part of the message of the failure.
    :param within: seconds; after them the test fails.
    """
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        time.sleep(0.02)
