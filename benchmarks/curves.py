"""How costs grow: with the files, with the backups and the streams in the repository, with the state partitions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.counted import Counted
from benchmarks.prices import S3
from benchmarks.results import GROWTH, Timings, read
from benchmarks.steps import Step
from benchmarks.tools import PacksInProcess

#: What grows, in the results and in words.
GROWS = {
    "files": "files",
    "backups": "backups in the repository",
    "streams": "streams in the repository",
    "partitions": "state partitions",
}
#: What is measured of it.
COSTS = ("requests", "bytes", "seconds", "memory")
#: Of which no old one is asked for: a step should not cost more with more of them.
OF_OLD = ("backups", "streams")
#: Streams of the model.
STREAMS = (1, 30, 300, 3_000)
#: State files of the checkpoint whose history grows, of that beside which other streams are, and of that with more partitions.
HISTORY_FILES = STREAM_FILES = 200
PARTITION_FILES = 2_000
Points = list[tuple[int, float]]


@dataclass(frozen=True)
class Curve:
    """What a step costs, as something grows: how much of it, and the cost.

    :param grows: what grows, a key of :data:`GROWS`.
    :param bytes: of bodies, both ways.
    :param memory: the most that its process had.
    """

    grows: str
    step: Step
    requests: Points
    bytes: Points
    seconds: Points
    memory: Points


def curves() -> Iterator[Curve]:
    """Those that were measured."""
    rows = (read(GROWTH) or {"rows": []})["rows"]
    for grows in GROWS:
        mine = [row for row in rows if row["grows"] == grows]
        for step in Step:
            found = [row for row in mine if row["step"] == step]
            if found:
                yield Curve(
                    grows,
                    step,
                    [(row["at"], row["requests"]) for row in found],
                    [(row["at"], row["received"] + row["sent"]) for row in found],
                    [(row["at"], row["seconds"]) for row in found],
                    [(row["at"], row["peak"]) for row in found],
                )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Exponent of the power law that fits best: 0 does not grow, 1 grows as much as what it depends on."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    return statistics.linear_regression([x for x, _ in logs], [y for _, y in logs]).slope


@dataclass(frozen=True)
class Fleet:
    """An hour of backups of so many streams, of which 1 % has changed each.

    :param seconds: of one worker that takes them one after the other.
    :param bytes: of bodies, both ways.
    :param memory: the most that one worker needs.
    :param dollars: of the requests, in a month.
    """

    streams: int
    requests: int
    bytes: int
    seconds: float
    memory: int | None
    dollars: float


def fleets(timings: Sequence[Timings], counted: Counted | None, tree: str) -> Iterator[Fleet]:
    """A model of more streams than a machine holds: the costs of one backup were measured, and are multiplied.

    That a backup does not cost more beside other streams is what the curve over streams shows.
    """
    name, step = PacksInProcess.name, Step.CHANGED
    row = counted.row(tree, name, step) if counted and tree in counted.trees else None
    middle = next((timed.of(name, step) for timed in timings if timed.name == tree), None)
    if counted is None or row is None or middle is None:
        return
    kinds, files = counted.kinds(tree, name, step) or {}, counted.trees[tree]["files"]
    rows = (read(GROWTH) or {"rows": []})["rows"]
    peaks = [r["peak"] for r in rows if (r["grows"], r["at"], r["step"]) == ("files", files, step)]
    for streams in STREAMS:
        yield Fleet(
            streams,
            streams * sum(kinds.values()),
            streams * (row["received"] + row["sent"]),
            streams * middle.seconds,
            peaks[0] if peaks else None,
            streams * 24 * 30 * S3.dollars(kinds),
        )
