"""A stream that is a job of Databricks: started by a run, stopped by cancelling it."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.errors import WorkspaceError
from airflow_ckpt_provider.operators import job_actions
from airflow_ckpt_provider.operators.stream_action import StreamActionOperator
from airflow_ckpt_provider.streams.stream import Stream
from tests.fake_databricks import FakeWorkspace


@pytest.fixture
def job(workspace: FakeWorkspace, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(job_actions, "_POLL_SECONDS", 0.01)
    pipeline = workspace.add_pipeline("orders")
    return workspace.jobs.add("orders", pipeline.pipeline_id)


def act(job: Any, action: str, **more: Any) -> None:
    way = {"databricks_job": {"job_id": job.job_id} | more}
    stream = Stream("orders", checkpoint="/orders", stop=way, start=way)  # type: ignore[arg-type]
    StreamActionOperator(task_id="t", stream=stream, action=action).execute({})  # type: ignore[typeddict-item]


def runs(workspace: FakeWorkspace, job: Any, *, active: bool) -> int:
    return len(workspace.jobs.list_runs(job.job_id, active).get("runs", []))


def test_a_start_returns_once_the_job_runs_and_a_stop_once_it_does_not(workspace: FakeWorkspace, job: Any) -> None:
    act(job, "start")
    assert runs(workspace, job, active=False) == 1
    act(job, "stop")
    assert runs(workspace, job, active=True) == 0
    act(job, "stop")  # fine where nothing runs


def test_a_start_that_is_repeated_starts_no_second_run(workspace: FakeWorkspace, job: Any) -> None:
    act(job, "start")
    act(job, "start")
    assert runs(workspace, job, active=False) == 1


@pytest.fixture
def always(workspace: FakeWorkspace, job: Any) -> Any:
    """A job that runs continuously, and does."""
    job.continuous = {"task_retry_mode": "NEVER"}  # not paused, which is what it is without a word
    act(job, "start")
    assert runs(workspace, job, active=True) == 1
    return job


def test_a_continuous_job_is_paused_before_its_run_is_cancelled(workspace: FakeWorkspace, always: Any) -> None:
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


def test_a_continuous_job_is_resumed_and_starts_its_own_run(workspace: FakeWorkspace, always: Any) -> None:
    act(always, "stop")
    act(always, "start")
    assert always.continuous["pause_status"] == "UNPAUSED"
    assert (runs(workspace, always, active=True), runs(workspace, always, active=False)) == (1, 2)
    act(always, "start")  # a retry finds the run of before
    assert runs(workspace, always, active=True) == 1


def test_a_continuous_job_whose_new_run_fails_is_an_error(workspace: FakeWorkspace, always: Any) -> None:
    act(always, "stop")
    workspace.pipelines[always.pipeline_id].start({})  # busy: the run that the job starts fails
    with pytest.raises(WorkspaceError, match=rf"run \d+ of job {always.job_id} ended: FAILED"):
        act(always, "start")


def test_a_continuous_job_takes_no_parameters(workspace: FakeWorkspace, always: Any) -> None:
    with pytest.raises(AirflowFailException, match="takes no parameters from outside\nHINT: remove `parameters`"):
        act(always, "start", parameters={"day": "monday"})


def test_a_job_that_is_not_there_is_an_error(workspace: FakeWorkspace, job: Any) -> None:
    with pytest.raises(Exception, match=r"4711"):
        act(job, "start", job_id=4711)


def test_a_wait_gives_up_and_names_what_it_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_actions, "_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(job_actions, "_POLL_SECONDS", 0.0)
    with pytest.raises(WorkspaceError, match="waited 0 s for the end of days"):
        job_actions._wait("the end of days", lambda: False)
