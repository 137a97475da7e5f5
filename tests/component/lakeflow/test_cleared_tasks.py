"""A task that is cleared after its update has begun: no rows are lost, and none is read a second time under ``SAFE``."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.operators.pipeline_refresh import PipelineRefreshOperator
from tests.fake_databricks import WAREHOUSE, FakeWorkspace, FlowFailed, samples
from tests.fake_databricks.pipelines import Pipeline
from tests.fake_databricks.updates import Update
from tests.support.attempts import Task
from tests.support.lakeflow_resets import TABLE, ids

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
    result = task.attempt()
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
