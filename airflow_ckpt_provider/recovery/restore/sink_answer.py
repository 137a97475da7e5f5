"""What sinks say to a restore, as a plan shows it."""

from __future__ import annotations

from typing import NamedTuple

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.guards.report import WORST_FIRST
from airflow_ckpt_provider.verdict import Verdict


class SinkAnswer(NamedTuple):
    """What the sinks say to a start after the batch.

    :param verdict: the worst of them.
    :param reasons: why, in words.
    :param sinks: URI, kind and verdict of each; empty where they were not asked one by one.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    sinks: tuple[tuple[str, str, Verdict], ...] = ()

    @property
    def by_verdict(self) -> dict[Verdict, list[str]]:
        """Each verdict of a sink with its reasons, the worst first; of one sink all reasons are its own."""
        if len(self.sinks) < 2:
            return {self.verdict: list(self.reasons)}
        found: dict[Verdict, list[str]] = {}
        for uri, _, verdict in sorted(self.sinks, key=lambda sink: WORST_FIRST.index(sink[2])):
            found.setdefault(verdict, []).extend(r for r in self.reasons if r.startswith(f"sink {uri}: "))
        return found

    @property
    def table(self) -> str:
        """The sinks as a table; empty for one."""
        if len(self.sinks) < 2:
            return ""
        rows = [(f"`{uri}`", kind, f"**{verdict.value}**") for uri, kind, verdict in self.sinks]
        return markdown.table(("sink", "kind", "verdict"), rows)
