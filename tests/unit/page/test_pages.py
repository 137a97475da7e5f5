"""The pages: what they say is what the repository and its reports say, and nothing that is read becomes markup."""

from __future__ import annotations

import re
import shlex
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.names import LONGEST_NAME
from airflow_ckpt_provider.backup.notes import hold, record_verification
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.fleet.discovery import discover
from airflow_ckpt_provider.fleet.fleet import Fleet, inspect_fleet
from airflow_ckpt_provider.fleet.report import keep_report, read_reports, rows_of
from airflow_ckpt_provider.page.forms import Form, Places, declared_rewind_form, restore_form
from airflow_ckpt_provider.page.html import Head, streams_page
from airflow_ckpt_provider.page.pages import NotThereError, Pages
from airflow_ckpt_provider.page.shown import declared_in
from airflow_ckpt_provider.page.site import FileLinks, write_site
from airflow_ckpt_provider.page.stream_row import Met, StreamRow
from airflow_ckpt_provider.storage.location import SMALL, Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.streams.stream import Objectives, Stream
from tests.support.command_lines import parsed
from tests.support.every_run import of_these
from tests.support.report_pages import NOW, changed, harmless, keep, row
from tests.support.signed import backed_up, forge, opened
from tests.support.spoiled import spoil
from tests.support.watched_stores import watched

HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(2)>'{{7*1911911}}{%raw%}"


def test_all_pages_of_a_repository(repository: Repository, fleet: Fleet, tmp_path: Path) -> None:
    files = write_site(repository, tmp_path / "site")
    pages = {file.name: harmless(file.read_text()) for file in files if file.suffix == ".html"}
    (backup,) = repository.backups("orders")
    assert set(pages) == {"index.html", "stream-orders.html", f"backup-orders-{backup.backup_id}.html"}
    there = {file.name for file in files}
    for name, page in pages.items():
        assert {link for link in page.links if link} <= there, name
    stream = pages["stream-orders.html"].text
    assert "5, planned 2026-11-21 11:13:10 UTC" in stream
    assert "0, planned 2026-11-21 11:13:05 UTC" in stream  # the oldest batch of the checkpoint
    assert backup.backup_id in stream
    manifest = pages[f"backup-orders-{backup.backup_id}.html"]
    assert all(entry.path in manifest.text for entry in backup.files)
    assert backup.query_id in manifest.text


