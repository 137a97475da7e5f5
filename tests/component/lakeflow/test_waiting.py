"""PipelineUpdateSensor, PipelineStopOperator and the trigger between them."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout, AirflowSkipException

from airflow_ckpt_provider.errors import WorkspaceError
from airflow_ckpt_provider.lakeflow.following import Wait
from airflow_ckpt_provider.links.pipeline_update import PipelineUpdateLink
from airflow_ckpt_provider.operators.pipeline_stop import PipelineStopOperator
from airflow_ckpt_provider.sensors.pipeline_update import PipelineUpdateSensor
from airflow_ckpt_provider.triggers.pipeline_update import PipelineUpdateTrigger
from tests.fake_databricks import FakeWorkspace, Pace, samples
from tests.fake_databricks.pipelines import Pipeline
from tests.support.attempts import Task

either_way = pytest.mark.parametrize("deferrable", [False, True], ids=["waiting", "deferred"])
every_way = pytest.mark.parametrize(
    "how", [{}, {"deferrable": True}, {"mode": "reschedule"}], ids=["poke", "deferred", "again"]
)


@pytest.fixture
def pipeline(workspace: FakeWorkspace) -> Pipeline:
    return samples.customers(workspace)


def sensor(pipeline: Pipeline, **fields: Any) -> PipelineUpdateSensor:
    about = {"pipeline_id": pipeline.pipeline_id, "poll_interval": 0.001, "timeout": 30}
    return PipelineUpdateSensor(task_id="wait", **{**about, **fields})


def stop(pipeline: Pipeline, **fields: Any) -> PipelineStopOperator:
    about = {"pipeline_id": pipeline.pipeline_id, "poll_interval": 0.001}
    return PipelineStopOperator(task_id="stop", **{**about, **fields})


@either_way
def test_the_newest_update(workspace: FakeWorkspace, pipeline: Pipeline, deferrable: bool) -> None:
    update = pipeline.start({})
    task = Task(lambda: sensor(pipeline, deferrable=deferrable))
    result = task.attempt()
    assert (result["update_id"], result["state"]) == (update.update_id, "COMPLETED")
    assert result["update_ids"] == [update.update_id]
    assert task.pushed[PipelineUpdateLink.XCOM_KEY] == result["url"]
    assert bool(task.deferred) is deferrable


def test_one_that_has_ended_is_not_deferred(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    task = Task(lambda: sensor(pipeline, update_id=pipeline.updates[0].update_id, deferrable=True))
    assert task.attempt()["state"] == "COMPLETED"
    assert task.deferred == 0


@every_way
def test_failure(workspace: FakeWorkspace, pipeline: Pipeline, how: dict[str, Any]) -> None:
    samples.remove_drop_duplicates(pipeline)
    pipeline.start({})
    task = Task(lambda: sensor(pipeline, **how))
    with pytest.raises(AirflowFailException, match="STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"):
        task.attempt()
    assert task.pushed["return_value"]["state"] == "FAILED"
    assert task.store is not None
    assert task.store.kept == {}


@every_way
def test_it_stays_with_the_update_that_was_the_newest(
    workspace: FakeWorkspace, pipeline: Pipeline, how: dict[str, Any]
) -> None:
    """Another one that begins meanwhile is somebody else's."""
    first = pipeline.start({})
    another: list[str] = []
    pipeline.when["RUNNING"] = lambda p: another.append("due") if p.active is first else None

    def make() -> PipelineUpdateSensor:
        if another == ["due"] and first.state == "COMPLETED":
            another.append(pipeline.start({}).update_id)
        return sensor(pipeline, **how)

    result = Task(make).attempt()
    assert (result["update_id"], result["state"]) == (first.update_id, "COMPLETED")


@every_way
def test_a_retry_stays_with_it_too(workspace: FakeWorkspace, pipeline: Pipeline, how: dict[str, Any]) -> None:
    pipeline.pace = Pace.by_hand()
    first = pipeline.start({})
    task = Task(lambda: sensor(pipeline, **how))
    workspace.fault("GET", rf"/updates/{first.update_id}", nth=2, status=403)
    with pytest.raises(WorkspaceError, match="403"):
        task.attempt()
    pipeline.pace = Pace.by_look()
    pipeline.advance()
    pipeline.start({})
    assert task.attempt()["update_id"] == first.update_id


