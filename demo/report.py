"""What a run of the demo leaves behind to read: ``report.json`` and ``report.md``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from demo.comparison import Comparison
from demo.control import Copy

#: Batches after which Spark has deleted, by this stream's settings, state that the copy's first files ask for.
_ENOUGH = 3


@dataclass(frozen=True)
class ControlResult:
    """What became of one recursive copy.

    :param copy: the copy.
    :param error: Spark's, if it refused to start from it or failed on the way.
    :param comparison: of its table, if it ran to the end.
    """

    copy: Copy
    error: str | None
    comparison: Comparison | None

    @property
    def failed(self) -> bool:
        """Whether the copy was no backup."""
        return self.comparison is None or not self.comparison.is_exact

    @property
    def is_silent(self) -> bool:
        """Whether it failed without an error: the worst outcome."""
        return self.comparison is not None and not self.comparison.is_exact

    def __str__(self) -> str:
        """Say it in one line."""
        if self.comparison is None:
            outcome = f"Spark refuses: {self.error}"
        elif self.comparison.is_exact:
            outcome = "worked, this time"
            if self.copy.batches < _ENOUGH:
                outcome += f": the stream committed {self.copy.batches} batches while it was taken"
        else:
            outcome = (
                f"started without an error, then {self.comparison.rows_lost} rows lost, "
                f"{self.comparison.rows_doubled} rows doubled"
            )
        return f"copy {self.copy.number}: {outcome}"

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON."""
        return {
            "copy": self.copy.number,
            "files": self.copy.files,
            "vanished": self.copy.vanished,
            "batches": self.copy.batches,
            "seconds": round(self.copy.seconds, 2),
            "outcome": "refused" if self.comparison is None else "wrong" if self.failed else "worked",
            "error": self.error,
            "comparison": asdict(self.comparison) if self.comparison else None,
        }


def summary(results: list[ControlResult]) -> str:
    """Say how many copies failed, silent failures apart.

    :param results: of all copies.
    """
    failed = sum(result.failed for result in results)
    silent = sum(result.is_silent for result in results)
    return f"control: {failed} of {len(results)} recursive copies failed, {silent} of them silently"


def write(output: Path, facts: dict[str, Any], lines: list[str]) -> None:
    """Write both reports.

    :param output: directory.
    :param facts: for ``report.json``.
    :param lines: of ``report.md``.
    """
    (output / "report.json").write_text(json.dumps(facts, indent=2) + "\n")
    (output / "report.md").write_text("\n".join(lines) + "\n")
