"""``make contract``: the way to a workspace that is reached over HTTP with the user's own login, tried on the fake one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.recording import Recording
from tests.fake_databricks import TOKEN, FakeWorkspace

ROOT = Path(__file__).parents[2]


def contract(workspace: FakeWorkspace, recording: Path) -> subprocess.CompletedProcess[str]:
    """What the target of the Makefile runs."""
    asked = {
        "CONTRACT_HOST": workspace.url,
        "CONTRACT_PIPELINE": "contract_trial",
        "CONTRACT_SCHEMA": "",
        "CONTRACT_WAREHOUSE": "",
        "CONTRACT_INTERVAL": "0.001",
        "CONTRACT_RECORDING": str(recording),
        "DATABRICKS_TOKEN": TOKEN,
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract/test_workspace.py"]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **asked}, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_it_makes_and_removes_its_pipeline(tmp_path: Path) -> None:
    with FakeWorkspace() as workspace:
        ran = contract(workspace, tmp_path / "recording.jsonl")
        assert ran.returncode == 0, ran.stdout
        assert [pipeline.deleted for pipeline in workspace.pipelines.values()] == [True]
        assert workspace.files == {}
        assert not workspace.tables.exists("main.default.contract_trial_source")
        found = Recording.load(tmp_path / "recording.jsonl")
        assert found.findings["flow name"] == "qualified"
        assert len(found.lines) > 100
        # A pipeline that is somebody's is left alone.
        theirs = workspace.add_pipeline("contract_trial")
        requests = len(workspace.requests)
        ran = contract(workspace, tmp_path / "again.jsonl")
        assert ran.returncode != 0
        assert "there is a pipeline contract_trial already" in ran.stdout
        assert not theirs.deleted
        assert {request.method for request in workspace.requests[requests:]} == {"GET"}


def test_without_a_host_nothing_is_asked() -> None:
    ran = subprocess.run(["make", "contract"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, "give HOST=" in ran.stdout + ran.stderr) == (2, True), ran.stdout + ran.stderr
