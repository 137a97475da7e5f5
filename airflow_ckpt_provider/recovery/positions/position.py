"""The starting position of one source, in a shape that is the same for all kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_ckpt_provider.units import is_number
from airflow_ckpt_provider.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another way to say the same, or nearly.

    :param name: ``by_timestamp``, ``modified_after``, ….
    :param use: when to take it instead.
    :param options: reader options.
    :param verdict: what it does, compared with the chosen batch.
    :param repeats: what is read a second time with it; ``None`` where it cannot be counted.
    """

    name: str
    use: str
    options: Mapping[str, str]
    verdict: Verdict
    repeats: Mapping[str, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """The alternative as plain JSON."""
        return {
            "name": self.name,
            "use": self.use,
            "options": dict(self.options),
            "verdict": self.verdict.value,
            "repeats": None if self.repeats is None else dict(self.repeats),
        }


@dataclass(frozen=True, slots=True)
class Seed:
    """A file to put into the new checkpoint before its first start, for a position that no option can say.

    :param path: where, relative to the new checkpoint.
    :param content: what.
    :param files: number of input files that it lists as read.
    """

    path: str
    content: bytes
    files: int

    def to_json(self) -> dict[str, Any]:
        """What it is, without its content, which may be large."""
        return {"path": self.path, "bytes": len(self.content), "files": self.files}


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """Where one source of the new checkpoint starts.

    :param source: position in the plan (``"0"``, …) or name, as in the offset log.
    :param kind: ``kafka``, ``delta``, ``file``, ``auto-loader``, …, ``unknown``.
    :param options: options for ``spark.readStream``; empty where the source starts at its own beginning.
    :param verdict: ``SAFE``: exactly what the old query had not read up to the chosen batch; else what differs.
    :param reasons: why, and what to know.
    :param repeats: what is read a second time, counted: ``{"files": 2}``; empty for nothing, ``None`` for not countable.
    :param conf: settings the new query's session must have for the options to mean this.
    :param until: options with which a *batch* read ends where this position starts.
    :param alternatives: other ways.
    :param seed: a file for the new checkpoint without which the options do not suffice.
    """

    source: str
    kind: str
    options: Mapping[str, str]
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    repeats: Mapping[str, int] | None = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)
    until: Mapping[str, str] = field(default_factory=dict)
    alternatives: tuple[Alternative, ...] = ()
    seed: Seed | None = None

    def to_json(self) -> dict[str, Any]:
        """The position as plain JSON, keyed as in the offset log: ``index`` or ``name``."""
        key: dict[str, Any] = {"index": int(self.source)} if is_number(self.source) else {"name": self.source}
        return {
            **key,
            "kind": self.kind,
            "options": dict(self.options),
            "conf": dict(self.conf),
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "repeats": None if self.repeats is None else dict(self.repeats),
            "until": dict(self.until),
            "alternatives": [alternative.to_json() for alternative in self.alternatives],
            "seed": self.seed.to_json() if self.seed else None,
        }


class FirstStart:
    """What a new query is given at its first start; base of what has a starting position for each of its ``sources``."""

    __slots__ = ()
    sources: tuple[Any, ...]

    @property
    def options(self) -> dict[str, dict[str, str]]:
        """Source -> options of its reader, for ``spark.readStream.….options(**…)``."""
        return {source.source: dict(source.options) for source in self.sources}

    @property
    def conf(self) -> dict[str, str]:
        """Settings of the session, of all sources."""
        return {key: value for source in self.sources for key, value in source.conf.items()}
