"""The page as a person sees it: in Airflow's frame, from a stream to a filled form, a run of the DAG, and its plan.

Makes the pictures of ``docs/howto/page.md`` with ``PICTURES=docs/images``.
"""

from __future__ import annotations

import tests.support.throwaway_airflow  # isort: skip  # noqa: F401

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import hold, note_verification
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.fleet.discovery import discover
from airflow_ckpt_provider.fleet.fleet import inspect_fleet
from airflow_ckpt_provider.fleet.report import keep_report
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.chromium import chromium, picture
from tests.support.one_checkpoint import NEWEST, unpack
from tests.support.real_airflow import RealAirflow

pytestmark = [pytest.mark.browser, pytest.mark.airflow, pytest.mark.timeout(1800)]

DAGS = Path(__file__).parents[2] / "dags"
#: A busy machine takes minutes to start Airflow; nothing is waited for longer than it takes.
_WITHIN = 900.0
_STREAMS = 299


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A checkpoint with three backups, and a report of it and 299 other streams."""
    # A short name, for the pictures.
    with TemporaryDirectory(prefix="lake-") as directory:
        yield _filled(Path(directory))


def _filled(place: Path) -> Path:
    checkpoint = unpack(place / "checkpoints" / "orders")
    repository = Repository.open_or_create(open_location(str(place / "backups")))
    _spread(checkpoint)
    reasons = {1: "nightly", 3: "before 2.7", NEWEST: "nightly"}
    made = [_backed_up(checkpoint, repository, newest, reason) for newest, reason in reasons.items()]
    hold(repository, made[1], reason="until 2.7 has run a week")
    note_verification(repository, verify_backup(repository, made[0], read_data=ReadData.parse("all")))
    fleet = inspect_fleet(discover([open_location(str(place / "checkpoints"))]), repository)
    keep_report(repository, fleet, writer="fleet.report")
    now = datetime.now(UTC)
    # As a guard with a broker would have found it.
    (report,) = (place / "backups" / "reports").iterdir()
    told = json.loads(report.read_text())
    told["streams"][0]["time_to_loss"] = {"seconds": 14 * 3600.0, "known": True, "verdict": "SAFE", "reasons": []}
    report.write_text(json.dumps(told))
    rows = [_row(number, now) for number in range(_STREAMS)]
    for row in rows:
        _with_backup(repository, made[0], row)
    document = {"format": "airflow-ckpt-fleet-report", "version": 1, "writer": "others", "looked_at": now.isoformat()}
    repository.location.replace("reports/others.json", json.dumps({**document, "streams": rows}).encode())
    return place


def _with_backup(repository: Repository, like: Manifest, row: dict[str, Any]) -> None:
    """Write the manifest of the backup that a row names, and the note that it was verified: the page reads both."""
    name, backup_id = row["name"], row["backup"]["backup_id"]
    made = replace(like, name=name, backup_id=backup_id, checkpoint=row["checkpoint"], files=())
    repository.location.create(made.path, made.to_document())
    repository.location.create(f"verified/{name}/{backup_id}/000001-contents.json", b"{}")


def _spread(checkpoint: Path) -> None:
    """Put the batches four hours apart: Spark wrote all of them within seconds."""
    now = datetime.now(UTC)
    for batch in range(NEWEST + 1):
        log = checkpoint / "offsets" / str(batch)
        at = int((now - timedelta(hours=4 * (NEWEST - batch), minutes=2)).timestamp() * 1000)
        log.write_text(re.sub(r'"batchTimestampMs":\d+', f'"batchTimestampMs":{at}', log.read_text(), count=1))
        (log.parent / f".{batch}.crc").unlink(missing_ok=True)


def _backed_up(checkpoint: Path, repository: Repository, newest: int, reason: str) -> Manifest:
    """Take the backup as when a batch was the newest."""
    later = [
        file
        for directory in ("offsets", "commits")
        for file in (checkpoint / directory).iterdir()
        if file.name.isdigit() and int(file.name) > newest
    ]
    for file in later:
        file.rename(file.with_name(f".{file.name}.later"))
    made = create_backup(Checkpoint.at(open_location(str(checkpoint))), repository, name="orders", reason=reason)
    for file in later:
        file.with_name(f".{file.name}.later").rename(file)
    assert made.manifest.batch_id == newest
    return made.manifest


def _row(number: int, now: datetime) -> dict[str, Any]:
    wrong = number % 40 == 7
    return {
        "name": f"team-{number % 9}-events-{number:03d}",
        "checkpoint": f"s3://lake/checkpoints/team-{number % 9}/events-{number:03d}",
        "state": "whole",
        "latest_committed": 1000 + number,
        "batch_time": (now - timedelta(seconds=number)).isoformat(),
        "gap": 14 if wrong else 1,
        "batches_behind": 3,
        "backup": {
            "backup_id": f"20261123T070000Z-b{number:06d}",
            "created": (now - timedelta(minutes=10 + number % 50)).isoformat(),
            "verified": "contents",
        },
        "time_to_loss": {"seconds": 3600.0 * (6 + number % 60), "known": True, "verdict": "SAFE", "reasons": []},
        "situation": {"kind": "untouched", "message": "", "commands": [], "plan_id": None},
        "problems": ["gap 14, more than 10"] if wrong else [],
    }


@pytest.fixture(scope="module")
def airflow(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealAirflow]:
    """A whole Airflow with the DAGs that the forms start, and the plugin in its folder of plugins."""
    home = tmp_path_factory.mktemp("airflow")
    for name in ("dags", "plugins"):
        (home / name).mkdir()
    for name in ("restore_checkpoint.py", "rewind_replay.py"):
        shutil.copy(DAGS / name, home / "dags")
    # By its entry point where the package was installed with one.
    (home / "plugins" / "page.py").write_text(
        "from airflow_ckpt_provider.plugins.page import CheckpointPagePlugin\n__all__ = ['CheckpointPagePlugin']\n"
    )
    airflow = RealAirflow(
        home, AIRFLOW__CORE__PLUGINS_FOLDER=str(home / "plugins"), AIRFLOW__CKPT__REPOSITORY=str(place / "backups")
    )
    try:
        airflow.wait_until_healthy(within=_WITHIN)
        for dag_id in ("restore_checkpoint", "rewind_replay"):
            airflow.wait_until(lambda: airflow.ask(f"dags/{dag_id}")["dag_id"], f"{dag_id} is known", within=_WITHIN)  # noqa: B023
        yield airflow
    finally:
        airflow.end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(params=["light", "dark"])
def page(browser: Any, airflow: RealAirflow, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A window in which somebody is logged in, and what went wrong in it."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, color_scheme=request.param)
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(f"{airflow.url}/")  # everybody is admin: this logs in
    page.wait_for_url("**/", wait_until="domcontentloaded")
    page.scheme = request.param
    yield page
    context.close()


def test_300_streams_then_one_then_a_form_then_its_plan(page: Any, airflow: RealAirflow, place: Path) -> None:
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(f"{airflow.url}/plugin/checkpoints")
    frame = page.frame_locator("iframe")
    frame.get_by_role("heading", name="Streams").wait_for()
    assert frame.locator("tbody tr").count() == _STREAMS + 1
    assert frame.locator("tbody tr").first.locator(".badge.problem").count() == 1  # problems come first
    picture(page, "page-streams")

    rows = frame.locator("tbody tr:visible")
    frame.get_by_label("Filter").fill("team-1- PROBLEM")
    frame.get_by_text(f"1 of {_STREAMS + 1} streams").wait_for()
    assert rows.count() == 1
    frame.get_by_label("Filter").fill("checkpoints/orders")
    frame.get_by_text(f"1 of {_STREAMS + 1} streams").wait_for()
    assert rows.locator("th a").inner_text() == "orders"
    frame.get_by_role("link", name="orders", exact=True).click()
    frame.get_by_role("heading", name="orders", exact=True).wait_for()
    backups = frame.locator("svg a[aria-label^='Restore ']")
    assert backups.count() == 3
    # By the keyboard: the points of the timeline are links.
    backups.last.focus()
    page.keyboard.press("Enter")
    form = frame.locator("form")
    form.wait_for()
    assert form.locator("[name=target]").input_value() == str(place / "checkpoints" / "orders")
    assert form.locator("[name=repository]").input_value() == str(place / "backups")
    assert form.locator("[name=mode]").input_value() == "plan"
    assert form.locator("[name=batch]").input_value() == str(NEWEST)
    page.set_viewport_size({"width": 1400, "height": 1500})
    frame.locator("svg").scroll_into_view_if_needed()
    picture(page, "page-stream")

    form.get_by_role("button").click()
    started = form.locator("[data-said] a")
    started.wait_for()
    run_id = started.inner_text()
    before = {
        path.relative_to(place): path.read_bytes() for path in (place / "checkpoints").rglob("*") if path.is_file()
    }
    ended = ("success", "failed")
    path = f"dags/restore_checkpoint/dagRuns/{run_id}"
    airflow.wait_until(lambda: airflow.ask(path)["state"] in ended, "the plan is made", within=_WITHIN)
    assert airflow.ask(path)["state"] == "success"
    assert airflow.task_states("restore_checkpoint", run_id)["plan"] == "success"
    # A plan changes nothing.
    after = {
        path.relative_to(place): path.read_bytes() for path in (place / "checkpoints").rglob("*") if path.is_file()
    }
    assert after == before
    # The link leads Airflow itself to the run, out of the frame.
    started.click()
    page.wait_for_url(f"**/dags/restore_checkpoint/runs/{run_id.replace(':', '%3A').replace('+', '%2B')}**")
    assert wrong == []


def test_a_point_of_the_batches_opens_a_form_for_a_rewind(page: Any, airflow: RealAirflow, place: Path) -> None:
    page.goto(f"{airflow.url}/ckpt/stream?name=orders")
    page.locator("svg a[aria-label^='Rewind to ']").first.click()
    assert page.locator("[name=checkpoint]").input_value() == str(place / "checkpoints" / "orders")
    assert page.locator("[name=to]").input_value() == "to_datetime"
    oldest = json.loads(next((place / "backups" / "reports").glob("fleet*")).read_text())["streams"][0]["oldest"]
    value = datetime.fromisoformat(page.locator("[name=value]").input_value())
    assert value == datetime.fromisoformat(oldest["batch_time"]).replace(microsecond=0)


def test_the_colours_can_be_read_and_nothing_is_blocked(page: Any, airflow: RealAirflow) -> None:
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"{airflow.url}/ckpt/stream?name=orders")
    back, text = (page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))
    dark = page.scheme == "dark"
    assert (_brightness(back) < 60) is dark
    assert (_brightness(text) > 180) is dark
    assert [each for each in said if "Content Security Policy" in each] == []


def _brightness(colour: str) -> float:
    parts = [float(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    return sum(parts) / 3
