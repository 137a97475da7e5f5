"""A fake workspace that checks each answer against the vendor's documents, and its clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.providers.databricks.hooks.databricks import DatabricksHook
from databricks.sdk import WorkspaceClient
from databricks.sdk.service import catalog, jobs, pipelines, sql

from tests.fake_databricks import TOKEN, FakeWorkspace, Pipeline
from tests.fake_databricks.server import Request

CUSTOMERS = "main.customers.customers"


#: The dataclass of each answer.
CLASSES: list[tuple[str, str, Any]] = [
    ("POST", r"/pipelines/[^/]+/updates", pipelines.StartUpdateResponse),
    ("GET", r"/pipelines/[^/]+/updates/[^/]+", pipelines.GetUpdateResponse),
    ("GET", r"/pipelines/[^/]+/updates", pipelines.ListUpdatesResponse),
    ("GET", r"/pipelines/[^/]+/events", pipelines.ListPipelineEventsResponse),
    ("POST", r"/pipelines/[^/]+/stop", pipelines.StopPipelineResponse),
    ("GET", r"/pipelines/[^/]+", pipelines.GetPipelineResponse),
    ("GET", r"/pipelines", pipelines.ListPipelinesResponse),
    ("POST", r"/jobs/run-now", jobs.RunNowResponse),
    ("GET", r"/jobs/runs/get", jobs.Run),
    ("GET", r"/jobs/runs/list", jobs.ListRunsResponse),
    ("GET", r"/jobs/list", jobs.ListJobsResponse),
    ("GET", r"/sql/statements/[^/]+/result/chunks/\d+", sql.ResultData),
    ("POST", r"/sql/statements", sql.StatementResponse),
    ("GET", r"/sql/statements/[^/]+", sql.StatementResponse),
    ("GET", r"/unity-catalog/tables/[^/]+", catalog.TableInfo),
]


def check(request: Request) -> str:
    """That a dataclass of the vendor's reads the answer whole: what it does not know vanishes, a wrong word becomes None."""
    for method, path, kind in CLASSES:
        if method == request.method and re.fullmatch(r"/api/2\.\d" + path, request.path):
            known = dict(request.answer)
            if "events" in known:  # the interface sends details, which the dataclass has not
                known["events"] = [{k: v for k, v in e.items() if k != "details"} for e in known["events"]]
            assert kind.from_dict(known).as_dict() == known, request
            return path
    return ""


@pytest.fixture
def workspace() -> Iterator[FakeWorkspace]:
    """A workspace whose every answer is held against the vendor's dataclasses in the end."""
    with FakeWorkspace() as workspace:
        yield workspace
        for request in workspace.requests:
            if request.status == 200:
                check(request)


@pytest.fixture
def client(workspace: FakeWorkspace) -> WorkspaceClient:
    return WorkspaceClient(host=workspace.url, token=TOKEN)


@pytest.fixture
def hook(workspace: FakeWorkspace, monkeypatch: pytest.MonkeyPatch) -> DatabricksHook:
    monkeypatch.setenv("AIRFLOW_CONN_DATABRICKS_DEFAULT", workspace.airflow_connection())
    return DatabricksHook(retry_limit=2, retry_delay=0.01, retry_args=None, caller="Test")


def ended(workspace: FakeWorkspace, pipeline: Pipeline, **body: Any) -> str:
    update = pipeline.start(body)
    pipeline.advance()
    return update.state
