"""The words every change here is announced in: what would happen, and how sure we are."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Verdict(StrEnum):
    """What the next start of a query, or a change, does to its data."""

    SAFE = "SAFE"
    WILL_SKIP = "WILL_SKIP"
    WILL_DUPLICATE = "WILL_DUPLICATE"
    WILL_LOSE = "WILL_LOSE"
    WILL_FAIL = "WILL_FAIL"
    UNKNOWN = "UNKNOWN"


#: Worst first: what harms silently comes before what fails with an error, and that before what cannot be known.
WORST_FIRST = (
    Verdict.WILL_LOSE,
    Verdict.WILL_SKIP,
    Verdict.WILL_DUPLICATE,
    Verdict.WILL_FAIL,
    Verdict.UNKNOWN,
    Verdict.SAFE,
)


def worst(verdicts: Iterable[Verdict], *, of_none: Verdict = Verdict.SAFE) -> Verdict:
    """Return the worst of some verdicts.

    :param verdicts: the verdicts.
    :param of_none: what it is if there are none.
    """
    found = set(verdicts)
    return next((verdict for verdict in WORST_FIRST if verdict in found), of_none)


class Usefulness(StrEnum):
    """What a backup is still good for, as far as its sources go."""

    #: The sources still have all that it would read next.
    REPLAYABLE = "replayable"
    #: Its state can be restored; some of what it would read next is deleted.
    STATE_ONLY = "state only"
    #: Its sources are gone, or others have their names: its offsets mean nothing any more.
    DEAD = "dead"
    #: Nobody was asked, or nobody could tell.
    UNKNOWN = "unknown"
