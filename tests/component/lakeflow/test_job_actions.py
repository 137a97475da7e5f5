"""A stream that is a job of Databricks: started by a run, stopped by cancelling it; waited for here or in the triggerer."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_ckpt_provider.errors import WorkspaceError
from airflow_ckpt_provider.operators import job_actions
from airflow_ckpt_provider.operators.job_actions import Wait
from airflow_ckpt_provider.operators.stream_action import StreamActionOperator
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.triggers.stream_action import StreamActionTrigger
from tests.fake_databricks import Dataset, FakeWorkspace, Flow
from tests.fake_databricks.errors import FlowFailed
from tests.fake_databricks.pace import Pace
from tests.support.attempts import Task


@pytest.fixture(params=[False, True], ids=["on the worker", "deferred"])
def deferrable(request: pytest.FixtureRequest) -> bool:
    """Where the waits are."""
    return bool(request.param)


@pytest.fixture
def job(workspace: FakeWorkspace) -> Any:
    pipeline = workspace.add_pipeline("orders")
    return workspace.jobs.add("orders", pipeline.pipeline_id)


class Act(Protocol):
    """Run a task about a job to its end, through the triggerer where it defers."""

    def __call__(self, job: Any, action: str, *, timeout: float = 60.0, **more: Any) -> Task: ...


@pytest.fixture
def act(deferrable: bool) -> Act:
    def acted(job: Any, action: str, *, timeout: float = 60.0, **more: Any) -> Task:
        way: Any = {"databricks_job": {"job_id": job.job_id} | more}
        stream = Stream("orders", checkpoint="/orders", **{action: way})
        how: dict[str, Any] = {"deferrable": deferrable, "poll_interval": 0.01, "timeout": timeout}
        task = Task(lambda: StreamActionOperator(task_id="t", stream=stream, action=action, **how))
        assert task.attempt() == {"stream": "orders", "action": action, "way": "databricks_job"}
        return task

    return acted


def runs(workspace: FakeWorkspace, job: Any, *, active: bool) -> int:
    return len(workspace.jobs.list_runs(job.job_id, active).get("runs", []))


def test_a_start_returns_once_the_job_runs_and_a_stop_once_it_does_not(
    workspace: FakeWorkspace, job: Any, act: Act
) -> None:
    act(job, "start")
    assert runs(workspace, job, active=False) == 1
    act(job, "stop")
    assert runs(workspace, job, active=True) == 0
    act(job, "stop")  # fine where nothing runs


def run_of(workspace: FakeWorkspace, job: Any) -> dict[str, Any]:
    """The only run of a job."""
    (run,) = workspace.jobs.list_runs(job.job_id, False)["runs"]
    return dict(run["state"])


ENDING = [("deploy", {}), ("roll_back", {}), ("stop", {"do": "run"})]


@pytest.mark.parametrize(("action", "how"), ENDING)
def test_whatever_is_no_start_returns_once_its_run_has_succeeded(
    workspace: FakeWorkspace, job: Any, act: Act, action: str, how: dict[str, Any]
) -> None:
    """The new code was started while the job still put it in place."""
    act(job, action, **how)
    workspace.pipelines[job.pipeline_id].pace = Pace.by_hand()
    assert run_of(workspace, job)["result_state"] == "SUCCESS"


@pytest.mark.parametrize(("action", "how"), ENDING)
def test_whatever_is_no_start_fails_with_its_run(
    workspace: FakeWorkspace, act: Act, action: str, how: dict[str, Any]
) -> None:
    source = workspace.add_source("events", "kafka")
    error = FlowFailed("SOME_ERROR", "it ran for a moment")
    flow = Flow("orders", "orders", (source.name,), error=error)
    pipeline = workspace.add_pipeline("orders", datasets=[Dataset("orders")], flows=[flow])
    job = workspace.jobs.add("orders", pipeline.pipeline_id)
    with pytest.raises(WorkspaceError, match=rf"run \d+ of job {job.job_id} ended: FAILED"):
        act(job, action, **how)
    assert run_of(workspace, job)["result_state"] == "FAILED"


def test_a_run_that_does_not_end_is_named(workspace: FakeWorkspace, job: Any, act: Act) -> None:
    workspace.pipelines[job.pipeline_id].pace = Pace.by_hand()
    with pytest.raises(
        WorkspaceError, match=rf"waited 0.05 s for run \d+ of job {job.job_id} to end\nHINT: see there why"
    ):
        act(job, "deploy", timeout=0.05)


def test_a_start_that_is_repeated_starts_no_second_run(workspace: FakeWorkspace, job: Any, act: Act) -> None:
    act(job, "start")
    act(job, "start")
    assert runs(workspace, job, active=False) == 1


@pytest.mark.parametrize("action", ["start", "deploy"])
@pytest.mark.parametrize("fault", [{"status": 503}, {"cut": True}], ids=str)
def test_a_job_runs_once_though_the_answer_was_lost(
    workspace: FakeWorkspace, job: Any, act: Act, action: str, fault: dict[str, Any]
) -> None:
    """The hook sends the request again: two queries ran on one checkpoint."""
    workspace.fault("POST", "run-now$", took_effect=True, **fault)
    act(job, action)
    sent = [request.body for request in workspace.requests if request.path.endswith("run-now")]
    assert (len(sent), runs(workspace, job, active=False)) == (2, 1)
    assert sent[0] == sent[1]


@pytest.fixture
def always(workspace: FakeWorkspace, job: Any, act: Act) -> Any:
    """A job that runs continuously, and does."""
    job.continuous = {"task_retry_mode": "NEVER"}  # not paused, which is what it is without a word
    act(job, "start")
    assert runs(workspace, job, active=True) == 1
    return job


def test_a_continuous_job_is_paused_before_its_run_is_cancelled(
    workspace: FakeWorkspace, always: Any, act: Act
) -> None:
    asked = len(workspace.requests)
    act(always, "stop")
    changes = [
        request.path.rpartition("/2.2/")[2] for request in workspace.requests[asked:] if request.method == "POST"
    ]
    assert changes == ["jobs/update", "jobs/runs/cancel"]
    for _ in range(10):  # without the pause another run would be there by now
        assert runs(workspace, always, active=True) == 0
    act(always, "stop")  # fine where it is paused already
    assert always.continuous == {"task_retry_mode": "NEVER", "pause_status": "PAUSED"}


def test_a_continuous_job_is_resumed_and_starts_its_own_run(workspace: FakeWorkspace, always: Any, act: Act) -> None:
    act(always, "stop")
    act(always, "start")
    assert always.continuous["pause_status"] == "UNPAUSED"
    assert (runs(workspace, always, active=True), runs(workspace, always, active=False)) == (1, 2)
    act(always, "start")  # a retry finds the run of before
    assert runs(workspace, always, active=True) == 1


def test_a_continuous_job_whose_new_run_fails_is_an_error(workspace: FakeWorkspace, always: Any, act: Act) -> None:
    act(always, "stop")
    workspace.pipelines[always.pipeline_id].start({})  # busy: the run that the job starts fails
    with pytest.raises(WorkspaceError, match=rf"run \d+ of job {always.job_id} ended: FAILED"):
        act(always, "start")


def test_a_continuous_job_takes_no_parameters(workspace: FakeWorkspace, always: Any, act: Act) -> None:
    with pytest.raises(AirflowFailException, match="takes no parameters from outside\nHINT: remove `parameters`"):
        act(always, "start", parameters={"day": "monday"})


def test_a_continuous_job_can_only_be_started_and_stopped(workspace: FakeWorkspace, always: Any, act: Act) -> None:
    act(always, "stop")
    with pytest.raises(
        AirflowFailException, match="runs continuously: its run does not end, and deploy has to wait for that"
    ):
        act(always, "deploy")
    assert always.continuous["pause_status"] == "PAUSED"


def test_a_job_that_is_not_there_is_an_error(workspace: FakeWorkspace, job: Any, act: Act) -> None:
    with pytest.raises(Exception, match=r"4711"):
        act(job, "start", job_id=4711)


def test_only_a_wait_that_is_not_over_is_deferred(
    workspace: FakeWorkspace, job: Any, monkeypatch: pytest.MonkeyPatch, act: Act, deferrable: bool
) -> None:
    # The first look finds the run pending.
    assert act(job, "start").deferred == int(deferrable)
    assert act(job, "start").deferred == 0, "it runs"
    pipeline, jobs, asked = workspace.pipelines[job.pipeline_id], workspace.jobs, []
    pipeline.pace = Pace.by_hand()

    def takes_its_time(job_id: int | None, active_only: bool, *, listed: Any = jobs.list_runs) -> Any:
        if len(asked) == 1:
            asked.append(0)
        elif len(asked) == 2:  # the second look is the triggerer's, where the task is deferred
            cancel(asked[0])
            pipeline.pace = Pace.by_look()
        return listed(job_id, active_only)

    cancel = jobs.cancel
    monkeypatch.setattr(jobs, "cancel", lambda run_id: asked.append(run_id) or {} if not asked else {})
    monkeypatch.setattr(jobs, "list_runs", takes_its_time)
    assert act(job, "stop").deferred == int(deferrable)
    assert runs(workspace, job, active=True) == 0
    assert act(job, "stop").deferred == 0


def test_a_stop_cancels_a_run_that_was_begun_while_it_waited(
    workspace: FakeWorkspace, job: Any, monkeypatch: pytest.MonkeyPatch, act: Act
) -> None:
    act(job, "start")
    jobs, begun = workspace.jobs, []

    def then_another(run_id: int, *, cancel: Any = jobs.cancel) -> Any:
        done = cancel(run_id)
        if not begun:
            begun.append(jobs.run_now({"job_id": job.job_id}))
        return done

    monkeypatch.setattr(jobs, "cancel", then_another)
    act(job, "stop")
    assert len(begun) == 1
    assert runs(workspace, job, active=True) == 0


def test_a_wait_gives_up_and_names_what_it_waited_for(workspace: FakeWorkspace, job: Any, act: Act) -> None:
    act(job, "start")
    workspace.pipelines[job.pipeline_id].pace = Pace.by_hand()
    with pytest.raises(
        WorkspaceError, match=rf"waited 0.05 s for runs of job {job.job_id} to end\nHINT: see there why"
    ):
        act(job, "stop", timeout=0.05)


def fired(wait: Wait, *, seconds: float = 60.0) -> Any:
    """What the trigger of a wait says."""
    trigger = StreamActionTrigger(wait=wait.to_json(), end_time=time.time() + seconds, poll_interval=0.01)

    async def first() -> Any:
        async for event in trigger.run():
            return event.payload
        return None

    return asyncio.run(first())


def test_a_workspace_that_is_out_of_order_for_a_while_does_not_end_the_wait(
    workspace: FakeWorkspace, job: Any, monkeypatch: pytest.MonkeyPatch, act: Act
) -> None:
    act(job, "start")
    (run,) = workspace.jobs.list_runs(job.job_id, False)["runs"]
    wait = Wait("it", "run_started", "databricks_default", {"job_id": job.job_id, "run_id": run["run_id"]})
    looks = []

    def out_of_order(wait: Wait) -> bool:
        looks.append(wait)
        if len(looks) < 3:
            raise AirflowException("Response: password=hunter2, Status Code: 503")
        return True

    monkeypatch.setitem(job_actions._LOOKS, "run_started", out_of_order)
    assert fired(wait)["status"] == "done"
    looks.clear()
    given_up = fired(wait, seconds=0.0)  # one look, which fails
    assert given_up["status"] == "timeout"
    assert given_up["message"].startswith("it: AirflowException: Response: ")
    assert "503" in given_up["message"]
    assert "hunter2" not in given_up["message"]


def test_an_error_of_the_workspace_is_a_delay_on_a_worker_too(
    job: Any, monkeypatch: pytest.MonkeyPatch, act: Act, caplog: pytest.LogCaptureFixture
) -> None:
    """It was one in the triggerer, and failed a task that waited on its worker."""
    looks, has_started = [], job_actions._LOOKS["run_started"]

    def out_of_order(wait: Wait) -> bool:
        looks.append(wait)
        if len(looks) in (1, 3):
            raise ConnectionError("password=hunter2: reset by peer")
        return has_started(wait)

    monkeypatch.setitem(job_actions._LOOKS, "run_started", out_of_order)
    act(job, "start")
    assert len(looks) > 1
    assert "hunter2" not in caplog.text


def test_a_wait_gives_up_and_names_the_last_error(job: Any, monkeypatch: pytest.MonkeyPatch, act: Act) -> None:
    def out_of_order(wait: Wait) -> bool:
        raise ConnectionError("reset by peer")

    monkeypatch.setitem(job_actions._LOOKS, "run_started", out_of_order)
    said = (
        rf"waited 0.05 s for run \d+ of job {job.job_id} to start: ConnectionError: reset by peer\nHINT: see there why"
    )
    with pytest.raises(WorkspaceError, match=said):
        act(job, "start", timeout=0.05)


def test_the_trigger_says_that_the_run_will_never_start(workspace: FakeWorkspace, job: Any, act: Act) -> None:
    pipeline = workspace.pipelines[job.pipeline_id]
    pipeline.start({})  # busy: the run fails
    with pytest.raises(WorkspaceError, match=rf"run \d+ of job {job.job_id} ended: FAILED"):
        act(job, "start")
    (run,) = workspace.jobs.list_runs(job.job_id, False)["runs"]
    wait = Wait("it", "run_started", "databricks_default", {"job_id": job.job_id, "run_id": run["run_id"]})

    found = fired(wait)
    assert found["status"] == "failed"
    assert f"run {run['run_id']} of job {job.job_id} ended: FAILED" in found["message"]
    assert found["hint"] == "see the run in Databricks, then clear this task"
