"""What every store must do, over the local disk, memory and an S3 server."""

from __future__ import annotations

from tests.support.store_conformance import (
    TestCopying,
    TestReading,
    TestThreads,
    TestWriting,
    test_declares_what_it_can,
)

__all__ = ["TestCopying", "TestReading", "TestThreads", "TestWriting", "test_declares_what_it_can"]
