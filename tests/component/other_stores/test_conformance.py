"""What every store must do, over the stores that emulators stand for."""

from __future__ import annotations

import pytest

from tests.support.fenced_conformance import TestEveryStore as TestFenced
from tests.support.listed_conformance import TestCopy, TestDelete, TestFind, TestRaces, TestReplace
from tests.support.store_conformance import (
    TestCopying,
    TestReading,
    TestThreads,
    TestWriting,
    test_declares_what_it_can,
)

__all__ = ["TestCopy", "TestCopying", "TestDelete", "TestFenced", "TestFind", "TestRaces", "TestReading", "TestReplace"]
__all__ += ["TestThreads", "TestWriting", "test_declares_what_it_can"]

pytestmark = [pytest.mark.stores, pytest.mark.timeout(300)]
