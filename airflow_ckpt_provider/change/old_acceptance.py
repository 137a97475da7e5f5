"""How risks were accepted in version 0.1: by flags, and by a plan's verdict. Both work for one more release."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_ckpt_provider.change.risks import sink_risk, source_risk
from airflow_ckpt_provider.verdict import Verdict

#: Old flag -> the words that it accepts. The same in Python and, with hyphens, on the command line.
OLD_FLAGS: Mapping[str, tuple[str, ...]] = {
    "accept_source_loss": ("source_loss", "source_failure", "source_skips"),
    "accept_foreign_loss": ("foreign_loss",),
    "accept_sink": ("sink_skips", "sink_duplicates"),
}
#: Verdicts that could be accepted.
OLD_VERDICTS = tuple(verdict.value for verdict in Verdict if verdict is not Verdict.SAFE)


def words_of(verdict: str) -> tuple[str, ...]:
    """Words for what a plan of this verdict does at the sink and at the sources.

    :param verdict: one of :data:`OLD_VERDICTS`.
    """
    found = (sink_risk(Verdict(verdict)), source_risk(Verdict(verdict)))
    return tuple(word for word in found if word)
