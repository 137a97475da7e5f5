"""A task that is cleared after its update has begun: no rows are lost, and none is read a second time under ``SAFE``."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.operators.pipeline_refresh import PipelineRefreshOperator
from tests.fake_databricks import WAREHOUSE, FakeWorkspace, FlowFailed, samples
from tests.fake_databricks.pipelines import Pipeline
from tests.fake_databricks.updates import Update
from tests.support.attempts import Killed, Task
from tests.support.lakeflow_resets import ALL, FLOW, TABLE, ids, reset
from tests.support.lakeflow_resets import broken as broken

ROWS = sorted([*(f"c{n:03d}" for n in range(6)), *(f"old{n}" for n in range(3))])


@pytest.fixture
def customers(workspace: FakeWorkspace) -> Pipeline:
    """Three of the six files that the table was made of are gone."""
    found = samples.customers(workspace)
    workspace.sources["/landing/customers"].expire_before(3)
    return found


def refresh(pipeline: Pipeline, **fields: Any) -> Task:
    about: dict[str, Any] = {"pipeline_id": pipeline.pipeline_id, "full_refresh_selection": ["customers"]}
    about |= {"guard_report": {"verdict": "WILL_LOSE"}, "accept": "WILL_LOSE", "mode": "apply", "poll_interval": 0.001}
    about |= {"backup": "deep_clone", "warehouse_id": WAREHOUSE, "backfill": "merge", "keys": {TABLE: ["id"]}}
    return Task(lambda: PipelineRefreshOperator(task_id="refresh", **{**about, **fields}))


def attempts(task: Task) -> Any:
    """The worker dies at each write of its memory in turn, until an attempt ends."""
    left, deaths = 0, 0

    def kill() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    assert task.store
    task.store.before = kill
    while True:
        left = deaths
        try:
            return task.attempt()
        except Killed:
            deaths += 1
        finally:
            left = 1000


def ends(pipeline: Pipeline, how: str) -> None:
    """The next update is canceled by somebody, or fails, after it has emptied the table."""
    run = pipeline._run

    def fails(update: Update) -> None:
        pipeline._run = run  # type: ignore[method-assign]
        raise FlowFailed("SOME_ERROR", "[SOME_ERROR] the cluster was lost")

    if how == "canceled":
        pipeline.when["RUNNING"] = lambda p: p.stop()
    else:
        pipeline._run = fails  # type: ignore[method-assign]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("how", ["canceled", "failed"])
def test_an_emptied_table_is_filled_from_the_first_copy(
    workspace: FakeWorkspace, customers: Pipeline, how: str, times: int
) -> None:
    task, copies = refresh(customers, clean_up="drop_when_verified"), []
    for _ in range(times):
        ends(customers, how)
        with pytest.raises(AirflowFailException, match=r"Copies of the tables as they were before: main.*__ckpt_"):
            task.attempt()
        copies += [each["backup"] for each in task.pushed["return_value"]["backups"]]
        task.clear()
    assert ids(workspace) == []
    result = attempts(task)
    assert (ids(workspace), result["verification"][0]["ok"]) == (ROWS, True)
    assert {*copies, *result["dropped"]} == {copies[0]}
    assert "is not copied again" in " ".join(result["plan"]["warnings"])


def test_counts_that_did_not_agree(workspace: FakeWorkspace, customers: Pipeline) -> None:
    def doubled(_: Pipeline) -> None:
        workspace.tables.execute(f"INSERT INTO {TABLE} SELECT * FROM {TABLE} WHERE id = 'c004'")

    customers.when["COMPLETED"] = doubled
    task = refresh(customers, backfill_where={TABLE: "id <> 'c000'"})
    with pytest.raises(AirflowFailException, match="the counts do not agree"):
        task.attempt()
    task.make = refresh(customers).make  # what was left out is wanted now
    task.clear()
    task.attempt()
    assert ids(workspace) == ROWS


def test_what_others_wrote_since_is_not_emptied(workspace: FakeWorkspace, customers: Pipeline) -> None:
    task = refresh(customers)
    ends(customers, "canceled")
    with pytest.raises(AirflowFailException):
        task.attempt()
    customers.start({}, cause="USER_ACTION")
    customers.advance()
    before = ids(workspace)
    assert len(before) == 6
    for _ in range(2):
        task.clear()
        with pytest.raises(AirflowFailException, match=r"may have been emptied.*of others ran since: main.*__ckpt_"):
            task.attempt()
    assert ids(workspace) == before


def test_a_table_that_was_not_emptied_is_copied_again(workspace: FakeWorkspace, customers: Pipeline) -> None:
    task = refresh(customers)
    customers.when["INITIALIZING"] = lambda p: p.stop()
    with pytest.raises(AirflowFailException):
        task.attempt()
    workspace.tables.append(TABLE, [{"id": "theirs"}])
    customers.start({}, cause="USER_ACTION")
    customers.advance()
    task.clear()
    task.attempt()
    assert ids(workspace) == sorted([*ROWS, "theirs"])


@pytest.mark.parametrize("how", ["canceled", "failed in another flow", "not followed, and failed"])
def test_a_reset_that_may_have_been_done_is_unknown(workspace: FakeWorkspace, broken: Pipeline, how: str) -> None:
    run, options = broken._run, dict[str, Any]()

    def wrote(update: Update) -> None:
        run(update)
        broken._run = run  # type: ignore[method-assign]
        if how != "canceled":
            raise FlowFailed("SOME_ERROR", "[SOME_ERROR] another flow of the pipeline failed")
        broken.stop()

    broken._run = wrote  # type: ignore[method-assign]
    if how.startswith("not followed"):
        options = {"wait_for": None, "configuration_after": "keep"}
    task = Task(lambda: reset(broken, **options))
    if options:
        task.attempt()
        broken.advance()
    else:
        with pytest.raises(AirflowFailException):
            task.attempt()
    assert ids(workspace) == ALL
    for _ in range(2):
        task.clear()
        with pytest.raises(
            AirflowFailException, match=r"is UNKNOWN: before this task was cleared, update .* reset the flows"
        ):
            attempts(task)
    assert (ids(workspace), broken.flows[FLOW].resets) == (ALL, 1)
    options["accept"] = "UNKNOWN"
    task.clear()
    attempts(task)
    broken.advance()
    assert broken.flows[FLOW].resets == 2


def test_a_reset_that_was_stopped_before_it_reset_anything(workspace: FakeWorkspace, broken: Pipeline) -> None:
    broken.when["INITIALIZING"] = lambda p: p.stop()
    task = Task(lambda: reset(broken))
    with pytest.raises(AirflowFailException, match="clear this task: it plans again"):
        task.attempt()
    task.clear()
    assert task.attempt()["plan"]["verdict"] == "SAFE"
    assert ids(workspace) == ALL


def test_a_start_that_nobody_found_before_the_clear(workspace: FakeWorkspace, broken: Pipeline) -> None:
    task = Task(lambda: reset(broken))
    assert task.store

    def kill() -> None:
        if workspace.asked("POST", "/updates"):
            raise Killed

    task.store.before = kill
    with pytest.raises(Killed):
        task.attempt()
    task.store.before = lambda: None
    broken.advance()
    task.clear()
    with pytest.raises(AirflowFailException, match="is UNKNOWN: before this task was cleared"):
        task.attempt()
    assert ids(workspace) == ALL


def test_a_reset_that_nobody_waited_for_is_not_done_again(workspace: FakeWorkspace, broken: Pipeline) -> None:
    task = Task(lambda: reset(broken, wait_for=None, configuration_after="keep"))
    first = task.attempt()
    broken.advance()
    task.clear()
    assert task.attempt()["update_id"] == first["update_id"]
    assert ids(workspace) == ALL


def test_a_refresh_that_nobody_waited_for_keeps_its_copy(workspace: FakeWorkspace, customers: Pipeline) -> None:
    task = refresh(customers, backfill=None, wait_for=None)
    first = task.attempt()
    task.clear()
    assert task.attempt()["update_id"] == first["update_id"], "it runs"
    ends(customers, "canceled")
    customers.advance()
    task.clear()
    again = task.attempt()
    assert again["update_id"] != first["update_id"]
    assert again["backups"] == first["backups"]
    assert sorted(str(row["id"]) for row in workspace.rows(again["backups"][0]["backup"])) == ROWS
