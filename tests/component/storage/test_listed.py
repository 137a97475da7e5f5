"""What every store must do with files as a listing named them, over the local disk, memory and an S3 server."""

from __future__ import annotations

from tests.support.listed_conformance import TestCopy, TestDelete, TestFind, TestRaces, TestReplace

__all__ = ["TestCopy", "TestDelete", "TestFind", "TestRaces", "TestReplace"]
