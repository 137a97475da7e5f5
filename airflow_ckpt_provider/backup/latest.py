"""The word for the newest backup of a stream, in the place of its id."""

from __future__ import annotations

LATEST = "latest"