def test_the_pages_are_made_without_the_checkpoint(repository: Repository, fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").rename(tmp_path / "gone")
    assert "5, planned" in (tmp_path / "site2" / write_site(repository, tmp_path / "site2")[2].name).read_text()


def test_the_list_has_a_filter_where_a_script_can_run() -> None:
    for live in (True, False):
        page = harmless(streams_page(Head(FileLinks(), "backups", NOW, live=live), [StreamRow.of(row(), NOW)]))
        assert any("data-filter" in attrs for _, attrs in page.elements) is live


def test_nothing_is_written_to_the_repository(repository: Repository, fleet: Fleet, tmp_path: Path) -> None:
    before = {path: file.size for path, file in repository.location.walk().items()}
    write_site(repository, tmp_path / "site")
    assert {path: file.size for path, file in repository.location.walk().items()} == before


@pytest.mark.parametrize("part", ["name", "checkpoint", "state", "problems", "situation", "time_to_loss", "backup"])
def test_whatever_a_report_says_is_text(part: str, repository: Repository, fleet: Fleet) -> None:
    values: dict[str, Any] = {
        "name": HOSTILE,
        "checkpoint": f"javascript:{HOSTILE}",
        "state": HOSTILE,
        "problems": [HOSTILE],
        "situation": {"kind": "under_way", "message": HOSTILE, "commands": [HOSTILE], "plan_id": HOSTILE},
        "time_to_loss": {"seconds": 1, "known": False, "verdict": HOSTILE, "reasons": [HOSTILE]},
        "backup": {"backup_id": HOSTILE, "created": HOSTILE, "verified": HOSTILE},
    }
    keep(repository, [row(**{part: values[part]})])
    pages = Pages(repository, FileLinks())
    page = harmless(pages.streams())
    assert "13383377" not in page.text  # no template of a value is carried out
    if part == "name":
        with pytest.raises(NotThereError):
            pages.stream(HOSTILE)
    else:
        shown = harmless(pages.stream("orders"))
        if part in {"problems", "situation", "checkpoint"}:
            assert "<script>alert(1)</script>" in shown.text


@pytest.mark.parametrize("value", of_these([None, 7, "x", [], {}, [None, {"a": 1}], float("inf"), True], 7, "x", {}))
@pytest.mark.parametrize("part", sorted(row()))
def test_a_value_of_another_kind_is_not_known(part: str, value: Any, repository: Repository, fleet: Fleet) -> None:
    keep(repository, [row(**{part: value}), row(name="payments", checkpoint="/other")])
    pages = Pages(repository, FileLinks())
    assert "payments" in harmless(pages.streams()).text
    if part != "name":
        harmless(pages.stream("orders"))


def test_a_hostile_manifest_and_plan_are_text(checkpoint: Checkpoint, repository: Repository) -> None:
    made = create_backup(
        checkpoint, repository, name="orders", reason=HOSTILE, tags={HOSTILE: HOSTILE}, made_by=HOSTILE
    )
    hold(repository, made.manifest, reason=HOSTILE)
    repository.keep_plan("1234abcd", {"kind": HOSTILE, "checkpoint": HOSTILE, "steps": [HOSTILE], "verdict": HOSTILE})
    pages = Pages(repository, FileLinks())
    for page in (pages.backup("orders", made.manifest.backup_id), pages.change("1234abcd"), pages.stream("orders")):
        assert "<script>alert(1)</script>" in harmless(page).text


def test_the_command_on_the_page_of_a_backup_restores_it_wherever_it_is(checkpoint: Checkpoint, tmp_path: Path) -> None:
    repository = Repository.open_or_create(open_location(str(tmp_path / "back'ups; rm $HOME")))
    backup = create_backup(checkpoint, repository, name="orders").manifest
    page = harmless(Pages(repository, FileLinks()).backup("orders", backup.backup_id)).text
    (shown,) = re.findall(r"airflow-ckpt restore .*", page)
    program, *words = shlex.split(shown)
    given = parsed(words)
    assert (program, given.repository, given.backup) == ("airflow-ckpt", repository.location.uri, backup.backup_id)
    assert (given.target, given.name, given.replace) == (backup.checkpoint, "orders", True)
    entry = next(each for each in backup.files if each.size > 40)
    spoil(repository.location, entry)
    record_verification(repository, verify_backup(repository, backup, read_data=ReadData()))
    assert "airflow-ckpt restore" not in Pages(repository, FileLinks()).backup("orders", backup.backup_id)


@pytest.mark.parametrize("name", ["", "..", "../../etc", "a/b", "nobody", HOSTILE])
def test_a_name_that_is_no_streams(name: str, repository: Repository, fleet: Fleet) -> None:
    pages = Pages(repository, FileLinks())
    for look in (lambda: pages.stream(name), lambda: pages.backup(name, "x"), lambda: pages.change(name)):
        with pytest.raises(NotThereError):
            look()


def test_the_newest_report_of_a_checkpoint_counts(repository: Repository, fleet: Fleet) -> None:
    keep_report(repository, fleet, writer="other.task")
    keep_report(repository, fleet, writer="fleet.report")  # replaces its own
    assert len(read_reports(repository).found) == 2
    (repository_row,) = rows_of(read_reports(repository).found)
    assert repository_row["oldest"] == {"batch_id": 0, "batch_time": "2026-11-21T11:13:05.461000+00:00"}
    repository.location.replace("reports/broken.json", b"{")
    repository.location.replace("reports/other.json", b'{"looked_at":"yesterday","writer":"x"}')
    assert len(read_reports(repository).found) == 2
    keep(repository, [row()])
    whole = repository.location.read("reports/w.json")
    assert len(read_reports(repository).found) == 1
    repository.location.replace("reports/w.json", whole + b" " * SMALL)
    found = read_reports(repository)
    assert (len(found.found), len(found.unread)) == (0, 1)
    assert found.unread[0].startswith("report reports/w.json cannot be used: ValueError: it has 16.0 MiB")


def test_a_batch_that_was_purged_while_the_report_was_made_is_not_the_oldest(
    repository: Repository, tmp_path: Path
) -> None:
    fleet = inspect_fleet(discover([open_location(str(tmp_path / "checkpoints"))]), repository)
    for directory in ("offsets", "commits"):
        (tmp_path / "checkpoints" / "orders" / directory / "0").unlink()
    keep_report(repository, fleet, writer="fleet.report")
    (found,) = rows_of(read_reports(repository).found)
    assert found["oldest"]["batch_id"] == 1
    assert found["oldest"]["batch_time"]


def test_only_the_newest_changes_are_shown(
    repository: Repository, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_ckpt_provider.page.change_record.SHOWN", 2)
    for plan_id in ("1", "2", "3"):
        changed(repository, repository.backups("orders")[0].checkpoint, plan_id)
    page = harmless(Pages(repository, FileLinks()).stream("orders")).text
    assert [plan_id for plan_id in "123" if f"rewind {plan_id} " in page] == ["2", "3"]
    assert "1 older ones are not shown." in page


FORGED = "airflow-ckpt undo /lake/orders --plan 1234abcd; rm -rf ~"


def commands(page: str) -> list[str]:
    """What a page shows to be copied; the plan of a change is JSON."""
    found = re.findall(r"<pre>(.*?)</pre>", page, re.DOTALL)
    return [unescape(each) for each in found if not each.startswith("{")]


@pytest.mark.parametrize("is_half_way", [True, False])
def test_no_command_of_a_report_or_a_plan_is_shown(is_half_way: bool, repository: Repository) -> None:
    place = "/lake/or ders; rm -rf ~"
    situation = {"kind": "under_way", "message": "half-way", "commands": [FORGED], "plan_id": "1234abcd"}
    keep(repository, [row(checkpoint=place, **({"situation": situation} if is_half_way else {}))])
    if is_half_way:
        repository.keep_plan("1234abcd", {"kind": "reset", "checkpoint": place, "take_back": FORGED})
    else:
        changed(repository, place, take_back=FORGED)
    pages = Pages(repository, FileLinks())
    shown = commands(pages.change("1234abcd")) + (commands(pages.stream("orders")) if is_half_way else [])
    assert len(shown) == 1 + is_half_way
    for each in shown:
        program, *words = shlex.split(each)
        given = parsed(words)
        assert (program, given.verb) == ("airflow-ckpt", "status")
        assert (given.checkpoint, given.repository) == (place, repository.location.uri)


@pytest.mark.parametrize("place", ["--help", "/lake/\n rm -rf ~", "/lake/\x1b[201~x", "/lake/\u202egnp", ""])
def test_no_command_is_made_of_what_a_terminal_obeys(place: str, repository: Repository) -> None:
    situation = {"kind": "under_way", "message": "half-way", "commands": [], "plan_id": "1234abcd"}
    keep(repository, [row(checkpoint=place, situation=situation)])
    repository.keep_plan("1234abcd", {"kind": "rewind", "checkpoint": place})
    pages = Pages(repository, FileLinks())
    assert commands(pages.stream("orders")) == commands(pages.change("1234abcd")) == []


def test_a_change_without_a_checkpoint_is_of_no_stream(repository: Repository) -> None:
    repository.keep_plan("1234abcd", {"kind": "rewind"})
    assert "stream-orders.html" not in harmless(Pages(repository, FileLinks()).change("1234abcd")).links


def test_names_of_files_fit_on_disks(checkpoint: Checkpoint, repository: Repository, tmp_path: Path) -> None:
    names = ["n" * LONGEST_NAME, f"{'n' * (LONGEST_NAME - 1)}m"]
    made = {name: create_backup(checkpoint, repository, name=name).backup_id for name in names}
    files = {file.name for file in write_site(repository, tmp_path / "site")}
    links = FileLinks()
    of_backups = {links.backup(name, backup_id) for name, backup_id in made.items()}
    assert {links.stream(name) for name in names} | of_backups <= files
    assert len(of_backups) == 2
    assert all(len(name) <= 255 for name in files)


def test_no_link_leads_to_a_page_that_is_not_made(
    checkpoint: Checkpoint, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_backup(checkpoint, repository, name="orders")
    monkeypatch.setattr("airflow_ckpt_provider.page.site._BACKUPS", 1)
    sealed = {"kind": "under_way", "message": "half-way", "commands": [], "plan_id": "kept-elsewhere"}
    keep(repository, [row(situation=sealed, checkpoint=repository.backups("orders")[0].checkpoint)])
    files = write_site(repository, tmp_path / "site")
    ids = repository.backup_ids("orders")
    pages = {file.name: harmless(file.read_text()) for file in files if file.suffix == ".html"}
    assert {link for page in pages.values() for link in page.links} <= set(pages)
    assert f"backup-orders-{ids[1]}.html" in pages["stream-orders.html"].links
    assert all(word in pages["stream-orders.html"].text for word in (*ids, "Change kept-elsewhere"))


def test_no_form_for_a_backup_that_is_damaged(repository: Repository, fleet: Fleet) -> None:
    (backup,) = repository.backups("orders")
    entry = next(each for each in backup.files if each.size > 40)
    spoil(repository.location, entry)
    record_verification(repository, verify_backup(repository, backup, read_data=ReadData()))
    made = Form("restore_checkpoint", "Restore", ())
    page = Pages(repository, FileLinks(), live=True).stream("orders", restore=(backup.backup_id, lambda *_: made))
    assert "The backup is damaged: " in harmless(page).text
    assert "<form" not in page


def test_the_form_says_that_the_report_has_another_checkpoint_than_the_backup(repository: Repository) -> None:
    (backup,) = repository.backups("orders")

    def hint(checkpoint: str) -> str:
        form = restore_form("restore_checkpoint", StreamRow.of(row(checkpoint=checkpoint), NOW), backup, Places("/b"))
        return next(each.hint for each in form.fields if each.name == "target")

    assert hint(backup.checkpoint) == ""
    assert hint("s3://forged") == f"as the report has it; the backup was taken of {backup.checkpoint}"


@pytest.mark.parametrize("wrong", [{"name": "a/b"}, {"backup": {"backup_id": "../x", "created": NOW.isoformat()}}])
def test_a_backup_that_no_repository_can_have_is_none(wrong: dict[str, Any], repository: Repository) -> None:
    keep(repository, [row(**wrong)])
    (found,) = (each for each in Pages(repository, FileLinks()).reported().rows if each.looked_at)
    assert (found.backup_id, found.standing) == ("", "problem")
    assert found.problems[-1].endswith("cannot be one: no backup has this id, or no stream this name")


def test_no_form_is_about_one_of_two_checkpoints_of_one_name(repository: Repository, fleet: Fleet) -> None:
    mine = repository.backups("orders")[0].checkpoint
    keep(repository, [row(checkpoint="/another/orders"), row(checkpoint=mine)])
    shown: list[str] = []

    def form(row: StreamRow, manifest: Manifest | None = None) -> Form:
        shown.append(row.checkpoint)
        return Form("restore_checkpoint", "Restore", ())

    backup_id = repository.backups("orders")[0].backup_id
    pages = Pages(repository, FileLinks(), live=True)
    for page in (pages.stream("orders", restore=(backup_id, form)), pages.stream("orders", rewind=form)):
        assert "2 checkpoints under the name orders: /another/orders" in harmless(page).text
        assert "It is not known which of them is meant" in page
        assert "<form" not in page
    assert shown == [mine, mine]


def test_a_stream_that_is_declared_elsewhere_is_not_the_one_of_the_report(repository: Repository, fleet: Fleet) -> None:
    """The page called the stream fine by what it knew of another checkpoint, and its form rewound the declared one."""
    there = repository.backups("orders")[0].checkpoint
    stream = Stream("orders", checkpoint="/elsewhere/orders", objectives=Objectives(rpo=timedelta(days=9999)))
    pages = Pages(repository, FileLinks(), live=True, declared={"orders": stream})
    rows = {row.checkpoint: row for row in pages.reported().rows if row.name == "orders"}
    assert rows.keys() == {there, "/elsewhere/orders"}
    assert rows[there].objectives == Objectives()
    assert (rows["/elsewhere/orders"].looked_at, rows["/elsewhere/orders"].rpo) == (None, Met.UNKNOWN)
    page = pages.stream("orders", rewind=lambda row: declared_rewind_form("ckpt_rewind", stream, NOW))
    assert "The reports and the declaration tell of 2 checkpoints under the name orders" in harmless(page).text
    assert "<form" not in page
    same = replace(stream, checkpoint=f"file://{there}" if "://" not in there else there)
    (row,) = Pages(repository, FileLinks(), declared={"orders": same}).reported().rows
    assert row.objectives == stream.objectives


def test_a_stream_on_azure_is_the_one_of_the_report(repository: Repository, fleet: Fleet) -> None:
    """Its store leaves the account out: the page had two checkpoints for it, and no form."""
    declared = Stream("orders", checkpoint="abfss://ck@lake.dfs.core.windows.net/orders", repository="abfss://b@a.x/r")
    keep(repository, [row(checkpoint="abfs://ck/orders")])
    rows = Pages(repository, FileLinks(), declared={"orders": declared}).reported().rows
    assert [found.checkpoint for found in rows if found.name == "orders"] == ["abfs://ck/orders"]
    assert declared_in("abfs://b/r", [declared]) == {"orders": declared}
    assert declared_in("abfs://b/other", [declared]) == {}


def test_the_form_of_a_declared_stream_names_its_checkpoint() -> None:
    form = declared_rewind_form("ckpt_rewind", Stream("orders", checkpoint="s3://lake/orders"), NOW)
    assert next(field for field in form.fields if field.name == "stream").hint == "its checkpoint is s3://lake/orders"


def test_a_backup_that_was_found_damaged_since_the_report_is_none(repository: Repository, fleet: Fleet) -> None:
    (backup,) = repository.backups("orders")
    objectives = Objectives(rpo=timedelta(days=9999))
    pages = Pages(
        repository,
        FileLinks(),
        declared={"orders": Stream("orders", checkpoint=backup.checkpoint, objectives=objectives)},
    )
    (before,) = pages.reported().rows
    assert (before.backup_id, before.rpo) == (backup.backup_id, Met.YES)
    entry = next(each for each in backup.files if each.size > 40)
    spoil(repository.location, entry)
    record_verification(repository, verify_backup(repository, backup, read_data=ReadData()))
    (after,) = pages.reported().rows
    assert (after.backup_id, after.standing, after.rpo) == ("", "problem", Met.UNKNOWN)
    for page in (pages.streams(), pages.stream("orders")):
        assert (
            f"backup {backup.backup_id}, the last good one of the report, is damaged: {entry.path}"
            in harmless(page).text
        )
        assert "verified: " not in harmless(page).text


def test_a_manifest_that_was_torn_since_the_report_is_none(repository: Repository, fleet: Fleet) -> None:
    """The row was green on the manifest's name alone, above a table that said that it cannot be read."""
    (backup,) = repository.backups("orders")
    document = repository.location.read(backup.path)
    repository.location.replace(backup.path, document[: len(document) // 2])
    pages = Pages(repository, FileLinks())
    (after,) = pages.reported().rows
    assert (after.backup_id, after.standing) == ("", "problem")
    for page in (pages.streams(), pages.stream("orders")):
        assert f"backup {backup.backup_id}, the last good one of the report, is damaged" in harmless(page).text
        assert "verified: " not in harmless(page).text


def test_what_a_report_says_of_a_verify_is_asked_of_its_notes(repository: Repository, fleet: Fleet) -> None:
    (backup,) = repository.backups("orders")
    created = backup.created.isoformat()
    said = {"backup_id": backup.backup_id, "created": created, "as_of": created, "verified": "contents"}
    keep(repository, [row(checkpoint=backup.checkpoint, backup=said)])
    pages = Pages(repository, FileLinks())
    assert [each.verified for each in pages.reported().rows] == [""]
    record_verification(repository, verify_backup(repository, backup, read_data=ReadData()))
    assert [each.verified for each in pages.reported().rows] == ["contents"]


def test_a_forged_report_of_a_forged_backup_is_not_green(place: Location) -> None:
    newest = backed_up(place, 6)
    forged = forge(place, newest)
    now = datetime.now(UTC).isoformat()
    said = {"backup_id": forged.backup_id, "created": now, "as_of": now, "verified": "contents"}
    keep(opened(place), [row(checkpoint=newest.checkpoint, backup=said)])
    (shown,) = Pages(opened(place), FileLinks()).reported().rows
    assert (shown.backup_id, shown.verified, shown.standing) == ("", "", "problem")
    assert "is not signed by a trusted key" in shown.problems[-1]


def test_a_backup_that_has_expired_since_the_report_is_none(repository: Repository, fleet: Fleet) -> None:
    (backup,) = repository.backups("orders")
    repository.location.delete(backup.path)
    pages = Pages(repository, FileLinks())
    for page in (pages.streams(), pages.stream("orders")):
        text = harmless(page).text
        assert f"backup {backup.backup_id}, the last good one of the report, does not exist any more" in text
    assert "Last good backupnone known" in text


def test_the_page_of_a_stream_asks_for_no_backup_of_others(repository: Repository) -> None:
    keep(repository, [row(name=f"s{n}", checkpoint=f"/c/{n}") for n in range(30)])
    place, store = watched(repository.location)
    pages = Pages(Repository.open(place), FileLinks())
    store.requests.clear()
    pages.stream("s7")
    assert [path for _, path in store.requests if re.search(r"/backups/s\d", path) and "/backups/s7" not in path] == []
    pages.streams()  # the control
    assert [path for _, path in store.requests if "/backups/s8/" in path]


def test_300_streams_are_made_in_less_than_a_second() -> None:
    rows = [StreamRow.of(row(name=f"s{n}", checkpoint=f"/c/{n}", problems=["x"] * (n % 3)), NOW) for n in range(300)]
    head = Head(FileLinks(), "s3://backups", NOW)
    streams_page(head, rows)  # compiles the template
    taken = []
    for _ in range(3):  # the shortest: whatever else the machine does can only add to it
        begun = time.thread_time()
        page = streams_page(head, rows)
        taken.append(time.thread_time() - begun)
    assert min(taken) < 1.0
    assert page.count("<tr>") == 301
