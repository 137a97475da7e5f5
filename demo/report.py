"""What a run of the demo leaves behind to read: ``report.json`` and ``report.md``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
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
    :param comparison: of its table: after the end of the input, or as Spark left it when it refused.
    :param until: the newest order in its table, where it refused.
    """

    copy: Copy
    error: str | None
    comparison: Comparison
    until: datetime | None = None

    @property
    def failed(self) -> bool:
        """Whether the copy was no backup."""
        return self.error is not None or not self.comparison.is_exact

    @property
    def is_silent(self) -> bool:
        """Whether it failed without an error: the worst outcome."""
        return self.error is None and not self.comparison.is_exact

    def __str__(self) -> str:
        """Say it in one line."""
        if self.error is not None:
            outcome = f"Spark refuses to start: {self.error}"
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
            "outcome": "refused" if self.error is not None else "wrong" if self.failed else "worked",
            "error": self.error,
            "comparison": asdict(self.comparison),
        }


def losses(restored: Comparison, results: list[ControlResult]) -> list[str]:
    """A table in Markdown: which rows each way back lost.

    :param restored: what the restore of the backup came to.
    :param results: of all copies.
    """
    lines = [
        "| way back | orders lost | orders doubled | worth | which |",
        "| --- | --- | --- | --- | --- |",
        f"| restore of the backup | {restored.rows_lost} | {restored.rows_doubled} | 0.00 | none |",
    ]
    for result in results:
        found = result.comparison
        worth = abs(found.expected_cents - found.cents) / 100
        wrong = f"of {found.rows - found.rows_equal} customers" if result.failed else "none"
        which = f"all after {result.until:%H:%M:%S}" if result.until else wrong
        lines.append(
            f"| recursive copy {result.copy.number} | {found.rows_lost:,} | {found.rows_doubled:,} | {worth:,.2f} | {which} |"
        )
    return lines


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
