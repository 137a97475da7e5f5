"""``airflow-ckpt`` against a workspace, as from a shell."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.cli.databricks_client import DatabricksClient
from airflow_ckpt_provider.lakeflow import blocking_run
from airflow_ckpt_provider.lakeflow.starting import RetryPolicy
from tests.fake_databricks import TOKEN, FakeWorkspace, samples
from tests.fake_databricks.pipelines import Pipeline
from tests.support.command_line import Finished, run

FLOW = samples.INCREMENTAL
AFTER = "2026-08-20T05:00:00Z"
POSITIONS = {
    FLOW: {
        "options": {"modifiedAfter": AFTER},
        "carried_by": {"modifiedAfter": "modifiedAfter"},
        "language": "python",
        "all_sources": True,
    }
}


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


@pytest.fixture
def pipeline(workspace: FakeWorkspace) -> Pipeline:
    made = samples.customers(workspace)
    samples.remove_drop_duplicates(made)
    samples.land(workspace.sources["/landing/customers"], 2)
    made.start({}, cause="USER_ACTION")
    made.advance()
    assert made.updates[-1].state == "FAILED"
    return made


def pipelines(*argv: object) -> Finished:
    quick = () if argv[0] in ("list", "flows") else ("--poll", "0.001")
    return run("pipelines", *argv, *quick)


def written(place: Path, content: Any, name: str = "positions.json") -> Path:
    file = place / name
    file.write_text(json.dumps(content))
    return file


def rows(workspace: FakeWorkspace) -> int:
    return len(workspace.rows("main.customers.customers"))
