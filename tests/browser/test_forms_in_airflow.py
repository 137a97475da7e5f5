"""A running stream in Airflow, as a person recovers it: from a point of its timeline to the approved restore; and all forms.

Makes a picture of ``docs/howto/page.md`` with ``PICTURES=docs/images``.
"""

from __future__ import annotations

import tests.support.throwaway_airflow  # isort: skip  # noqa: F401

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.opening import open_location
from dev.example_stream import ExampleStream, running_stream
from tests.support.chromium import chromium, picture
from tests.support.real_airflow import RealAirflow

pytestmark = [pytest.mark.browser, pytest.mark.airflow, pytest.mark.spark, pytest.mark.timeout(2400)]

DAGS = Path(__file__).parents[2] / "dags"
#: A busy machine takes minutes to start Airflow; nothing is waited for longer than it takes.
_WITHIN = 900.0
_ENDED = ("success", "failed")
#: Streams whose DAGs the declared one does not have: upgrades, of one stream and of an application.
_UPGRADED = """
from airflow_ckpt_provider.dag_factory.stream_dags import stream_dags
from airflow_ckpt_provider.streams.actions import Action
from airflow_ckpt_provider.streams.stream import Stream

do = Action(command="true")
commands = {"repository": "/backups", "stop": do, "start": do, "deploy": do, "roll_back": do}
stream_dags(
    [
        Stream("alone", checkpoint="/checkpoints/alone", **commands),
        Stream("one", checkpoint="/checkpoints/one", application="shop", **commands),
        Stream("two", checkpoint="/checkpoints/two", application="shop", **commands),
    ],
    prefix="upgraded",
)
"""


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExampleStream]:
    """The stream of ``make airflow``."""
    with running_stream(tmp_path_factory.mktemp("stream") / "example") as stream:
        yield stream


@pytest.fixture(scope="module")
def airflow(stream: ExampleStream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealAirflow]:
    """A whole Airflow with every example DAG and those of declared streams, all of them paused."""
    home = tmp_path_factory.mktemp("airflow")
    shutil.copytree(DAGS, home / "dags")
    (home / "dags" / "upgraded.py").write_text(_UPGRADED)
    (home / "plugins").mkdir()
    # By its entry point where the package was installed with one.
    (home / "plugins" / "page.py").write_text(
        "from airflow_ckpt_provider.plugins.page import CheckpointPagePlugin\n__all__ = ['CheckpointPagePlugin']\n"
    )
    paused = {"AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True"}
    plugins = {"AIRFLOW__CORE__PLUGINS_FOLDER": str(home / "plugins")}
    airflow = RealAirflow(home, **stream.variables, **paused, **plugins)
    try:
        airflow.wait_until_healthy(within=_WITHIN)
        expected = {"ckpt_restore", "upgraded_upgrade_shop", *(path.stem for path in DAGS.glob("*.py"))}
        airflow.wait_until(lambda: expected <= dag_ids(airflow), "the DAGs are known", within=_WITHIN)
        yield airflow
    finally:
        airflow.end()


def dag_ids(airflow: RealAirflow) -> set[str]:
    return {dag["dag_id"] for dag in airflow.ask("dags?limit=200")["dags"]}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Any, airflow: RealAirflow) -> Iterator[Any]:
    """A window in which somebody is logged in."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(f"{airflow.url}/")  # everybody is admin: this logs in
    page.wait_for_url("**/", wait_until="domcontentloaded")
    page.scheme = "light"
    yield page
    context.close()


def committed(stream: ExampleStream) -> int:
    """The newest committed batch; -1 before the first."""
    place = open_location(str(stream.checkpoint))
    if not (stream.checkpoint / "metadata").exists():
        return -1
    latest = Checkpoint.at(place).progress().latest_committed
    return -1 if latest is None else latest


def form_of(page: Any, airflow: RealAirflow, dag_id: str) -> Any:
    """Airflow's own form of a DAG, opened."""
    page.goto(f"{airflow.url}/dags/{dag_id}")
    page.get_by_role("button", name="Trigger").first.click()
    form = page.get_by_role("dialog")
    form.get_by_role("button", name="Trigger", exact=True).wait_for()
    return form


def submitted(page: Any, form: Any) -> Any:
    """Click on Trigger, again while Airflow's SQLite is locked by its scheduler; return the answer."""
    while True:
        # The page around the form asks for lists by POST too.
        with page.expect_response(
            lambda answer: answer.request.method == "POST" and answer.url.endswith("/dagRuns")
        ) as answer:
            form.get_by_role("button", name="Trigger", exact=True).click()
        if answer.value.status != 500 or "Database error" not in answer.value.text():
            assert answer.value.status == 200, (page.url, answer.value.text())
            return answer.value


def run_now(page: Any, airflow: RealAirflow, dag_id: str) -> str:
    """Trigger a DAG by its form, and wait until its run has succeeded."""
    form = form_of(page, airflow, dag_id)
    run_id: str = submitted(page, form).json()["dag_run_id"]
    ended(airflow, dag_id, run_id)
    return run_id


