"""A job's run shows whether the query that it runs has ended."""

from __future__ import annotations

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.databricks_run_ended import DatabricksRunEnded
from tests.fake_databricks import FakeWorkspace, samples


def test_while_it_runs_and_when_it_has_ended(workspace: FakeWorkspace) -> None:
    pipeline = samples.customers(workspace)
    job = workspace.jobs.add("nightly", pipeline.pipeline_id)
    run_id = workspace.jobs.run_now({"job_id": job.job_id})["run_id"]
    probe = DatabricksRunEnded(run_id)
    with pytest.raises(RefusedError, match=rf"Databricks run {run_id} is (PENDING|RUNNING)"):
        probe.ended()
    pipeline.advance()
    assert probe.ended() == f"Databricks run {run_id} is TERMINATED"


def test_a_run_that_is_not_there(workspace: FakeWorkspace) -> None:
    with pytest.raises(RefusedError, match="run 7"):
        DatabricksRunEnded(7).ended()


def test_a_workspace_out_of_reach(workspace: FakeWorkspace) -> None:
    workspace.fault("GET", r".*", count=None, status=503)
    assert DatabricksRunEnded(7).ended() is None
