"""The file of progress lines, without a Spark: earlier runs stay in it, and it stays short."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ckpt_provider.checkpoint.progress_events import read_events
from airflow_ckpt_provider.spark import progress_lines as module
from airflow_ckpt_provider.spark.progress_lines import ProgressLines
from airflow_ckpt_provider.storage.opening import open_location


def started(run: str) -> Any:
    return SimpleNamespace(id="one", runId=run, name="orders")


def ended(run: str, error: str | None = None) -> Any:
    return SimpleNamespace(id="one", runId=run, exception=error, errorClassOnException="X" if error else None)


def test_a_crash_is_not_hidden_by_the_next_start(tmp_path: Path):
    file = tmp_path / "orders.jsonl"
    for run in ("a", "b", "c"):  # each a process of its own
        lines = ProgressLines(str(file), keep=4)
        lines.onQueryStarted(started(run))
        lines.onQueryTerminated(ended(run, f"error of {run}"))
    events = read_events(open_location(str(file)))
    assert [(e.kind, e.run_id) for e in events] == [
        ("started", "b"),
        ("terminated", "b"),
        ("started", "c"),
        ("terminated", "c"),
    ]
    assert (events[-1].error, events[-1].error_class, events[-1].query_id) == ("error of c", "X", "one")


def test_what_cannot_be_read_is_begun_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    file = tmp_path / "orders.jsonl"
    file.mkdir()
    lines = ProgressLines(str(file))
    lines.onQueryStarted(started("a"))
    assert "earlier progress could not be read, continuing without" in caplog.text
    assert "progress could not be written" in caplog.text
    file.rmdir()
    lines.onQueryTerminated(ended("a"))
    assert [json.loads(line)["event"] for line in file.read_text().splitlines()] == ["started", "terminated"]


def test_a_process_that_ends_waits_for_the_end_of_its_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = ProgressLines(str(tmp_path / "orders.jsonl"))
    lines.onQueryStarted(started("a"))
    monkeypatch.setattr(module, "_END_WITHIN", 3600.0)
    told = threading.Timer(0.2, lines.onQueryTerminated, [ended("a", "no such customer")])
    told.start()
    lines._see_ends()
    assert "no such customer" in (tmp_path / "orders.jsonl").read_text()
    lines.onQueryStarted(started("b"))
    monkeypatch.setattr(module, "_END_WITHIN", 0.05)  # a query that continues, or whose end is never told
    lines._see_ends()
    lines.onQueryTerminated(ended("b"))
