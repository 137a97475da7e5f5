"""A wait for room may take hours: a plan is made and checked again after it, right before the start."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.operators.pipeline_refresh import PipelineRefreshOperator
from airflow_ckpt_provider.operators.pipeline_rewind import PipelineRewindOperator
from tests.fake_databricks import FakeWorkspace, samples
from tests.fake_databricks.pipelines import Pipeline
from tests.support.attempts import Task
from tests.support.lakeflow_resets import either_way, reset

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
