"""What a rehearsal found, as data and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.units import format_size
from airflow_ckpt_provider.upgrade.rehearsal.untouched import Comparison
from airflow_ckpt_provider.verdict import Verdict

FORMAT, VERSION = "airflow-ckpt-rehearsal", 1
#: Rows that are shown of all batches together.
_EXAMPLES = 20


@dataclass(frozen=True, slots=True)
class TrialBatch:
    """One batch that was run on the scratch copy.

    :param input_rows: rows read; ``None`` where an application did not show.
    :param output_rows: rows given to the sink.
    """

    batch_id: int
    seconds: float | None
    input_rows: int | None = None
    output_rows: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The batch as plain JSON."""
        return {
            "batch_id": self.batch_id,
            "seconds": self.seconds,
            "input_rows": self.input_rows,
            "output_rows": self.output_rows,
        }


@dataclass(frozen=True, slots=True)
class Failure:
    """Why it did not run.

    :param code: ``BUILD-…``, ``TIMEOUT``, ``NO-BACKUP``, ``APPLICATION-EXIT``, or the code of the advice.
    :param message: in words, or Spark's error.
    :param advice: what ``airflow-ckpt explain --json`` says of it; ``None`` where it is no error of Spark's.
    """

    code: str
    message: str
    advice: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The failure as plain JSON."""
        return {"code": self.code, "message": self.message, "advice": dict(self.advice) if self.advice else None}


@dataclass(frozen=True, slots=True)
class RowDifference:
    """What old and new gave for the same offsets.

    :param against: ``old code``, or the URI of the table that the old code wrote.
    :param batches: batches that were compared.
    :param only_old: rows that the new code does not give.
    :param only_new: rows that the old code did not give.
    :param columns_gone: columns that the new code does not have; rows are compared without them.
    :param columns_new: columns that the old code does not have, likewise.
    :param examples: some of the rows.
    :param not_compared: why nothing was compared; empty where something was.
    """

    against: str
    batches: tuple[int, ...] = ()
    only_old: int = 0
    only_new: int = 0
    columns_gone: tuple[str, ...] = ()
    columns_new: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    not_compared: str = ""

    @property
    def equal(self) -> bool:
        """Whether something was compared and nothing differs."""
        differs = self.only_old or self.only_new or self.columns_gone or self.columns_new
        return not differs and not self.not_compared

    def __str__(self) -> str:
        if self.not_compared:
            return f"not compared with {self.against}: {self.not_compared}"
        if self.equal:
            return f"the same rows as {self.against} in {len(self.batches)} batches"
        columns = [*(f"-{c}" for c in self.columns_gone), *(f"+{c}" for c in self.columns_new)]
        return (
            f"rows differ from {self.against} in {len(self.batches)} batches: {self.only_old} only there, {self.only_new} only "
            f"in the new code{f'; columns {chr(32).join(columns)}' if columns else ''}"
        )

    def to_json(self) -> dict[str, Any]:
        """The difference as plain JSON."""
        return {
            "against": self.against,
            "batches": list(self.batches),
            "equal": self.equal,
            "only_old": self.only_old,
            "only_new": self.only_new,
            "columns_gone": list(self.columns_gone),
            "columns_new": list(self.columns_new),
            "examples": list(self.examples),
            "not_compared": self.not_compared,
        }


def combine(against: str, parts: Mapping[int, RowDifference], no_rows: str) -> RowDifference:
    """The difference over batches that were compared one by one.

    :param against: what the old rows are, in words.
    :param parts: batch -> its difference.
    :param no_rows: what ``not_compared`` says where neither side gave a row; that is a difference of nothing.
    """
    if not parts:
        return RowDifference(against, not_compared="production has no batch after the backup")
    whys = [part.not_compared for part in parts.values() if part.not_compared]
    real = [why for why in whys if why != no_rows]
    examples = [example for part in parts.values() for example in part.examples]
    return RowDifference(
        against,
        tuple(parts),
        sum(part.only_old for part in parts.values()),
        sum(part.only_new for part in parts.values()),
        tuple(sorted({column for part in parts.values() for column in part.columns_gone})),
        tuple(sorted({column for part in parts.values() for column in part.columns_new})),
        tuple(examples[:_EXAMPLES]),
        real[0] if real else no_rows if len(whys) == len(parts) else "",
    )


@dataclass(frozen=True, slots=True)
class Followed:
    """How the new code continued beside production.

    :param first: the first batch that was to be compared.
    :param last: the last that was; one less than ``first`` where none was.
    :param batches: how many were.
    :param production: the newest batch that production had committed at the end.
    :param ended: ``level``: caught up; ``idle``: caught up with a stream that has stopped; ``timeout``, ``difference``,
        ``failed``.
    :param differing: batches whose rows differ, or could not be compared.
    """

    first: int
    last: int
    batches: int
    production: int
    ended: str
    seconds: float
    differing: tuple[int, ...] = ()

    @property
    def gap(self) -> int:
        """Batches of production that were not compared."""
        return self.production - self.last

    @property
    def caught_up(self) -> bool:
        """Whether it had caught up with production when it ended."""
        return self.ended in ("level", "idle")

    def __str__(self) -> str:
        batches = f"batches {self.first} to {self.last}" if self.batches else "no batch"
        differing = f", different in {', '.join(map(str, self.differing))}" if self.differing else ""
        level = (
            f"production is at batch {self.production}, {self.gap} further" if self.gap else "caught up with production"
        )
        return f"{batches} compared in {self.seconds:.0f} s{differing}; {level} (ended: {self.ended})"

    def to_json(self) -> dict[str, Any]:
        """The way as plain JSON."""
        return {
            "from": self.first,
            "to": self.last,
            "batches": self.batches,
            "production": self.production,
            "gap": self.gap,
            "caught_up": self.caught_up,
            "ended": self.ended,
            "seconds": self.seconds,
            "equal": bool(self.batches) and not self.differing,
            "differing": list(self.differing),
        }


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a rehearsal found.

    :param name: name of the stream.
    :param backup_id: the backup; empty where there was none.
    :param batch_id: the batch it was restored at, -1 where it did not come to that.
    :param code: the code that was run.
    :param spark: version of Spark; empty where it did not come to that, or an application ran on a Spark of its own.
    :param batches: what was run.
    :param failure: why it failed; ``None``: it did not.
    :param state: ``bytes_before``, ``bytes_after``, and ``rows`` where Spark reported them.
    :param baseline: pace of production (``seconds_per_batch``), where a checkpoint was given; ``None`` otherwise.
    :param difference: of the rows; ``None``: nothing to compare with was given.
    :param production: places that must not be written, before and after.
    :param followed: how it continued beside production; ``None``: it did not.
    """

    name: str
    backup_id: str
    batch_id: int
    code: str
    spark: str
    began: datetime
    seconds: float
    batches: tuple[TrialBatch, ...] = ()
    failure: Failure | None = None
    state: Mapping[str, int | None] = field(default_factory=dict)
    baseline: Mapping[str, Any] | None = None
    difference: RowDifference | None = None
    production: tuple[Comparison, ...] = ()
    followed: Followed | None = None

    @property
    def starts(self) -> bool | None:
        """Whether the code continues from the checkpoint; ``None``: it started and had nothing to read."""
        if self.failure is not None and not self.batches:
            return False
        return True if self.batches else None

    @property
    def verdict(self) -> Verdict:
        """``WILL_FAIL`` where it failed; ``UNKNOWN`` where somebody has to check something; else ``SAFE``."""
        if self.failure:
            return Verdict.WILL_FAIL
        return Verdict.UNKNOWN if self.reasons else Verdict.SAFE

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not safe, in words."""
        found = []
        if self.failure:
            found.append(f"{self.failure.code}: {self.failure.message.strip().splitlines()[0][:500]}")
        elif not self.batches:
            found.append(
                "the code started and found nothing to read after the backup: no batch was run, no state was read"
            )
        if self.difference and not self.difference.equal:
            found.append(str(self.difference))
        if self.followed and not self.followed.caught_up and not self.failure:
            found.append(f"production was not caught up with: {self.followed}")
        found += [f"files of production were rewritten meanwhile: {c}" for c in self.production if c.rewritten]
        return tuple(found)

    @property
    def seconds_per_batch(self) -> float | None:
        """Mean of the batches that were run."""
        known = [batch.seconds for batch in self.batches if batch.seconds is not None]
        return round(sum(known) / len(known), 3) if known else None

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "starts": self.starts,
            "name": self.name,
            "backup_id": self.backup_id,
            "batch_id": self.batch_id,
            "code": self.code,
            "spark": self.spark,
            "began": self.began.isoformat(),
            "seconds": round(self.seconds, 3),
            "failure": self.failure.to_json() if self.failure else None,
            "batches": [batch.to_json() for batch in self.batches],
            "input_rows": _sum([batch.input_rows for batch in self.batches]),
            "output_rows": _sum([batch.output_rows for batch in self.batches]),
            "seconds_per_batch": self.seconds_per_batch,
            "baseline": dict(self.baseline) if self.baseline else None,
            "state": dict(self.state),
            "difference": self.difference.to_json() if self.difference else None,
            "followed": self.followed.to_json() if self.followed else None,
            "production": [comparison.to_json() for comparison in self.production],
        }

    def to_markdown(self) -> str:
        """The report for people: a log, an approval form."""
        value = self.to_json()
        base = (self.baseline or {}).get("seconds_per_batch")
        rows = [
            ("code", f"`{self.code}`{f' on Spark {self.spark}' if self.spark else ''}"),
            ("backup", f"`{self.backup_id}` of `{self.name}`, batch {self.batch_id}"),
            ("batches run", str(len(self.batches))),
            ("rows read, given out", f"{value['input_rows']}, {value['output_rows']}"),
            ("seconds a batch", f"{self.seconds_per_batch}{f' (production: {base})' if base is not None else ''}"),
            ("state", f"{_size(self.state.get('bytes_before'))} before, {_size(self.state.get('bytes_after'))} after"),
        ]
        if self.difference:
            rows.append(("rows", str(self.difference)))
        if self.followed:
            rows.append(("beside production", str(self.followed)))
        rows += [("production", str(comparison)) for comparison in self.production]
        reasons = markdown.bullets(self.reasons)
        steps = ""
        if self.failure and self.failure.advice:
            said = self.failure.advice
            listed = markdown.steps(step["text"] for step in said["steps"])
            steps = f"\n\n{said['cause']}\n\n{said['do_not']}\n\n{listed}\n"
        return f"### Rehearsal: **{self.verdict.value}**\n\n{markdown.facts(rows)}\n\n{reasons}{steps}".rstrip() + "\n"


def _size(number: int | None) -> str:
    return "UNKNOWN" if number is None else format_size(number)


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def parse_report(data: bytes, *, path: str) -> dict[str, Any]:
    """Read a report that ``jobs/rehearse.py`` wrote, as plain JSON.

    :param path: where it is from, for messages.
    :raises RefusedError: it is something else, or of a version that is not known here.
    """
    try:
        value: dict[str, Any] = load_json(data)
        if (value["format"], value["version"]) != (FORMAT, VERSION):
            raise ValueError(f"format {value['format']} version {value['version']}, known here: {FORMAT} {VERSION}")
        Verdict(value["verdict"])
    except (ValueError, KeyError, TypeError) as e:
        raise RefusedError(
            f"{path} is not the report of a rehearsal ({type(e).__name__}: {e})",
            hint="give what `--output` of jobs/rehearse.py wrote",
        ) from e
    return value
