"""How long the sources of a stream will still have what its next start reads, from the reports of the guards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.guards.rate import KIND as MAKES_ITS_OWN_ROWS
from airflow_ckpt_provider.guards.report import GuardReport, SourceReport
from airflow_ckpt_provider.verdict import Verdict

_GONE = (Verdict.WILL_LOSE, Verdict.WILL_FAIL)


@dataclass(frozen=True, slots=True)
class TimeToLoss:
    """The shortest over all sources.

    :param seconds: a lower bound, from when it was looked; 0 where something is gone already; ``None`` without limit, or
        where no source has one.
    :param known: whether it holds for every source. If not, the time is UNKNOWN, and ``seconds`` what those that tell leave.
    :param verdict: what the guards say of the next start; ``UNKNOWN`` where they were not asked.
    :param reasons: why, worst first.
    """

    seconds: float | None
    known: bool
    verdict: Verdict
    reasons: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The time as plain JSON."""
        return {
            "seconds": None if self.seconds is None else round(self.seconds, 3),
            "known": self.known,
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
        }


def not_known(reason: str) -> TimeToLoss:
    """The answer where nobody could be asked, and why."""
    return TimeToLoss(None, False, Verdict.UNKNOWN, (reason,))


def time_to_loss(report: GuardReport) -> TimeToLoss:
    """Gather what the guards found of the sources of one stream."""
    left = [_of_source(source) for source in report.sources]
    bounds = [seconds for seconds, _ in left if seconds is not None]
    reasons = list(report.reasons)
    reasons += [
        f"source {source.source} ({source.kind}): how long it will be there is not known"
        for source, (_, known) in zip(report.sources, left, strict=True)
        if not known and source.verdict is not Verdict.UNKNOWN
    ]
    known = bool(left) and all(known for _, known in left)
    return TimeToLoss(min(bounds, default=None), known, report.verdict, tuple(reasons))


def _of_source(source: SourceReport) -> tuple[float | None, bool]:
    """Seconds that a source leaves, and whether that is all there is to know of it."""
    if source.verdict in _GONE:
        return 0.0, True
    if source.verdict is Verdict.UNKNOWN:
        return source.seconds_left, False
    if source.kind == MAKES_ITS_OWN_ROWS:
        return None, True
    if any("limited_by" in part.facts for part in source.parts):  # Kafka: the bound is that of some partitions
        return source.seconds_left, all(
            part.facts.get("seconds_left") is not None or part.facts.get("limited_by") == "nothing"
            for part in source.parts
        )
    # Delta without a bound: the settings of the table were read and understood, and nothing is ever cleaned up.
    keeps_all = source.facts.get("keeps_all") is True
    return source.seconds_left, source.seconds_left is not None or keeps_all
