"""The cost model of huge checkpoints: what the how-to shows is what the script prints, and the formula does what it says."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.huge import Assumed, committed, estimate, tables

HOWTO = Path(__file__).parents[2] / "docs" / "howto" / "huge-checkpoints.md"


def test_the_howto_shows_what_the_script_prints() -> None:
    shown = HOWTO.read_text().split("<!-- tables -->\n")[1].split("<!-- end -->")[0]
    assert shown == "\n".join(tables(committed(), Assumed(), 10)) + "\n", (
        "write the output of `python -m benchmarks.huge` between the markers"
    )


@pytest.mark.parametrize("within", [True, False])
def test_more_executors_are_not_slower_and_ask_the_same(within: bool) -> None:
    found = [
        estimate(committed(), Assumed(), files=10**6, size=2**20, executors=executors, within=within)
        for executors in (1, 4, 16, 64)
    ]
    assert all(more.copying <= fewer.copying for fewer, more in pairwise(found))
    assert len({tuple(each.requests.items()) for each in found}) == 1
    assert len({each.driver for each in found}) == 1


def test_requests_of_a_million_files() -> None:
    found = estimate(committed(), Assumed(), files=10**6, size=1000, executors=8)
    assert found.requests == {"LIST": 3000, "COPY": 10**6, "GET": 20 + 1000, "PUT": 6}
    assert found.dollars == pytest.approx(5.0 + 0.015 + 0.0004, abs=0.01)
