"""Numbers as ranges, and those that are missing: one file with a huge number takes neither the time nor the memory of all."""

from __future__ import annotations

from collections.abc import Iterable


def gaps(numbers: Iterable[int], first: int, last: int) -> list[range]:
    """Which numbers are missing, in their order.

    :param numbers: those that are there, in any order.
    :param first: the first that is wanted.
    :param last: the last that is wanted.
    """
    found = []
    for number in sorted({n for n in numbers if first <= n <= last} | {last + 1}):
        if first < number:
            found.append(range(first, number))
        first = number + 1
    return found


def runs(numbers: Iterable[int]) -> list[range]:
    """Numbers as ranges, in their order."""
    found: list[range] = []
    for number in sorted(set(numbers)):
        begin = found.pop().start if found and found[-1].stop == number else number
        found.append(range(begin, number + 1))
    return found
