"""What cannot be read is UNKNOWN on the pages, with the reason, and takes nothing else away."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.fleet.fleet import Fleet
from airflow_ckpt_provider.fleet.report import read_reports
from airflow_ckpt_provider.page.change_record import ChangeRecord
from airflow_ckpt_provider.page.forms import Form
from airflow_ckpt_provider.page.html import Head, change_page
from airflow_ckpt_provider.page.pages import NotThereError, Pages
from airflow_ckpt_provider.page.site import FileLinks, write_site
from airflow_ckpt_provider.page.stream_row import Met
from airflow_ckpt_provider.streams.stream import Objectives, Stream
from tests.support.report_pages import NOW, changed, harmless, keep, row
from tests.support.watched_stores import watched


@pytest.mark.parametrize(
    "values",
    [
        {"problems": ["\ud800"], "checkpoint": "/\ud800"},
        {"situation": {"kind": "under_way", "message": "\ud800", "commands": ["\ud800"], "plan_id": "\ud800"}},
        {"time_to_loss": {"seconds": 10**400, "known": True, "verdict": "SAFE"}},
        {"last_drill": {"proven_at": NOW.isoformat(), "seconds": -(10**400)}},
        {"oldest": {"batch_id": 0, "batch_time": "0001-01-01T00:00:00+00:00"}},
    ],
)
def test_one_bad_report_takes_no_page_away(values: dict[str, Any], repository: Repository, tmp_path: Path) -> None:
    keep(repository, [row(**values), row(name="payments", checkpoint="/other")])
    pages = {
        file.name: file.read_text() for file in write_site(repository, tmp_path / "site") if file.suffix == ".html"
    }
    assert "payments" in harmless(pages["index.html"]).text
    assert harmless(pages["stream-orders.html"])


def test_changes_that_cannot_be_read_are_not_known(repository: Repository, fleet: Fleet) -> None:
    changed(repository, repository.backups("orders")[0].checkpoint)
    pages = Pages(repository, FileLinks())
    shown = harmless(pages.stream("orders"))
    assert ("rewind 1234abcd" in shown.text, "change-1234abcd.html" in shown.links) == (True, True)
    (record,) = repository.location.list("audit").files
    repository.location.replace(record.path, b"{")
    shown = harmless(pages.stream("orders"))
    assert f"UNKNOWN: {repository.location}/{record.path} cannot be read" in shown.text
    assert len(re.findall(r"Changes\s*UNKNOWN", shown.text)) == 2, "nor does the timeline show that there are none"


def test_the_changes_of_a_stream_that_no_report_names(repository: Repository) -> None:
    changed(repository, repository.backups("orders")[0].checkpoint)
    assert "rewind 1234abcd" in harmless(Pages(repository, FileLinks()).stream("orders")).text
    keep(repository, [row(name="clicks", checkpoint="")])
    page = harmless(Pages(repository, FileLinks()).stream("clicks")).text
    assert "UNKNOWN: no report and no backup says which checkpoint this stream has" in page


def test_a_report_that_cannot_be_read_is_said(repository: Repository) -> None:
    repository.location.replace("reports/broken.json", b"{")
    repository.location.replace("reports/.half.json.tmp", b"{")
    pages = Pages(repository, FileLinks())
    for page in (pages.streams(), pages.stream("orders")):
        text = harmless(page).text
        assert f"report reports/broken.json cannot be used: {repository.location}/reports/broken.json" in text
        assert "half" not in text
        assert re.search(r"[Nn]o report about (it|this stream) could be read", text)
        assert "never" not in text
    with pytest.raises(NotThereError, match=r"a stream 'nobody'; report reports/broken\.json cannot be used"):
        pages.stream("nobody")
    repository.location.delete(repository.backups("orders")[0].path)
    (repository.location / "backups/orders").store.remove_empty_directories((repository.location / "backups").root)
    text = harmless(pages.streams()).text
    assert "UNKNOWN: which streams there are could not be read." in text
    assert "No report is kept" not in text


def test_more_writers_than_are_read(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(repository, [row()])
    repository.location.replace("reports/z.json", repository.location.read("reports/w.json"))
    monkeypatch.setattr("airflow_ckpt_provider.fleet.report._MOST", 1)
    assert read_reports(repository).unread == ("1 more reports are not read, but for the first 1",)


def test_a_plan_that_is_nested_too_deeply(repository: Repository) -> None:
    nested: dict[str, Any] = {}
    for _ in range(5000):
        nested = {"a": nested}
    change = ChangeRecord("1234abcd", "rewind", "/c", None, plan={"checkpoint": "/c", "more": nested})
    page = harmless(change_page(Head(FileLinks(), "backups", NOW), change, None, ""))
    assert "It cannot be shown: it is nested too deeply." in page.text
    long = replace(change, plan={"checkpoint": "x" * 300_000})
    page = harmless(change_page(Head(FileLinks(), "backups", NOW), long, None, ""))
    assert re.search(r"x\n… 1000\d\d more characters", page.text)


def test_one_page_that_cannot_be_made_takes_no_other_away(
    checkpoint: Checkpoint, repository: Repository, tmp_path: Path
) -> None:
    create_backup(checkpoint, repository, name="other")
    changed(repository, "/c")
    repository.location.replace("plans/damaged.json", b"{")
    repository.location.replace("damaged/other/000001.json", b"{")
    keep(repository, [row(name="orders"), row(name="x" * 300, checkpoint="/long")])
    files = {file.name: file for file in write_site(repository, tmp_path / "site")}
    for name, why in {
        "stream-other.html": "damaged/other/000001.json cannot be read",
        "change-damaged.html": "plans/damaged.json cannot be read",
    }.items():
        text = harmless(files[name].read_text()).text
        assert "The page cannot be made" in text
        assert why in text
    assert "rewind 1234abcd" in files["change-1234abcd.html"].read_text()
    assert "orders" in files["index.html"].read_text()


def test_a_backup_that_the_store_does_not_give_out_is_not_known(repository: Repository, fleet: Fleet) -> None:
    (backup,) = repository.backups("orders")

    def refuse(operation: str, path: str) -> None:
        if operation == "read" and path.endswith(backup.path):
            raise StorageError("could not read it: 403", hint="x")

    place, _ = watched(repository.location, refuse)
    pages = Pages(Repository.open(place), FileLinks(), live=True)
    of_backup, of_stream = pages.backup("orders", backup.backup_id), pages.stream("orders")
    unknown = r'<span class="badge unknown">UNKNOWN</span>'
    assert re.search(rf"<p>{unknown}", of_backup)
    assert re.search(rf"cannot be read</td>\s*<td>{unknown}", of_stream)
    assert "could not read it: 403" in harmless(of_backup).text
    with pytest.raises(RefusedError, match="cannot be restored: could not read it: 403"):
        pages.stream("orders", restore=(backup.backup_id, lambda row, manifest: Form("x", "x", ())))


def test_a_stream_without_a_report_is_shown_and_not_known(repository: Repository) -> None:
    (only,) = Pages(repository, FileLinks()).reported().rows
    assert (only.name, only.standing, only.backup_id) == ("orders", "unknown", "")
    (backup,) = repository.backups("orders")
    page = harmless(Pages(repository, FileLinks()).stream("orders")).text
    assert "No report is about this stream yet" in page
    assert f"Last good backup{backup.backup_id}, " in page
    assert "Reportednever" in page
    assert "Last drillUNKNOWN" in page
    assert "no report is about it yet" in Pages(repository, FileLinks()).streams()


def test_a_declared_stream_that_was_never_backed_up_is_shown_and_not_known(repository: Repository) -> None:
    declared = {
        "clicks": Stream("clicks", checkpoint="/clicks", repository="/r", objectives=Objectives(rpo=timedelta(1)))
    }
    rows = {row.name: row for row in Pages(repository, FileLinks(), declared=declared).reported().rows}
    assert set(rows) == {"orders", "clicks"}
    assert (rows["clicks"].checkpoint, rows["clicks"].standing, rows["clicks"].rpo) == (
        "/clicks",
        "unknown",
        Met.UNKNOWN,
    )
    assert "There is no backup under this name" in Pages(repository, FileLinks(), declared=declared).stream("clicks")
