"""The words by which a person accepts what a change may do."""

from __future__ import annotations

from airflow_ckpt_provider.verdict import Verdict


def sink_risk(verdict: Verdict) -> str | None:
    """The word by which what a sink does is accepted; ``None`` where there is nothing to accept."""
    return None if verdict is Verdict.SAFE else f"sink_{_WORDS[verdict]}"


def source_risk(verdict: Verdict) -> str | None:
    """The word by which what happens at the sources is accepted; ``None`` where there is nothing to accept."""
    return None if verdict is Verdict.SAFE else f"source_{_WORDS[verdict]}"


_WORDS = {
    Verdict.WILL_SKIP: "skips",
    Verdict.WILL_DUPLICATE: "duplicates",
    Verdict.WILL_LOSE: "loss",
    Verdict.WILL_FAIL: "failure",
    Verdict.UNKNOWN: "unknown",
}
#: All words of risks.
RISKS = (
    *(f"sink_{word}" for word in _WORDS.values()),
    *(f"source_{word}" for word in _WORDS.values()),
    "foreign_loss",
    "other_query",
)
