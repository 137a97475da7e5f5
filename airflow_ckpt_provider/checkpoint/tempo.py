"""How long batches take, from the logs alone.

A batch begins when it is planned (``batchTimestampMs`` in ``offsets/N``, by the driver's clock) and ends when ``commits/N``
is written (by the store's clock). The two clocks are compared only where they fit each other: a batch that ends after the
next one begins did not, as after a copy or a restore, where every file is new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from statistics import median

from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, parse_offsets
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import CkptError

#: How many of the newest batches are used, and how many it takes to say anything.
_LOOKED_AT, _ENOUGH = 20, 5
#: Stores that keep whole seconds may round up.
_ROUNDING = 1.0


@dataclass(frozen=True, slots=True)
class Tempo:
    """How fast the newest batches were.

    :param seconds: duration of each, oldest first.
    :param intervals: from the beginning of each to that of the next.
    """

    seconds: tuple[float, ...]
    intervals: tuple[float, ...]

    @property
    def batches(self) -> int:
        """Number of batches."""
        return len(self.seconds)

    @property
    def median_seconds(self) -> float:
        """Half of the batches took longer."""
        return median(self.seconds)

    @property
    def median_interval(self) -> float:
        """Half of the batches began later after the one before."""
        return median(self.intervals)

    def slower_than(self, seconds: float) -> int:
        """Number of batches that took longer."""
        return sum(taken > seconds for taken in self.seconds)


def tempo_of(tree: Tree, progress: Progress) -> Tempo | None:
    """Measure the newest batches, at most 20 and the one after them; ``None`` where the files do not show."""
    committed = set(progress.committed)
    batches = [batch for batch in progress.logged if batch in committed][-_LOOKED_AT:]
    begun: dict[int, float] = {}
    for batch in {*batches, *(b + 1 for b in batches if b + 1 in progress.logged)}:
        file = tree.get(f"{OFFSETS}/{batch}")
        try:
            time = parse_offsets(tree.read(file), batch_id=batch).time if file else None
        except (CkptError, FileNotFoundError):
            return None
        if time:
            begun[batch] = time.timestamp()
    taken = batch_seconds(tree, begun)
    followed = [batch for batch in taken if batch + 1 in begun]
    if len(followed) < _ENOUGH:
        return None
    return Tempo(
        tuple(taken[batch] for batch in followed), tuple(begun[batch + 1] - begun[batch] for batch in followed)
    )


def batch_seconds(tree: Tree, begun: Mapping[int, float]) -> dict[int, float]:
    """How long batches took, by batch, ascending; none where the clocks do not fit each other, or nothing shows that they do.

    :param tree: the checkpoint's files.
    :param begun: batch -> when it was planned, seconds since the epoch.
    """
    found: dict[int, float] = {}
    for batch in sorted(begun):
        commit = tree.get(f"{COMMITS}/{batch}")
        if commit is None or commit.modified is None:
            continue
        taken = commit.modified.timestamp() - begun[batch]
        interval = begun.get(batch + 1, inf) - begun[batch]
        if not -_ROUNDING <= taken <= interval + _ROUNDING:
            return {}
        found[batch] = max(taken, 0.0)
    return found if any(batch + 1 in begun for batch in found) else {}
