"""The pages as HTML, by templates that escape whatever they are given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.page.backup_point import BackupPoint, Backups
from airflow_ckpt_provider.page.change_record import ChangeRecord, Changes
from airflow_ckpt_provider.page.forms import Form
from airflow_ckpt_provider.page.stream_row import StreamRow
from airflow_ckpt_provider.page.timeline import timeline
from airflow_ckpt_provider.units import format_duration, format_size, format_time

#: What a browser may load and run: what is served beside the page, and nothing else. Nothing of it is written into the page.
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'"
)
#: Files of a backup that are listed.
_MOST_FILES = 500
#: Characters of a document that are shown.
_MOST_TEXT = 200_000


class Links(Protocol):
    """Where the other pages are; an empty text if there is none."""

    @property
    def root(self) -> str:
        """What the addresses of style and script begin with."""

    def streams(self) -> str:
        """The page of all streams."""

    def stream(self, name: str) -> str:
        """The page of one stream."""

    def backup(self, name: str, backup_id: str) -> str:
        """The page of one backup."""

    def change(self, plan_id: str) -> str:
        """The page of one change."""

    def restore(self, name: str, backup_id: str) -> str:
        """The form for a restore."""

    def rewind(self, name: str, to: datetime) -> str:
        """The form for a rewind."""


@dataclass(frozen=True, slots=True)
class Head:
    """What all pages have in common.

    :param links: where the others are.
    :param repository: what the page is about, in words.
    :param now: when the page is made.
    :param live: served by Airflow, where a form can start a DAG; else a file.
    """

    links: Links
    repository: str
    now: datetime
    live: bool = False
    notes: Sequence[str] = field(default_factory=tuple)


def streams_page(head: Head, rows: Sequence[StreamRow], links: Mapping[str, tuple[str, Links]] | None = None) -> str:
    """All streams, those with problems first.

    :param links: of several repositories, by key: the address, and where its pages are.
    """
    order = {"problem": 0, "unknown": 1, "fine": 2}
    ranked = sorted(rows, key=lambda row: (order[row.standing], row.name, row.checkpoint))
    counts = {standing: sum(row.standing == standing for row in rows) for standing in order}
    return _render("streams.html", head, "Streams", rows=ranked, counts=counts, several=links or {})


def stream_page(
    head: Head, row: StreamRow, backups: Backups, changes: Changes, next_step: str, form: Form | None = None
) -> str:
    """One stream, with its timeline, and the form that was asked for.

    :param next_step: the command that names what ends a change that is half-way; empty if there is none.
    """
    shown = {
        "row": row,
        "backups": backups,
        # Where no report says it.
        "newest": next((point for point in reversed(backups.points) if point.can_be_restored), None),
        "changes": changes,
        "next_step": next_step,
        "timeline": timeline(row, backups.points, changes.records),
        "form": form,
    }
    return _render("stream.html", head, row.name, **shown)


def change_page(head: Head, change: ChangeRecord, row: StreamRow | None, next_step: str) -> str:
    """One change.

    :param row: the stream that it is of, where that is known.
    :param next_step: the command that names what ends or undoes it; empty if there is none.
    """
    mine = row if row is not None and row.plan_id == change.plan_id else None
    shown = {"change": change, "row": row, "mine": mine, "next_step": next_step}
    return _render("change.html", head, f"{change.kind} {change.plan_id}", **shown)


def backup_page(head: Head, point: BackupPoint, manifest: Manifest | None, restore: str) -> str:
    """One backup.

    :param head: what all pages have in common.
    :param point: the backup.
    :param manifest: has its files, unless it cannot be read.
    :param restore: the command that restores it, for a shell; empty if there is none.
    """
    shown = [manifest.files[at] for at in range(min(len(manifest.files), _MOST_FILES))] if manifest else []
    return _render("backup.html", head, point.backup_id, point=point, manifest=manifest, files=shown, restore=restore)


def message_page(head: Head, title: str, message: str) -> str:
    """Something that cannot be shown, and why."""
    return _render("message.html", head, title, message=message)


def asset(name: str) -> bytes:
    """The style or the script.

    :raises KeyError: there is no such file.
    """
    if name not in ASSETS:
        raise KeyError(name)
    return files(__package__).joinpath("static", name).read_bytes()


#: File -> what it is.
ASSETS: Mapping[str, str] = {"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8"}


def _render(template: str, head: Head, title: str, **values: Any) -> str:
    page = _environment().get_template(template).render(head=head, title=title, policy=POLICY, **values)
    return page.encode("utf-8", "replace").decode()  # a manifest or a plan can have half a character in it


@cache
def _environment() -> Environment:
    env = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {"ago": _ago, "length": _length, "when": _when, "size": format_size, "short": _short}
    env.filters["document"] = _document
    env.globals["count"] = len
    return env


def _length(seconds: float | None) -> str:
    return "UNKNOWN" if seconds is None else format_duration(seconds)


def _document(content: Any) -> str:
    """A document as text, as much of it as a page can show."""
    try:
        found = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
    except RecursionError:  # it was read, by a parser that takes more levels than the one that writes
        return "It cannot be shown: it is nested too deeply."
    return found if len(found) <= _MOST_TEXT else f"{found[:_MOST_TEXT]}\n… {len(found) - _MOST_TEXT} more characters"


def _ago(seconds: float | None) -> str:
    return "UNKNOWN" if seconds is None else f"{format_duration(seconds)} ago"


def _when(at: datetime | None) -> Markup:
    """A time, which a browser can read too."""
    if at is None:
        return Markup("UNKNOWN")
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(), format_time(at))


def _short(at: datetime, begin: datetime, end: datetime) -> str:
    """A mark of the axis: the date where days are shown."""
    return at.strftime("%m-%d") if (end - begin).days >= 3 else at.strftime("%m-%d %H:%M" if at.hour == 0 else "%H:%M")
