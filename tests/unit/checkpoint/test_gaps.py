"""Numbers that are missing, as ranges."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.checkpoint.gaps import gaps


@given(st.sets(st.integers(-3, 40)), st.integers(0, 30), st.integers(-1, 40))
def test_every_number_is_there_or_in_a_gap(numbers: set[int], first: int, last: int) -> None:
    found = gaps(numbers, first, last)
    assert [n for gap in found for n in gap] == [n for n in range(first, last + 1) if n not in numbers]
    assert all(one.stop < other.start for one, other in pairwise(found))


def test_huge_numbers() -> None:
    assert gaps([10**18], 0, 10**18) == [range(10**18)]
