"""What every store must do, over the stores that emulators stand for."""

from __future__ import annotations

import pytest

from tests.component.storage.test_conformance import (
    TestCopying,
    TestReading,
    TestThreads,
    TestWriting,
    test_declares_what_it_can,
)

__all__ = ["TestCopying", "TestReading", "TestThreads", "TestWriting", "test_declares_what_it_can"]

pytestmark = [pytest.mark.stores, pytest.mark.timeout(300)]
