"""Numbers that are missing in a log, as ranges: one file with a huge number takes neither the time nor the memory of all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def gaps(numbers: Iterable[int], first: int, last: int) -> Iterator[range]:
    """Which numbers are missing, in their order.

    :param numbers: those that are there, in any order.
    :param first: the first that is wanted.
    :param last: the last that is wanted.
    """
    expected = first
    for number in sorted({n for n in numbers if first <= n <= last} | {last + 1}):
        if expected < number:
            yield range(expected, number)
        expected = number + 1
