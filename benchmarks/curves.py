"""How costs grow: with the files, with the backups in the repository, with the state partitions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.counted import Counted
from benchmarks.results import GROWTH, Timings, read
from benchmarks.steps import Step
from benchmarks.tools import OursInProcess


@dataclass(frozen=True)
class Curve:
    """What a step costs, as something grows.

    :param grows: what grows.
    :param seconds: how much of it, and seconds.
    :param requests: how much of it, and requests.
    """

    grows: str
    step: Step
    seconds: list[tuple[int, float]]
    requests: list[tuple[int, int]]


def curves(timings: Sequence[Timings], counted: Counted | None) -> Iterator[Curve]:
    """Costs as files, backups in the repository and state partitions grow."""
    plain = [timed for timed in timings if not timed.tree["snapshots"]]
    for step in Step:
        seconds = [(t.tree["files"], middle.seconds) for t in plain if (middle := t.of(OursInProcess.name, step))]
        asked = [
            (facts["files"], total)
            for tree, facts in (counted.trees.items() if counted else ())
            if not facts["snapshots"] and (total := counted.total(tree, OursInProcess.name, step)) is not None  # type: ignore[union-attr]
        ]
        if seconds or asked:
            yield Curve("files", step, seconds, asked)
    rows = (read(GROWTH) or {"rows": []})["rows"]
    for grows, words in (("history", "backups in the repository"), ("partitions", "state partitions")):
        mine = [row for row in rows if row["grows"] == grows]
        for step in dict.fromkeys(row["step"] for row in mine):
            found = [row for row in mine if row["step"] == step]
            yield Curve(
                words,
                Step(step),
                [(row["at"], row["seconds"]) for row in found],
                [(row["at"], row["requests"]) for row in found],
            )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Exponent of the power law that fits best: 0 does not grow, 1 grows as much as what it depends on."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    return statistics.linear_regression([x for x, _ in logs], [y for _, y in logs]).slope
