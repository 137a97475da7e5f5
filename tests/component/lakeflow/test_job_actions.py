"""A stream that is a job of Databricks: started by a run, stopped by cancelling it."""

from __future__ import annotations

from typing import Any

import pytest

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


def test_a_job_that_is_not_there_is_an_error(workspace: FakeWorkspace, job: Any) -> None:
    with pytest.raises(Exception, match=r"4711"):
        act(job, "start", job_id=4711)


def test_a_wait_gives_up_and_names_what_it_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_actions, "_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(job_actions, "_POLL_SECONDS", 0.0)
    with pytest.raises(WorkspaceError, match="waited 0 s for the end of days"):
        job_actions._wait("the end of days", lambda: False)
