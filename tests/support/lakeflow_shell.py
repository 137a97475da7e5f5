"""``airflow-ckpt`` against a workspace, as from a shell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_ckpt_provider.cli.databricks_client import DatabricksClient
from airflow_ckpt_provider.lakeflow import blocking_run
from airflow_ckpt_provider.lakeflow.starting import RetryPolicy
from tests.fake_databricks import TOKEN, FakeWorkspace


@pytest.fixture
def shell(workspace: FakeWorkspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The unified configuration in the environment, and a home of its own; nothing waits longer than milliseconds."""
    for name in [name for name in os.environ if name.startswith("DATABRICKS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DATABRICKS_HOST", workspace.url)
    monkeypatch.setenv("DATABRICKS_TOKEN", TOKEN)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = DatabricksClient.__init__
    monkeypatch.setattr(
        DatabricksClient,
        "__init__",
        lambda self, *args, **more: before(self, *args, **{**more, "sleep": lambda _: None}),
    )
    policy = RetryPolicy(settle=0.02, interval=0.01, now=lambda: workspace.clock.now().timestamp())
    monkeypatch.setattr(blocking_run, "RetryPolicy", lambda: policy)
    monkeypatch.setattr(
        blocking_run.BlockingRun.__init__,
        "__kwdefaults__",
        {
            **(blocking_run.BlockingRun.__init__.__kwdefaults__ or {}),
            "follow_up_within": 0.05,
        },
    )
    return tmp_path