def ended(airflow: RealAirflow, dag_id: str, run_id: str) -> None:
    path = f"dags/{dag_id}/dagRuns/{run_id}"
    airflow.wait_until(lambda: airflow.ask(path)["state"] in _ENDED, f"{dag_id} has ended", within=_WITHIN)
    assert airflow.ask(path)["state"] == "success", airflow.task_states(dag_id, run_id)


def test_a_running_stream_is_restored_from_its_timeline(page: Any, airflow: RealAirflow, stream: ExampleStream) -> None:
    airflow.wait_until(lambda: committed(stream) >= 1, "the stream runs", within=_WITHIN)
    run_now(page, airflow, "ckpt_backup_hourly")
    run_now(page, airflow, "ckpt_report")

    page.goto(f"{airflow.url}/plugin/checkpoints")
    frame = page.frame_locator("iframe")
    frame.get_by_role("link", name="orders", exact=True).click()
    frame.locator("svg a[aria-label^='Restore ']").last.click()
    form = frame.locator("form[data-dag=ckpt_restore]")
    form.wait_for()
    assert form.locator("[name=stream]").input_value() == "orders"
    manifest = stream.repository / "backups" / "orders" / f"{form.locator('[name=backup_id]').input_value()}.json"
    backed_up = json.loads(manifest.read_text())["batch_id"]
    assert form.locator("[name=batch]").input_value() == str(backed_up)
    airflow.wait_until(lambda: committed(stream) > backed_up, "the stream is ahead of its backup", within=_WITHIN)
    assert form.locator("[name=approval]").is_checked()
    form.locator("[name=mode]").select_option("apply")
    form.locator("[name=accept]").fill("sink_duplicates")
    form.locator("[name=reason]").fill("a test")
    form.get_by_role("button").click()
    started = form.locator("[data-said] a")
    started.wait_for()
    run_id = started.inner_text()

    states = lambda: airflow.task_states("ckpt_restore", run_id)  # noqa: E731
    airflow.wait_until(
        lambda: states().get("approve") == "awaiting_input" or "failed" in states().values(),
        "somebody is asked",
        within=_WITHIN,
    )
    assert states()["plan"] == "success", states()
    assert committed(stream) > backed_up, "nothing is changed before the approval"
    assert not stream.stopped.exists()
    page.goto(f"{airflow.url}/dags/ckpt_restore/runs/{run_id}/tasks/approve/required_actions")
    approve = page.get_by_role("button", name="Approve", exact=True)
    approve.wait_for()
    picture(page, "restore-approval")
    approve.click()
    ended(airflow, "ckpt_restore", run_id)
    assert {states()[task] for task in ("plan", "approve", "stop", "restore", "start")} == {"success"}

    (record,) = (stream.repository / "audit").rglob("*.json")
    assert "a test" in record.read_text()
    # The stream runs on from there: it commits the batches after the backup again.
    assert not stream.stopped.exists()
    airflow.wait_until(lambda: committed(stream) > backed_up, "the stream runs again", within=_WITHIN)
    page.goto(f"{airflow.url}/ckpt/stream?name=orders")
    page.locator("svg a[href*='change']").first.wait_for()
    # The extra link of the task leads to the change, in Airflow's frame.
    links = airflow.ask(f"dags/ckpt_restore/dagRuns/{run_id}/taskInstances/restore/links")["extra_links"]
    page.goto(f"{airflow.url}{links['Checkpoints']}")
    page.frame_locator("iframe").get_by_role("heading", name="restore ").wait_for()


def test_every_form_starts_its_dag_or_marks_the_fields_that_are_missing(page: Any, airflow: RealAirflow) -> None:
    """From an empty form. The DAGs stay paused: that the run is accepted is enough."""
    page.set_viewport_size({"width": 1400, "height": 2400})
    marked = {}
    for dag_id in sorted(dag_ids(airflow)):
        form = form_of(page, airflow, dag_id)
        trigger = form.get_by_role("button", name="Trigger", exact=True)
        # It is grey for a moment while the form is made.
        missing = form.get_by_text("This field is required")
        trigger.and_(page.locator(":enabled")).or_(missing.first).first.wait_for()
        marked[dag_id] = missing.count()
        if marked[dag_id]:
            assert trigger.is_disabled()
            for left in reversed(range(marked[dag_id])):
                field = form.locator("[aria-invalid=true]:visible").first
                if field.get_attribute("role") == "combobox":
                    field.press("ArrowDown")
                    field.press("Enter")
                else:
                    field.fill("s3://lake/checkpoints/orders")
                missing.nth(left).wait_for(state="detached")
        if form.get_by_text("on trigger").count():
            form.get_by_text("on trigger").click()  # it is paused: leave it so
        submitted(page, form)
    fields = {"restore_checkpoint": 2, "rewind_replay": 1, "rewind_chain": 1, "upgraded_upgrade": 1, "ckpt_restore": 0}
    assert {dag_id: marked[dag_id] for dag_id in fields} == fields
