"""What requests that were counted cost."""

from __future__ import annotations

from benchmarks.bounds import pages
from benchmarks.counted import Counted
from benchmarks.prices import BACKUPS_A_MONTH, S3
from benchmarks.steps import Step
from benchmarks.tools import Restic

#: Steps whose price is shown.
BACKUPS = (Step.FIRST, Step.NOTHING, Step.CHANGED)


def price(counted: Counted | None, tree: str, tool: str, step: Step) -> float | None:
    """Dollars of a tool's step; ``None``: it was not counted."""
    kinds = counted.kinds(tree, tool, step) if counted and tree in counted.trees else None
    return S3.dollars(kinds) if kinds is not None else None


def of_restic_with_sync(counted: Counted | None, tree: str, step: Step) -> float | None:
    """The same of restic, and of bringing its directory up to date: a listing, and a GET for each file that is new."""
    own = price(counted, tree, Restic.name, step)
    if counted is None or own is None:
        return None
    facts = counted.trees[tree]
    new = {Step.FIRST: facts["files"], Step.NOTHING: 0, Step.CHANGED: facts["changed"]}[step]
    return own + S3.dollars({"LIST": pages(facts["files"]), "GET": new})


def month(dollars: float) -> float:
    """A month of hourly backups of all streams.

    :param dollars: of one backup.
    """
    return dollars * BACKUPS_A_MONTH
