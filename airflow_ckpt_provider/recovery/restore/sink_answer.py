"""What sinks say to a restore, as a plan shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.verdict import WORST_FIRST, Verdict


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
    def verdicts(self) -> list[list[str]]:
        """The worst verdict, and that of each sink. The reasons count rows and name versions, which move with other writers."""
        return [[self.verdict.value], *sorted([uri, kind, verdict.value] for uri, kind, verdict in self.sinks)]

    def to_json(self) -> dict[str, Any]:
        """The answer as plain JSON."""
        return {
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "sinks": [list(each) for each in self.sinks],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SinkAnswer:
        """Read what :meth:`to_json` wrote."""
        sinks = tuple((str(uri), str(kind), Verdict(verdict)) for uri, kind, verdict in value["sinks"])
        return cls(Verdict(value["verdict"]), tuple(map(str, value["reasons"])), sinks)

    @property
    def table(self) -> str:
        """The sinks as a table; empty for one."""
        if len(self.sinks) < 2:
            return ""
        rows = [(f"`{uri}`", kind, f"**{verdict.value}**") for uri, kind, verdict in self.sinks]
        return markdown.table(("sink", "kind", "verdict"), rows)
