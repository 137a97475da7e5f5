"""Whether a stream meets its objectives: the one rule, for the report, its metrics, and the page."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from airflow_ckpt_provider.backup.manifest import CLOCKS_DIFFER
from airflow_ckpt_provider.streams.stream import Objectives


class Met(StrEnum):
    """Whether an objective is met."""

    YES = "met"
    NO = "not met"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a line of a report says of the recovery of a stream.

    :param reported: when the report was made; ``None``: no report has the stream.
    :param has_backup: whether there is a good backup; ``None``: it is not known.
    :param backup_created: when the position of the last good backup was read, or, if that is not known, when it was finished;
        ``None``: there is none, or it is not known.
    :param nothing_to_lose: whether that backup held all that was committed, or nothing was committed yet, when the report was
        made; ``None``: it is not known.
    :param drill_seconds: how long the last drill took; ``None``: there was none, or it is not known, as of one in the future.
    :param backup_held_until: until when that backup certainly has all that was committed, if when its position was read is not
        known; ``None``: ``backup_created`` counts.
    """

    reported: datetime | None
    has_backup: bool | None
    backup_created: datetime | None
    nothing_to_lose: bool | None
    drill_seconds: float | None
    backup_held_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """An objective and what was found.

    :param objective: seconds that were declared.
    :param seconds: seconds that were found; ``None``: it is not known, or there is nothing to measure.
    :param met: whether that is within the objective.
    """

    objective: float
    seconds: float | None
    met: Met

    def to_json(self) -> dict[str, Any]:
        """The judgement as plain JSON."""
        return {"objective": self.objective, "seconds": self.seconds, "met": self.met.value}


@dataclass(frozen=True, slots=True)
class Standing:
    """The objectives of a stream; ``None``: not declared."""

    rpo: Judged | None = field(default=None)
    rto: Judged | None = field(default=None)

    def to_json(self) -> dict[str, Any]:
        """Both as plain JSON."""
        return {
            "rpo": self.rpo.to_json() if self.rpo else None,
            "rto": self.rto.to_json() if self.rto else None,
        }


def standing(objectives: Objectives, found: Recovery, now: datetime) -> Standing:
    """Judge what is declared.

    :param objectives: the declaration.
    :param found: the line of the report.
    :param now: the time to judge at; of the report itself, when it was made.
    """
    rpo, rto = objectives.rpo, objectives.rto
    return Standing(
        rpo=judge_rpo(rpo.total_seconds(), found, now) if rpo else None,
        rto=judge_rto(rto.total_seconds(), found) if rto else None,
    )


def judge_rpo(objective: float, found: Recovery, now: datetime) -> Judged:
    """Whether what was committed can be lost for no longer than the objective.

    Found is the time since the position of the last good backup was read. If that backup held all that was committed, only what
    was committed since the report can be lost: then the age of the report counts.

    :param objective: in seconds.
    :param found: the line of the report.
    :param now: the time to judge at.
    """
    age, held = passed(found.backup_created, now), passed(found.backup_held_until, now)
    at_most = age if age is None or held is None else max(age, held)
    since_report = passed(found.reported, now) if found.nothing_to_lose else None
    seconds = min((each for each in (at_most, since_report) if each is not None), default=None)
    if seconds is not None and seconds <= objective:
        met = Met.YES
    elif seconds is None:
        met = Met.NO if found.has_backup is False else Met.UNKNOWN
    else:
        # A stream with nothing to do has nothing to lose, but a report that is old does not say whether it had.
        is_certain = found.nothing_to_lose is False and (age is None or age > objective)
        met = Met.NO if is_certain else Met.UNKNOWN
    return Judged(objective, seconds, met)


def judge_rto(objective: float, found: Recovery) -> Judged:
    """Whether the last drill was fast enough.

    :param objective: in seconds.
    :param found: the line of the report.
    """
    if found.drill_seconds is None:
        return Judged(objective, None, Met.UNKNOWN)
    return Judged(objective, found.drill_seconds, Met.YES if found.drill_seconds <= objective else Met.NO)


def passed(then: datetime | None, now: datetime) -> float | None:
    """Seconds since; ``None`` if it is not known, or a clock says that it will be."""
    if then is None or now - then < -CLOCKS_DIFFER:
        return None
    return max((now - then).total_seconds(), 0.0)
