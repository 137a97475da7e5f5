"""Fixtures of the pipelines' tests: a workspace that answers over HTTP, and stand-ins for runs of a task."""

from __future__ import annotations

import tests.support.throwaway_airflow  # isort: skip  # noqa: F401

from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_ckpt_provider.lakeflow.starting import RetryPolicy
from airflow_ckpt_provider.operators.pipeline_waiting import PipelineOperator
from airflow_ckpt_provider.sensors.pipeline_update import PipelineUpdateSensor
from tests.fake_databricks import FakeWorkspace
from tests.support.attempts import no_waits


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWorkspace]:
    """A workspace behind the connection ``databricks_default``; nothing waits longer than milliseconds."""
    with FakeWorkspace() as running:
        monkeypatch.setenv("AIRFLOW_CONN_DATABRICKS_DEFAULT", running.airflow_connection())
        policy = replace(RetryPolicy(), settle=0.02, interval=0.01, now=lambda: running.clock.now().timestamp())
        monkeypatch.setattr(PipelineOperator, "start_retry_policy", policy)
        monkeypatch.setattr(PipelineOperator, "ended_within", 60.0)  # on a busy machine too
        for waiting in (PipelineOperator, PipelineUpdateSensor):
            monkeypatch.setattr(waiting, "follow_up_within", 0.05)
        no_waits(monkeypatch)
        yield running