def test_an_airflow_that_keeps_nothing_cannot_look_again(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    pipeline.start({})
    with pytest.raises(AirflowFailException, match=r"mode is 'reschedule'.*\nHINT: give deferrable=True"):
        Task(lambda: sensor(pipeline, mode="reschedule"), store=False).attempt()


@either_way
def test_canceled(workspace: FakeWorkspace, pipeline: Pipeline, deferrable: bool) -> None:
    pipeline.start({})
    pipeline.when["RUNNING"] = lambda p: p.stop()
    with pytest.raises(AirflowFailException, match="is CANCELED\nsomebody stopped it"):
        Task(lambda: sensor(pipeline, deferrable=deferrable)).attempt()


@either_way
def test_too_late(workspace: FakeWorkspace, pipeline: Pipeline, deferrable: bool) -> None:
    pipeline.pace = Pace.by_hand()
    pipeline.start({})
    with pytest.raises(AirflowSensorTimeout, match=r"not within 0.05 s: update .* is QUEUED, waiting for COMPLETED"):
        Task(lambda: sensor(pipeline, timeout=0.05, deferrable=deferrable)).attempt()


def test_soft_fail(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    pipeline.pace = Pace.by_hand()
    pipeline.start({})
    with pytest.raises(AirflowSkipException):
        Task(lambda: sensor(pipeline, timeout=0.01, soft_fail=True)).attempt()


@either_way
def test_running_is_enough_for_a_continuous_one(workspace: FakeWorkspace, deferrable: bool) -> None:
    pipeline = samples.customers(workspace, continuous=True)
    assert Task(lambda: sensor(pipeline, wait_for="RUNNING", deferrable=deferrable)).attempt()["state"] == "RUNNING"


def test_nothing_to_wait_for(workspace: FakeWorkspace) -> None:
    with pytest.raises(AirflowFailException, match="has had no update yet"):
        Task(lambda: sensor(workspace.add_pipeline("new"))).attempt()
    with pytest.raises(AirflowFailException, match="no pipeline is named 'nobody'"):
        Task(lambda: PipelineUpdateSensor(task_id="t", pipeline_name="nobody")).attempt()


@either_way
def test_update_that_there_is_not(workspace: FakeWorkspace, pipeline: Pipeline, deferrable: bool) -> None:
    with pytest.raises(AirflowFailException, match="was not found"):
        Task(lambda: sensor(pipeline, update_id="u-404", deferrable=deferrable)).attempt()


def _events(trigger: PipelineUpdateTrigger) -> dict[str, Any]:
    async def first() -> Any:
        async for event in trigger.run():
            return event.payload

    payload: dict[str, Any] = asyncio.run(first())
    return payload


def test_trigger_says_what_it_met(
    workspace: FakeWorkspace, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    about: dict[str, Any] = {"databricks_conn_id": "databricks_default", "poll_interval": 0.001}
    about |= {"pipeline_id": pipeline.pipeline_id, "end_time": time.time() + 30}
    update = pipeline.start({})
    there, gone = Wait(update.update_id).to_json(), Wait("u-404").to_json()
    workspace.fault("GET", r".*", status=503, count=12)
    assert _events(PipelineUpdateTrigger(wait=there, **about))["status"] == "done"
    event = _events(PipelineUpdateTrigger(wait=gone, **about))
    assert (event["status"], "not found" in event["message"].lower()) == ("refused", True)
    monkeypatch.setenv("AIRFLOW_CONN_DATABRICKS_DEFAULT", workspace.airflow_connection("old"))
    workspace.expired.add("old")
    event = _events(PipelineUpdateTrigger(wait=there, **about))
    assert (event["status"], event["hint"]) == (
        "error",
        "the token of the connection is wrong or expired: give it a new one",
    )
    late = PipelineUpdateTrigger(wait=there, **{**about, "end_time": time.time() - 1})
    workspace.tokens.add("old")
    workspace.expired.clear()
    workspace.fault("GET", r".*", status=503, count=5)
    assert _events(late)["status"] == "timeout"


def test_trigger_survives_a_restart(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    update = pipeline.start({})
    trigger = PipelineUpdateTrigger(
        pipeline_id=pipeline.pipeline_id,
        databricks_conn_id="databricks_default",
        wait=Wait(update.update_id).to_json(),
        end_time=time.time() + 30,
        poll_interval=0.001,
    )
    _, kwargs = trigger.serialize()
    again = PipelineUpdateTrigger(**json.loads(json.dumps(kwargs)))
    assert again.serialize() == trigger.serialize()
    event = _events(again)
    assert event["status"] == "done"
    assert event["memory"][-1]["state"] == "COMPLETED"


def test_trigger_of_a_task_that_a_user_ends(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    pipeline.pace = Pace.by_hand()
    update = pipeline.start({})
    about: dict[str, Any] = {"databricks_conn_id": "databricks_default", "end_time": time.time() + 30}
    about |= {"pipeline_id": pipeline.pipeline_id}
    asyncio.run(PipelineUpdateTrigger(wait=Wait("another").to_json(), stop_when_killed=True, **about).on_kill())
    asyncio.run(PipelineUpdateTrigger(wait=Wait(update.update_id).to_json(), **about).on_kill())
    assert update.state == "QUEUED"
    asyncio.run(PipelineUpdateTrigger(wait=Wait(update.update_id).to_json(), stop_when_killed=True, **about).on_kill())
    assert update.state == "STOPPING"


@either_way
def test_stop(workspace: FakeWorkspace, pipeline: Pipeline, deferrable: bool) -> None:
    update = pipeline.start({})
    task = Task(lambda: stop(pipeline, deferrable=deferrable))
    result = task.attempt()
    assert result == {
        "pipeline_id": pipeline.pipeline_id,
        "state": "IDLE",
        "stopped_update_id": update.update_id,
    }
    assert update.state == "CANCELED"
    # A retry finds it at rest, and still says what was stopped.
    assert task.attempt() == result
    assert len(workspace.asked("POST", "/stop")) == 1


def test_stop_of_one_that_rests_sends_nothing(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    result = Task(lambda: stop(pipeline)).attempt()
    assert (result["state"], result["stopped_update_id"]) == ("IDLE", None)
    assert not workspace.asked("POST", "/stop")


def test_stop_that_takes_too_long(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    pipeline.pace = Pace.by_hand()
    pipeline.start({})
    with pytest.raises(AirflowException, match=r"not within 0.02 s: pipeline .* is STOPPING, update .* is active"):
        Task(lambda: stop(pipeline, timeout=0.02)).attempt()
