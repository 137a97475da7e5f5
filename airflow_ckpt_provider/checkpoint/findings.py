"""A finding: something about a checkpoint that somebody should know, by a code that stays the same.

Two kinds share the form. A *diagnosis* says what is broken and what Spark will do because of it; an *advice* says what
will hurt later. Each is described once, in the registry of its module (:mod:`.doctor`, :mod:`.advice`), and the
documentation is made from the registries, so that the two cannot drift apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How bad it is, worst first."""

    #: Rows are lost, doubled or wrong, and nothing says so.
    SILENT = "silent"
    #: The query does not start, or will fail.
    ERROR = "error"
    #: Works today; something is not as it should be.
    WARNING = "warning"
    #: Works, and could work better.
    ADVICE = "advice"


@dataclass(frozen=True, slots=True)
class FindingKind:
    """What all findings of one code have in common.

    :param code: stable name in upper case with hyphens, such as ``OFFSETS-HOLE``.
    :param severity: how bad it is.
    :param meaning: what was found, in one sentence.
    :param reaction: what Spark does because of it: its error class, or the silent effect.
    :param remedy: the next step.
    """

    code: str
    severity: Severity
    meaning: str
    reaction: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found.

    :param kind: what it is.
    :param path: file or directory, relative to the checkpoint; empty for the checkpoint as a whole.
    :param message: what was found here, with its figures.
    :param batch_id: batch it belongs to, where it has one.
    :param figures: the numbers behind it, as plain JSON.
    :param remedy: the next step where it differs from that of the kind.
    :param effect: what Spark does here where it differs from that of the kind.
    :param level: how bad it is where that differs from the kind.
    """

    kind: FindingKind
    path: str
    message: str
    batch_id: int | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    remedy: str = ""
    effect: str = ""
    level: Severity | None = None

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return self.level or self.kind.severity

    def to_json(self) -> dict[str, Any]:
        """The finding as plain JSON."""
        return {
            "code": self.kind.code,
            "severity": self.severity.value,
            "path": self.path,
            "batch_id": self.batch_id,
            "message": self.message,
            "effect": self.effect or self.kind.reaction,
            "remedy": self.remedy or self.kind.remedy,
            "figures": self.figures,
        }
