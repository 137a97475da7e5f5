"""What belongs into a table: the commits that made it, each with what it does to the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Rows = Counter[tuple[str, int]]
Change = Callable[[Rows], Rows]


@dataclass(frozen=True)
class Event:
    """A commit that changed rows, or that the stream made.

    :param change: what it does to the rows.
    :param batch: the batch of the stream that it holds; ``None``: it is somebody else's.
    """

    change: Change
    batch: int | None = None


Line = tuple[Event, ...]


def rows_after(line: Iterable[Event]) -> Rows:
    """The rows that some commits leave."""
    rows: Rows = Counter()
    for event in line:
        rows = event.change(rows)
    return rows


def added(rows: Rows) -> Change:
    return lambda before: before + rows


def merged(rows: Rows) -> Change:
    """``MERGE`` by id: rows with a new value, and new rows."""
    values = dict(iter(rows))

    def change(before: Rows) -> Rows:
        after: Rows = Counter()
        for (id_, value), count in before.items():
            after[id_, values.get(id_, value)] += count
        there = {id_ for id_, _ in before}
        return after + Counter((id_, value) for id_, value in values.items() if id_ not in there)

    return change


def mapped(of: Callable[[str, int], tuple[str, int] | None]) -> Change:
    """An ``UPDATE`` or a ``DELETE``."""

    def change(before: Rows) -> Rows:
        after: Rows = Counter()
        for row, count in before.items():
            if (now := of(*row)) is not None:
                after[now] += count
        return after

    return change
