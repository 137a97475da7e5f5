"""A wait for room may take hours: a plan is made and checked again after it, right before the start."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.operators.pipeline_refresh import PipelineRefreshOperator
from airflow_ckpt_provider.operators.pipeline_rewind import PipelineRewindOperator
from tests.fake_databricks import FakeWorkspace, Pace, samples
from tests.fake_databricks.pipelines import Pipeline
from tests.fake_databricks.updates import Update
from tests.support.attempts import Task
from tests.support.lakeflow_resets import ALL, FLOW, POSITION, either_way, ids, reset

BETA = {"pipelines.rewind.betaEnabled": "true"}


def change(kind: str, pipeline: Pipeline, **fields: Any) -> Any:
    """A reset, a refresh or a rewind."""
    if kind == "reset":
        return reset(pipeline, **fields)
    about = {"task_id": "t", "pipeline_id": pipeline.pipeline_id, "mode": "apply", "poll_interval": 0.001, **fields}
    if kind == "refresh":
        return PipelineRefreshOperator(
            full_refresh_selection=["customers"], guard_report={"verdict": "SAFE", "reasons": []}, **about
        )
    return PipelineRewindOperator(to=(pipeline.points.points[0].time + timedelta(milliseconds=1)).isoformat(), **about)


def edit(pipeline: Pipeline) -> None:
    """Somebody deploys other code."""
    pipeline.edit(
        {**pipeline.spec, "libraries": [{"file": {"path": "/pipelines/another_code.sql"}}], "catalog": "main"}
    )


@either_way
@pytest.mark.parametrize("kind", ["reset", "refresh", "rewind"])
def test_a_pipeline_that_is_edited_during_the_wait(workspace: FakeWorkspace, kind: str, deferrable: bool) -> None:
    pipeline = samples.customers(workspace, channel="PREVIEW", configuration=BETA)
    made: Callable[..., Any] = lambda **more: change(kind, pipeline, on_active_update="wait", **more)  # noqa: E731
    approved = Task(lambda: made(mode="plan")).attempt()["plan"]["fingerprint"]
    pipeline.start({}, cause="USER_ACTION")
    pipeline.when["RUNNING"] = edit
    accept = "UNKNOWN" if kind == "reset" else None
    with pytest.raises(AirflowFailException, match=rf"the plan that was shown \({approved}\) is not the one"):
        Task(lambda: made(fingerprint=approved, deferrable=deferrable, accept=accept)).attempt()
    assert len(workspace.asked("POST", "/updates")) == 0
    assert workspace.asked("PUT") == []


@either_way
@pytest.mark.parametrize("room", ["wait", "stop"])
def test_an_update_that_is_active_reads_on(workspace: FakeWorkspace, room: str, deferrable: bool) -> None:
    """It writes what lies after the position, and the reset would write that again."""
    pipeline = samples.customers(workspace)
    samples.land(workspace.sources["/landing/customers"], 2)
    active, pipeline.pace = pipeline.start({}), Pace.by_hand()
    task = Task(lambda: reset(pipeline, on_active_update=room, deferrable=deferrable))
    with pytest.raises(AirflowFailException, match=f"UNKNOWN: update {active.update_id} is active"):
        task.attempt()
    assert (pipeline.flows[FLOW].resets, active.active) == (0, True)
    pipeline.advance()
    accepted = lambda: reset(pipeline, accept="UNKNOWN")  # noqa: E731
    pipeline.pace = Pace.by_look()
    Task(accepted, run_id="2").attempt()
    assert len(ids(workspace)) == len(ALL) + 2


def test_an_update_that_begins_after_the_plan(workspace: FakeWorkspace) -> None:
    """It begins right after the check that none is active."""
    pipeline = samples.customers(workspace)
    begun: list[Update] = []
    path = f"/pipelines/{pipeline.pipeline_id}$"
    workspace.fault("GET", path, nth=2, then=lambda: begun.append(pipeline.start({})))
    with pytest.raises(AirflowFailException) as refused:
        Task(lambda: reset(pipeline, on_active_update="wait")).attempt()
    assert f"UNKNOWN: update {begun[0].update_id} " in str(refused.value)
    assert (pipeline.flows[FLOW].resets, workspace.asked("PUT")) == (0, [])


def test_a_position_that_was_found_before_the_newest_update(workspace: FakeWorkspace) -> None:
    pipeline = samples.customers(workspace)
    position = {FLOW: {**POSITION[FLOW], "as_of": pipeline.updates[-1].update_id}}
    made = lambda **more: reset(pipeline, starting_positions=position, mode="plan", **more)  # noqa: E731
    first = Task(made).attempt()["plan"]
    pipeline.start({"validate_only": True})
    pipeline.advance()
    assert Task(made).attempt()["plan"] == first, "it has written nothing"
    newer = pipeline.start({})
    pipeline.advance()
    plan = Task(made).attempt()["plan"]
    assert (first["verdict"], plan["verdict"]) == ("SAFE", "UNKNOWN")
    assert plan["reasons"][0].startswith(f"update {newer.update_id} ran since the position was found")
    assert plan["fingerprint"] == first["fingerprint"], "an approval is of what the reset does"
