"""Rows of a report, and what a browser makes of a page."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository

NOW = datetime(2026, 11, 23, 8, tzinfo=UTC)


class Read(HTMLParser):
    """What a browser makes of a page: its elements, its links, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def links(self) -> list[str]:
        return [attrs["href"] or "" for tag, attrs in self.elements if tag == "a" and "href" in attrs]


def row(**values: Any) -> dict[str, Any]:
    """A row of a report, as :meth:`Stream.to_json` makes it."""
    return {
        "name": "orders",
        "checkpoint": "s3://lake/checkpoints/orders",
        "state": "whole",
        "looked_at": NOW.isoformat(),
        "latest_committed": 10,
        "batch_time": (NOW - timedelta(minutes=1)).isoformat(),
        "gap": 0,
        "batches_behind": 1,
        "backup": {"backup_id": "b", "created": (NOW - timedelta(hours=1)).isoformat(), "verified": "contents"},
        "time_to_loss": {"seconds": 3600.0, "known": True, "verdict": "SAFE", "reasons": []},
        "situation": {"kind": "untouched", "message": "", "commands": [], "plan_id": None},
        "last_drill": None,
        "problems": [],
        **values,
    }


def keep(repository: Repository, rows: list[dict[str, Any]]) -> None:
    """Write a report as somebody with the right to write into the repository could."""
    for file in repository.location.list("reports").files:
        repository.location.delete(file.path)
    document = {"format": "airflow-ckpt-fleet-report", "version": 1, "writer": "w", "looked_at": NOW.isoformat()}
    repository.location.replace("reports/w.json", json.dumps({**document, "streams": rows}).encode())


def changed(repository: Repository, checkpoint: str, plan_id: str = "1234abcd", **more: Any) -> None:
    """Keep a plan, and the record that it was carried out."""
    repository.keep_plan(plan_id, {"kind": "rewind", "checkpoint": checkpoint, "steps": [], **more})
    repository.record(plan_id, {"kind": "rewind", "checkpoint": checkpoint})


def harmless(page: str) -> Read:
    """Check that a page runs nothing: no script but its own file, no handler, no address but to its own pages."""
    read = Read(page)
    for tag, attrs in read.elements:
        assert tag not in {"img", "iframe", "object", "style", "base"}, attrs
        assert not [name for name in attrs if name.startswith("on") or name in {"style", "srcdoc"}], attrs
        assert tag != "script" or set(attrs) == {"src", "defer"}, attrs
        for name in ("href", "src", "action"):
            assert not re.match(r"\s*\w+:", attrs.get(name) or ""), attrs
    return read
