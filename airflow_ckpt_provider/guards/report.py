"""What guards find, in one shape for every kind of source: a verdict with its reasons, worst first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.units import format_duration, is_number
from airflow_ckpt_provider.verdict import WORST_FIRST, Verdict, worst

#: Parts of a source (partitions, versions, files) that Markdown lists; JSON has them all.
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Judgement:
    """One thing that was found.

    :param verdict: what it does to the next start; ``SAFE`` for what is only worth knowing.
    :param reason: why, in a sentence that names the part, the numbers and, where there is one, the way out.
    """

    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class PartReport:
    """One part of a source: a partition, a version of a table, a file.

    :param name: its name, as its system has it, such as ``orders-3``.
    :param verdict: what happens to it.
    :param facts: what was seen, as plain JSON: the numbers behind the verdict.
    """

    name: str
    verdict: Verdict
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The part as plain JSON."""
        return {"name": self.name, "verdict": self.verdict.value, **self.facts}


@dataclass(frozen=True, slots=True)
class SourceReport:
    """One source of the query.

    :param source: its position in the plan (``"0"``, …) or its name, as in the offset log.
    :param kind: ``kafka``, ``delta``, ``file``, …
    :param judgements: what was found, in any order; none means ``SAFE``.
    :param parts: its partitions, versions or files.
    :param lost: records (for Kafka: offsets) that are gone already and would not be read; ``None`` where it cannot be
        counted, 0 where nothing is lost.
    :param seconds_left: how long the resume point will be readable from now on, as a lower bound; ``None`` without limit
        or if it is not known, which ``facts`` then says.
    :param facts: what else was seen, as plain JSON.
    """

    source: str
    kind: str
    judgements: tuple[Judgement, ...] = ()
    parts: tuple[PartReport, ...] = ()
    lost: int | None = 0
    seconds_left: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """The worst of what was found."""
        return worst([*(j.verdict for j in self.judgements), *(part.verdict for part in self.parts)])

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, worst first."""
        return tuple(j.reason for j in sorted(self.judgements, key=lambda j: WORST_FIRST.index(j.verdict)))

    def to_json(self) -> dict[str, Any]:
        """The source as plain JSON, keyed as in the offset log: ``index`` or ``name``."""
        key: dict[str, Any] = {"index": int(self.source)} if is_number(self.source) else {"name": self.source}
        return {
            **key,
            "kind": self.kind,
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "lost": self.lost,
            "seconds_left": None if self.seconds_left is None else round(self.seconds_left, 3),
            **self.facts,
            "parts": [part.to_json() for part in self.parts],
        }

    def to_markdown(self) -> str:
        """The source for people: verdict, reasons, and the parts that are not fine."""
        left = "" if self.seconds_left is None else f"; readable for at least {format_duration(self.seconds_left)} more"
        lost = f"lost already: {'not known' if self.lost is None else f'{self.lost:,}'}{left}"
        head = markdown.line(f"### Source {self.source} ({self.kind}): {self.verdict.value}")
        lines = [head, "", markdown.bullets([*self.reasons, lost])]
        bad = [part for part in self.parts if part.verdict is not Verdict.SAFE]
        if bad:
            keys = list(dict.fromkeys(key for part in bad for key in part.facts))
            found = [(part, [part.facts.get(key) for key in keys]) for part in bad[:_SHOWN]]
            rows = [(p.name, p.verdict.value, *("" if v is None else v for v in values)) for p, values in found]
            lines += ["", markdown.table(("part", "verdict", *keys), rows)]
            if len(bad) > _SHOWN:
                lines += ["", f"{len(bad) - _SHOWN} more parts are not {Verdict.SAFE.value}."]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class GuardReport:
    """All sources of a query.

    :param subject: what was judged: URI of a checkpoint, a backup, or words.
    :param sources: its sources.
    :param judgements: what was found of the checkpoint itself rather than of a source.
    :param batch_id: the batch that will run first; ``None`` where offsets were given by hand.
    :param max_downtime: seconds that the stream was said to be down from now on; ``None``: it was judged for a start now.
    """

    subject: str
    sources: tuple[SourceReport, ...]
    judgements: tuple[Judgement, ...] = ()
    batch_id: int | None = None
    max_downtime: float | None = None

    @property
    def down_in_words(self) -> str:
        """How long the stream was said to be down, so that ``24`` is not read as hours; empty where nobody said it."""
        return "" if self.max_downtime is None else format_duration(self.max_downtime)

    @property
    def verdict(self) -> Verdict:
        """The worst of its sources and of the checkpoint itself."""
        return worst([*(j.verdict for j in self.judgements), *(source.verdict for source in self.sources)])

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, worst first, each naming its source where there are several."""
        found = [*self.judgements]
        for source in self.sources:
            prefix = f"source {source.source} ({source.kind}): " if len(self.sources) > 1 else ""
            found += [Judgement(j.verdict, prefix + j.reason) for j in source.judgements]
        return tuple(j.reason for j in sorted(found, key=lambda j: WORST_FIRST.index(j.verdict)))

    @property
    def lost(self) -> int | None:
        """Records lost already, over all sources; ``None`` where one of them cannot be counted."""
        counts = [source.lost for source in self.sources]
        return None if any(count is None for count in counts) else sum(count or 0 for count in counts)

    @property
    def seconds_left(self) -> float | None:
        """The shortest time that any source leaves; ``None`` where none has a known limit."""
        return min((s.seconds_left for s in self.sources if s.seconds_left is not None), default=None)

    def to_json(self) -> dict[str, Any]:
        """The documented keys of ``airflow-ckpt guard --json``."""
        left = self.seconds_left
        return {
            "subject": self.subject,
            "batch_id": self.batch_id,
            "max_downtime": self.max_downtime,
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "lost": self.lost,
            "seconds_left": None if left is None else round(left, 3),
            "sources": [source.to_json() for source in self.sources],
        }

    def to_markdown(self) -> str:
        """The report for an approval form or a log."""
        head = [markdown.line(f"## {self.verdict.value}: {self.subject}"), ""]
        if self.batch_id is not None:
            head.append(f"The next batch is {self.batch_id}.")
        if down := self.down_in_words:
            head.append(f"The stream is down for {down} from now on.")
        if self.judgements:
            head.append(markdown.bullets(j.reason for j in self.judgements))
        return "\n".join(head + [part for source in self.sources for part in ("", source.to_markdown())]) + "\n"
