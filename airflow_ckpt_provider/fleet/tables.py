"""A fleet as rows of text: one list of columns for Markdown, CSV and the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.fleet.discovery import State
from airflow_ckpt_provider.fleet.fleet import Fleet
from airflow_ckpt_provider.fleet.stream import Stream
from airflow_ckpt_provider.recovery.status import RUNNING_AGAIN, UNTOUCHED
from airflow_ckpt_provider.units import format_duration, format_size

UNKNOWN = "UNKNOWN"
#: A cell that begins with one of these is a formula to a spreadsheet (OWASP, *CSV injection*; the last ones are full-width).
_FORMULA = ("=", "+", "-", "@", "\t", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def status(stream: Stream) -> str:
    """The status of its checkpoint, in a word or two."""
    if stream.found.state is not State.WHOLE:
        return stream.found.state.value
    if stream.situation is None:
        return UNKNOWN
    return "" if stream.situation.kind in (UNTOUCHED, RUNNING_AGAIN) else stream.situation.kind.replace("_", " ")


def backup_age(stream: Stream) -> str:
    """How old the last good backup is."""
    if stream.backup is None:
        return UNKNOWN if "backup" in stream.unknown else "none"
    return UNKNOWN if stream.backup_age is None else format_duration(stream.backup_age)


def time_left(stream: Stream) -> str:
    """How long its sources will have what the next start reads."""
    left = stream.time_to_loss
    if not left.known:
        return UNKNOWN
    return "no limit" if left.seconds is None else format_duration(left.seconds)


def drill_age(stream: Stream) -> str:
    """How long ago a backup of it was restored and run on."""
    if stream.drill is None:
        return UNKNOWN if "drill" in stream.unknown else "never"
    return UNKNOWN if stream.drill_age is None else format_duration(stream.drill_age)


def verified(stream: Stream) -> str:
    """What verifying the last good backup found."""
    return stream.backup.verified.value if stream.backup and stream.backup.verified else ""


def batch(stream: Stream) -> str:
    """The newest committed batch."""
    latest = stream.found.progress.latest_committed if stream.found.progress else None
    return "" if latest is None else str(latest)


def gap(stream: Stream) -> str:
    """Logged minus committed batches."""
    return UNKNOWN if stream.gap is None else str(stream.gap)


def to_markdown(fleet: Fleet) -> str:
    """The fleet for a report: what is wrong first, then a row for each stream."""
    problems = fleet.problems()
    wrong = sum(bool(stream.problems(fleet.limits_of(stream))) for stream in fleet.streams)
    count = len(fleet.streams)
    lines = [
        f"## {count} stream{'' if count == 1 else 's'}, {wrong} with problems",
        "",
        markdown.line(f"Repository: {fleet.repository}"),
        "",
    ]
    lines += [markdown.bullets(f"**{uri}**: {'; '.join(found)}" for uri, found in problems.items())] if problems else []
    columns: Mapping[str, Callable[[Stream], str]] = {
        "stream": lambda s: s.name,
        "batch": batch,
        "gap": gap,
        "last good backup": backup_age,
        "verified": verified,
        "size": lambda s: format_size(s.backup.size) if s.backup else "",
        "time to loss": time_left,
        "last drill": drill_age,
        "state": status,
    }
    lines += ["", markdown.table(list(columns), ([column(s) for column in columns.values()] for s in fleet.streams))]
    return "\n".join(lines) + "\n"


def to_csv(fleet: Fleet) -> str:
    """The fleet for a spreadsheet: numbers as they are, empty if there is none or it is not known; no text is a formula."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns: Mapping[str, Callable[[Stream], object]] = {
        "stream": lambda s: s.name,
        "checkpoint": lambda s: s.found.place.uri,
        "state": lambda s: s.found.state.value,
        "situation": lambda s: s.situation.kind if s.situation else None,
        "query_id": lambda s: s.found.progress.query_id if s.found.progress else None,
        "latest_committed": lambda s: s.found.progress.latest_committed if s.found.progress else None,
        "gap": lambda s: s.gap,
        "backup_id": lambda s: s.backup.backup_id if s.backup else None,
        "backup_age_seconds": lambda s: None if s.backup_age is None else round(s.backup_age, 3),
        "verified": verified,
        "batches_behind": lambda s: s.batches_behind,
        "backup_files": lambda s: s.backup.files if s.backup else None,
        "backup_bytes": lambda s: s.backup.size if s.backup else None,
        "size": lambda s: s.size,
        "time_to_loss_known": lambda s: str(s.time_to_loss.known).lower(),
        "time_to_loss_seconds": lambda s: s.time_to_loss.seconds,
        "last_drill": lambda s: s.drill.at.isoformat() if s.drill else None,
        "problems": lambda s: "; ".join(s.problems(fleet.limits_of(s))),
    }
    writer.writerow(columns)
    writer.writerows([_cell(column(s)) for column in columns.values()] for s in fleet.streams)
    return out.getvalue()


def _cell(value: object) -> object:
    """A value that no spreadsheet runs: a file of a checkpoint or a repository has it, and anybody may have written that."""
    if not isinstance(value, str):
        return value
    # Python before 3.13 does not quote a carriage return, behind which a spreadsheet begins a new row.
    text = value.replace("\r", "\n")
    return f"'{text}" if text.startswith(_FORMULA) else text
