"""DatabricksPipelinesHook: paging, filters, throttling, and what each answer of the workspace becomes."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from airflow_ckpt_provider.errors import (
    ActiveUpdateError,
    CkptError,
    MissingExtraError,
    NoSuchPipelineError,
    RefusedError,
    UnknownStartError,
    WorkspaceError,
    WorkspaceForbiddenError,
)
from airflow_ckpt_provider.hooks import databricks_pipelines
from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook
from airflow_ckpt_provider.lakeflow.workspace import Workspace
from airflow_ckpt_provider.operators.databricks_workspace import open_workspace
from tests.fake_databricks import WAREHOUSE, FakeWorkspace, samples
from tests.fake_databricks.pipelines import Pipeline


@pytest.fixture
def pipeline(workspace: FakeWorkspace) -> Pipeline:
    return samples.customers(workspace)


@pytest.fixture
def hook(workspace: FakeWorkspace) -> DatabricksPipelinesHook:
    return DatabricksPipelinesHook(caller="ATest")


def test_it_is_a_workspace(hook: DatabricksPipelinesHook) -> None:
    typed: Workspace = hook  # mypy says the rest
    assert typed


def test_updates_page_by_page(workspace: FakeWorkspace, pipeline: Pipeline, hook: DatabricksPipelinesHook) -> None:
    for _ in range(4):
        pipeline.start({"validate_only": True})
        pipeline.advance()
    workspace.requests.clear()
    found = list(hook.iter_updates(pipeline.pipeline_id, max_results=2))
    assert [update["update_id"] for update in found] == [update.update_id for update in reversed(pipeline.updates)]
    assert len(workspace.requests) == 3
    workspace.requests.clear()
    next(hook.iter_updates(pipeline.pipeline_id, max_results=2))
    assert len(workspace.requests) == 1
    assert workspace.requests[0].user_agent.endswith("operator/ATest")


def test_events_page_by_page_and_filtered(
    workspace: FakeWorkspace, pipeline: Pipeline, hook: DatabricksPipelinesHook
) -> None:
    samples.remove_drop_duplicates(pipeline)
    pipeline.start({})
    pipeline.advance()
    every = list(hook.iter_events(pipeline.pipeline_id, max_results=3))
    assert len(every) == len(pipeline.events.events)
    assert len({event["id"] for event in every}) == len(every)
    errors = list(hook.iter_events(pipeline.pipeline_id, filter="level='ERROR'", max_results=1))
    assert errors
    assert {event["level"] for event in errors} == {"ERROR"}


def test_async_twins_say_the_same(workspace: FakeWorkspace, pipeline: Pipeline, hook: DatabricksPipelinesHook) -> None:
    update_id = pipeline.updates[0].update_id

    async def ask() -> tuple[Any, Any]:
        async with DatabricksPipelinesHook() as asynchronous:
            return (
                await asynchronous.a_get_pipeline(pipeline.pipeline_id),
                await asynchronous.a_get_update(pipeline.pipeline_id, update_id),
            )

    # Some of it is the time of the answer.
    told, update = asyncio.run(ask())
    assert told["latest_updates"] == hook.get_pipeline(pipeline.pipeline_id)["latest_updates"]
    assert update == hook.get_update(pipeline.pipeline_id, update_id)


def test_retry_after_is_kept_to(
    workspace: FakeWorkspace, pipeline: Pipeline, hook: DatabricksPipelinesHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    workspace.fault("GET", r".*", status=429, retry_after=7)
    hook.get_pipeline(pipeline.pipeline_id)
    # The fixture makes a thousandth of it; see no_waits.
    assert waited == [pytest.approx(0.007)]
    monkeypatch.undo()


def test_a_thousand_years_are_not_waited_for() -> None:
    class Answer:
        headers = {"Retry-After": "31536000000"}  # noqa: RUF012

    class Attempt:
        def exception(self) -> Any:
            return type("Error", (Exception,), {"response": Answer()})()

    assert databricks_pipelines._retry_after(Attempt()) <= 300
    assert databricks_pipelines._retry_after(None) == 0


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ({"status": 400}, RefusedError, "change what the message names"),
        ({"status": 401}, WorkspaceForbiddenError, "wrong or expired"),
        ({"status": 403}, WorkspaceForbiddenError, "CAN RUN"),
        ({"status": 404}, NoSuchPipelineError, "check the id and the workspace"),
        ({"status": 409}, ActiveUpdateError, "on_active_update='wait'"),
        ({"status": 429}, UnknownStartError, "try again"),
        ({"status": 503}, UnknownStartError, "try again"),
        ({"cut": True}, UnknownStartError, "try again"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
def test_what_a_start_may_meet(
    workspace: FakeWorkspace,
    pipeline: Pipeline,
    hook: DatabricksPipelinesHook,
    fault: dict[str, Any],
    error: type[CkptError],
    words: str,
) -> None:
    workspace.fault("POST", r"/updates$", count=9, **fault)
    with pytest.raises(error) as raised:
        hook.start_update(pipeline.pipeline_id, {})
    assert type(raised.value) is error
    assert pipeline.pipeline_id in raised.value.message
    assert words in str(raised.value.hint)
    if error is UnknownStartError:
        assert "failed 1 times" in raised.value.message
    assert len(workspace.asked("POST", "/updates")) == 1  # Airflow's own hook sends it three times
    workspace.faults.clear()
    assert hook.get_pipeline(pipeline.pipeline_id)["state"] == "IDLE"


def test_the_conflict_names_the_update(
    workspace: FakeWorkspace, pipeline: Pipeline, hook: DatabricksPipelinesHook
) -> None:
    active = pipeline.start({})
    with pytest.raises(ActiveUpdateError, match=f"An active update {active.update_id} already exists") as conflict:
        hook.start_update(pipeline.pipeline_id, {})
    assert conflict.value.update_id == active.update_id


def test_reads_give_up_at_last(workspace: FakeWorkspace, pipeline: Pipeline, hook: DatabricksPipelinesHook) -> None:
    workspace.fault("GET", r".*", count=5, status=503)
    with pytest.raises(WorkspaceError, match="failed 5 times"):
        hook.get_pipeline(pipeline.pipeline_id)


def test_table_that_cannot_be_seen(workspace: FakeWorkspace, pipeline: Pipeline, hook: DatabricksPipelinesHook) -> None:
    assert (hook.get_table("main.customers.customers") or {})["table_type"] == "STREAMING_TABLE"
    assert hook.get_table("main.customers.nothing") is None
    workspace.fault("GET", r"/tables/", status=403)
    assert hook.get_table("main.customers.customers") is None


def test_statement(workspace: FakeWorkspace, pipeline: Pipeline, hook: DatabricksPipelinesHook) -> None:
    statement = hook.send_statement("SELECT count(*) AS n FROM `main`.`customers`.`customers`", WAREHOUSE)
    for _ in range(20):
        found = hook.get_statement(statement)
        if found["status"]["state"] == "SUCCEEDED":
            break
    assert found["result"]["data_array"] == [["9"]]


def test_address_of_an_update(workspace: FakeWorkspace, hook: DatabricksPipelinesHook) -> None:
    assert hook.page_url("p 1", "u") == f"{workspace.url}/#joblist/pipelines/p%201/updates/u"


def test_without_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "airflow_ckpt_provider.hooks.databricks_pipelines", None)
    with pytest.raises(MissingExtraError) as missing:
        open_workspace("databricks_default", caller="ATest")
    assert missing.value.hint == "pip install 'airflow-ckpt-provider[databricks]'"


@pytest.mark.slow  # loading the SDK takes seconds
def test_our_request_is_the_sdks(workspace: FakeWorkspace, pipeline: Pipeline, hook: DatabricksPipelinesHook) -> None:
    from databricks.sdk import WorkspaceClient
    from databricks.sdk.service.pipelines import RewindDatasetSpec, RewindSpec

    from airflow_ckpt_provider.lakeflow.request import StartRequest

    spec = {
        "rewind_timestamp": "2026-08-21T12:00:00.000Z",
        "dry_run": True,
        "datasets": [{"identifier": "a", "cascade": True, "reset_checkpoints": False}],
    }
    fields = {
        "reset_checkpoint_selection": ["f"],
        "refresh_selection": ["t"],
        "full_refresh_selection": ["u"],
        "parameters": {"a": "b"},
        "validate_only": True,
        "rewind_spec": spec,
    }
    hook.start_update(pipeline.pipeline_id, StartRequest.of(fields).body)
    pipeline.advance()
    datasets = [RewindDatasetSpec.from_dict(each) for each in spec["datasets"]]  # type: ignore[attr-defined]
    rewind = RewindSpec(datasets=datasets, dry_run=True, rewind_timestamp="2026-08-21T12:00:00.000Z")
    client = WorkspaceClient(host=workspace.url, token="dapi-test")
    client.pipelines.start_update(pipeline.pipeline_id, **{**fields, "rewind_spec": rewind})  # type: ignore[arg-type]
    ours, theirs = (request.body for request in workspace.asked("POST", "/updates"))
    assert ours == theirs


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        ("Sat, 21 Nov 2026 10:00:30 GMT", 30),
        ("Sat, 21 Nov 2026 09:00:00 GMT", 0),
        ("Sun, 21 Nov 2027 10:00:00 GMT", 300),
        ("-5", 0),
        ("soon", 0),
    ],
)
def test_retry_after_as_a_number_and_as_a_date(header: str, seconds: float) -> None:
    class Answered(Exception):
        headers: ClassVar[dict[str, str]] = {"Retry-After": header, "Date": "Sat, 21 Nov 2026 10:00:00 GMT"}

    class Attempt:
        def exception(self) -> Exception:
            return Answered()

    assert databricks_pipelines._retry_after(Attempt()) == seconds
