"""Faults of the workspace and of the network, against every operator: what reads is repeated, what starts is started once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.errors import UnknownStartError, WorkspaceError
from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook
from airflow_ckpt_provider.operators.pipeline_refresh import PipelineRefreshOperator
from airflow_ckpt_provider.operators.pipeline_rewind import PipelineRewindOperator
from airflow_ckpt_provider.operators.pipeline_stop import PipelineStopOperator
from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from airflow_ckpt_provider.sensors.pipeline_update import PipelineUpdateSensor
from tests.fake_databricks import FakeWorkspace, samples
from tests.fake_databricks.pipelines import Pipeline
from tests.support.attempts import Task

FLOW = samples.INCREMENTAL
REWINDABLE = {"channel": "PREVIEW", "configuration": {"pipelines.rewind.betaEnabled": "true"}}


@dataclass(frozen=True)
class Case:
    """An operator, and how many updates it starts."""

    make: Callable[[Pipeline, bool], BaseOperator]
    starts: int


def _reset(pipeline: Pipeline, deferrable: bool) -> BaseOperator:
    return ResetCheckpointOperator(
        task_id="t",
        pipeline_id=pipeline.pipeline_id,
        flows=[FLOW],
        starting_positions={
            FLOW: {"options": {"modifiedAfter": "2026-08-20T05:00:00Z"}, "deployed": True, "all_sources": True}
        },
        configuration={"modifiedAfter": "2026-08-20T05:00:00Z"},
        mode="apply",
        poll_interval=0.001,
        deferrable=deferrable,
    )


def _refresh(pipeline: Pipeline, deferrable: bool) -> BaseOperator:
    return PipelineRefreshOperator(
        task_id="t",
        pipeline_id=pipeline.pipeline_id,
        full_refresh_selection=["customers"],
        guard_report={"verdict": "SAFE"},
        mode="apply",
        poll_interval=0.001,
        deferrable=deferrable,
    )


def _rewind(pipeline: Pipeline, deferrable: bool) -> BaseOperator:
    to = pipeline.points.points[0].time + timedelta(milliseconds=1)
    return PipelineRewindOperator(
        task_id="t",
        pipeline_id=pipeline.pipeline_id,
        to=to.isoformat(),
        mode="apply",
        poll_interval=0.001,
        deferrable=deferrable,
    )


CASES = {"reset": Case(_reset, 1), "refresh": Case(_refresh, 1), "rewind": Case(_rewind, 3)}
FAULTS: dict[str, dict[str, Any]] = {
    "throttled": {"status": 429, "retry_after": 1},
    "broken": {"status": 500},
    "unavailable": {"status": 503},
    "unavailable-but-done": {"status": 503, "took_effect": True},
    "cut": {"cut": True},
    "cut-but-done": {"cut": True, "took_effect": True},
}


@pytest.fixture
def pipeline(workspace: FakeWorkspace) -> Pipeline:
    return samples.customers(workspace, **REWINDABLE)


def _asked_for(pipeline: Pipeline) -> list[dict[str, Any]]:
    return [update.body for update in pipeline.updates[1:]]


#: The whole matrix is `make slow`'s; of each operator and each fault one runs every time.
MATRIX = [(operator, fault, deferrable) for operator in CASES for fault in FAULTS for deferrable in (False, True)]
ALWAYS = {
    *(("reset", fault, False) for fault in FAULTS),
    ("refresh", "cut-but-done", True),
    ("rewind", "broken", False),
}


@pytest.mark.parametrize(
    ("operator", "fault", "deferrable"),
    [pytest.param(*case, marks=() if case in ALWAYS else pytest.mark.slow) for case in MATRIX],
)
def test_one_start_whatever_happens_to_it(
    workspace: FakeWorkspace, pipeline: Pipeline, operator: str, fault: str, deferrable: bool
) -> None:
    case = CASES[operator]
    workspace.fault("POST", r"/updates$", **FAULTS[fault])
    result = Task(lambda: case.make(pipeline, deferrable)).attempt()
    assert result["state"] == "COMPLETED"
    assert len(_asked_for(pipeline)) == case.starts
    done = "took_effect" in FAULTS[fault]
    assert len(workspace.asked("POST", "/updates")) == case.starts + (not done)
    assert result["update_id"] == pipeline.updates[-1].update_id


@pytest.mark.parametrize("fault", ["throttled", "unavailable", "cut"])
@pytest.mark.parametrize(
    "operator", ["reset", *(pytest.param(each, marks=pytest.mark.slow) for each in ("refresh", "rewind"))]
)
def test_reads_are_repeated(workspace: FakeWorkspace, pipeline: Pipeline, operator: str, fault: str) -> None:
    for nth in (1, 2, 3, 5, 8):
        workspace.fault("GET", r".*", nth=nth, **FAULTS[fault])
    result = Task(lambda: CASES[operator].make(pipeline, False)).attempt()
    assert result["state"] == "COMPLETED"
    assert len(_asked_for(pipeline)) == CASES[operator].starts


@pytest.mark.parametrize("deferrable", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["waiting", "deferred"])
def test_a_start_that_never_gets_an_answer(workspace: FakeWorkspace, pipeline: Pipeline, deferrable: bool) -> None:
    workspace.fault("POST", r"/updates$", status=503, count=3)
    task = Task(lambda: _reset(pipeline, deferrable))
    with pytest.raises(UnknownStartError, match="UNKNOWN whether an update was started") as unknown:
        task.attempt()
    assert "the next attempt of this task looks for it" in str(unknown.value)
    assert len(workspace.asked("POST", "/updates")) == 3
    assert task.attempt()["state"] == "COMPLETED"
    assert pipeline.flows[FLOW].resets == 1


def test_a_slow_answer(workspace: FakeWorkspace, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    before = DatabricksPipelinesHook.__init__

    def hasty(self: DatabricksPipelinesHook, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **{**kwargs, "timeout_seconds": 0.3})  # type: ignore[arg-type]

    monkeypatch.setattr(DatabricksPipelinesHook, "__init__", hasty)
    workspace.fault("POST", r"/updates$", delay=0.6, took_effect=True)
    result = Task(lambda: _reset(pipeline, False)).attempt()
    assert (result["found"], result["state"]) == ("search", "COMPLETED")
    assert pipeline.flows[FLOW].resets == 1


def test_a_workspace_that_is_out_of_order_for_long(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    """The wait outlives more failures than one read is repeated for; the plan before does not."""
    task = Task(lambda: _reset(pipeline, False))
    workspace.fault("POST", r"/updates$", then=lambda: workspace.fault("GET", r".*", status=503, count=12))
    assert task.attempt()["state"] == "COMPLETED"
    workspace.fault("GET", r".*", status=503, count=12)
    with pytest.raises(WorkspaceError, match="failed 5 times"):
        Task(lambda: _reset(pipeline, False), run_id="manual__2").attempt()


@pytest.mark.parametrize("fault", ["throttled", "unavailable", "cut"])
@pytest.mark.parametrize("deferrable", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["waiting", "deferred"])
def test_stop_and_sensor(workspace: FakeWorkspace, pipeline: Pipeline, fault: str, deferrable: bool) -> None:
    about = {"task_id": "t", "pipeline_id": pipeline.pipeline_id, "poll_interval": 0.001, "deferrable": deferrable}
    update = pipeline.start({})
    workspace.fault("GET", r".*", count=2, **FAULTS[fault])
    result = Task(lambda: PipelineUpdateSensor(**about)).attempt()
    assert (result["update_id"], result["state"]) == (update.update_id, "COMPLETED")
    update = pipeline.start({})
    workspace.fault("POST", r"/stop$", **FAULTS[fault])
    result = Task(lambda: PipelineStopOperator(**about)).attempt()
    assert result == {"pipeline_id": pipeline.pipeline_id, "state": "IDLE", "stopped_update_id": update.update_id}
    assert update.state == "CANCELED"


def test_refused_for_good(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    pipeline.unknown_flows = "reject"
    task = Task(lambda: _reset(pipeline, False))
    workspace.fault("POST", r"/updates$", status=400)
    with pytest.raises(AirflowFailException, match=r"400.*\n?.*HINT: the workspace refuses the request as it is"):
        task.attempt()
    assert task.store
    assert "note" not in task.store.get("pipeline_update")["steps"]["reset"]
