"""The fake workspace keeps the contract: the vendor's dataclasses, the vendor's client, Airflow's hook; and has the effects."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import requests
from airflow.providers.databricks.exceptions import DatabricksApiError
from airflow.providers.databricks.hooks.databricks import DatabricksHook
from databricks.sdk import WorkspaceClient
from databricks.sdk.errors import InvalidParameterValue, NotFound, PermissionDenied, ResourceConflict, Unauthenticated
from databricks.sdk.service import catalog, jobs, pipelines, sql

from tests.fake_databricks import TOKEN, WAREHOUSE, Dataset, FakeWorkspace, Flow, FlowFailed, Pace, Pipeline
from tests.fake_databricks.samples import (
    BEGIN,
    INCREMENTAL,
    INITIAL,
    customers,
    land,
    orders,
    remove_drop_duplicates,
)
from tests.fake_databricks.server import Request

CUSTOMERS = "main.customers.customers"
#: The dataclass of each answer.
_CLASSES: list[tuple[str, str, Any]] = [
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


def _check(request: Request) -> str:
    """That a dataclass of the vendor's reads the answer whole: what it does not know vanishes, a wrong word becomes None."""
    for method, path, kind in _CLASSES:
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
                _check(request)


@pytest.fixture
def client(workspace: FakeWorkspace) -> WorkspaceClient:
    return WorkspaceClient(host=workspace.url, token=TOKEN)


@pytest.fixture
def hook(workspace: FakeWorkspace, monkeypatch: pytest.MonkeyPatch) -> DatabricksHook:
    monkeypatch.setenv("AIRFLOW_CONN_DATABRICKS_DEFAULT", workspace.airflow_connection())
    return DatabricksHook(retry_limit=2, retry_delay=0.01, retry_args=None, caller="Test")


def ids(workspace: FakeWorkspace, table: str = CUSTOMERS) -> list[str]:
    return sorted(row["id"] for row in workspace.rows(table))


def ended(workspace: FakeWorkspace, pipeline: Pipeline, **body: Any) -> str:
    update = pipeline.start(body)
    pipeline.advance()
    return update.state


# The contract


def test_every_answer_is_one_of_the_vendors(workspace: FakeWorkspace, client: WorkspaceClient) -> None:
    pipeline = customers(workspace, update_retries=1)
    remove_drop_duplicates(pipeline)
    job = workspace.add_job("nightly", pipeline)
    started = client.pipelines.start_update(
        pipeline.pipeline_id, refresh_selection=["customers"], parameters={"modifiedAfter": "2026-08-20"}
    )
    states = [client.pipelines.get_update(pipeline.pipeline_id, started.update_id).update.state.value for _ in range(6)]
    way = ["CREATED", "WAITING_FOR_RESOURCES", "INITIALIZING", "SETTING_UP_TABLES", "RUNNING", "FAILED"]
    assert states == way
    assert client.pipelines.get(pipeline.pipeline_id).state.value in ("DEPLOYING", "STARTING")
    assert [u.cause.value for u in client.pipelines.list_updates(pipeline.pipeline_id).updates] == [
        "RETRY_ON_FAILURE",
        "API_CALL",
        "USER_ACTION",
    ]
    assert list(client.pipelines.list_pipeline_events(pipeline.pipeline_id, max_results=3))
    client.pipelines.stop(pipeline.pipeline_id)
    pipeline.advance()
    assert [p.name for p in client.pipelines.list_pipelines(filter="name LIKE 'cust%'")] == ["customers"]
    run = client.jobs.run_now(
        job.job_id, pipeline_params=jobs.PipelineParams(reset_checkpoint_selection=[INCREMENTAL])
    ).response
    assert client.jobs.get_run(run.run_id).state.life_cycle_state.value == "PENDING"
    assert [r.run_id for r in client.jobs.list_runs(job_id=job.job_id)] == [run.run_id]
    assert [j.job_id for j in client.jobs.list(name="nightly")] == [job.job_id]
    execute = client.statement_execution.execute_statement
    assert execute(f"SELECT * FROM {CUSTOMERS}", WAREHOUSE).status.state.value == "SUCCEEDED"
    assert execute("SELECT nonsense", WAREHOUSE).status.state.value == "FAILED"
    many = execute("SELECT range AS n FROM range(2500)", WAREHOUSE, wait_timeout="0s")
    assert many.status.state.value == "PENDING"
    found = [client.statement_execution.get_statement(many.statement_id) for _ in range(3)][-1]
    assert found.status.state.value == "SUCCEEDED"
    numbers = [row[0] for row in found.result.data_array]
    for chunk in range(1, found.manifest.total_chunk_count):
        more = client.statement_execution.get_statement_result_chunk_n(many.statement_id, chunk)
        numbers += [row[0] for row in more.data_array]
    assert numbers == [str(n) for n in range(2500)]
    assert client.tables.get(CUSTOMERS).table_type.value == "STREAMING_TABLE"
    answered = {_check(request) for request in workspace.requests if request.status == 200}
    assert {path for _, path, _ in _CLASSES} <= answered, "an answer that nothing here asked for"


def test_the_vendors_client_starts_and_meets_the_conflict(workspace: FakeWorkspace, client: WorkspaceClient) -> None:
    pipeline = customers(workspace)
    update = client.pipelines.start_update(pipeline.pipeline_id, reset_checkpoint_selection=[INCREMENTAL]).update_id
    with pytest.raises(ResourceConflict, match=f"An active update {update} already exists for pipeline"):
        client.pipelines.start_update(pipeline.pipeline_id)
    assert pipeline.active is not None
    assert pipeline.active.update_id == update, "the conflict has left the active update alone"
    assert workspace.asked("POST", "/updates")[0].body == {"reset_checkpoint_selection": [INCREMENTAL]}
    client.pipelines.stop(pipeline.pipeline_id)
    states = [client.pipelines.get(pipeline.pipeline_id).state.value for _ in range(2)]
    assert states == ["IDLE", "IDLE"]
    assert client.pipelines.get_update(pipeline.pipeline_id, update).update.state.value == "CANCELED"
    client.pipelines.stop(pipeline.pipeline_id)  # nothing is active: nothing happens
    assert client.pipelines.get(pipeline.pipeline_id).state.value == "IDLE"


def test_pages_of_updates(workspace: FakeWorkspace, client: WorkspaceClient) -> None:
    pipeline = customers(workspace)
    for _ in range(6):
        ended(workspace, pipeline)
    newest_first = [update.update_id for update in reversed(pipeline.updates)]
    found, token = [], None
    while True:
        page = client.pipelines.list_updates(pipeline.pipeline_id, max_results=3, page_token=token)
        found += [update.update_id for update in page.updates]
        if len(found) == 3:
            ended(workspace, pipeline)  # a new one does not shift the pages
        if not (token := page.next_page_token):
            break
    assert found == newest_first
    until = client.pipelines.list_updates(pipeline.pipeline_id, until_update_id=newest_first[2]).updates
    assert [update.update_id for update in until][1:] == newest_first[:3]
    assert all(update.config is None for update in until)


def test_pages_and_filters_of_events(workspace: FakeWorkspace, client: WorkspaceClient) -> None:
    pipeline = customers(workspace)
    remove_drop_duplicates(pipeline)
    ended(workspace, pipeline)

    def events(**asked: Any) -> list[Any]:
        return list(client.pipelines.list_pipeline_events(pipeline.pipeline_id, **asked))

    every = events(max_results=4)
    assert [e.id for e in every] == [e["id"] for e in reversed(pipeline.events.events)]
    assert [e.id for e in events(max_results=4, order_by=["timestamp asc"])] == [e.id for e in reversed(every)]
    errors = events(filter="level='ERROR'")
    assert [e.origin.flow_name for e in errors] == [None, INCREMENTAL]
    assert "NOT_MATCH_IN_STATE_METADATA" in errors[1].error.exceptions[0].message
    assert {e.level.value for e in events(filter="level in ('INFO', 'WARN')")} == {"INFO"}
    assert [e.id for e in events(filter=f"id='{every[3].id}'")] == [every[3].id]
    since = errors[1].timestamp
    assert [e.id for e in events(filter=f"timestamp >= '{since}' AND level = 'ERROR'")] == [e.id for e in errors]
    assert events(filter=f"timestamp < '{since}' AND level='ERROR'") == []
    for bad in ("update_id = 'x'", "level = 'LOUD'", "timestamp > 'yesterday'"):
        with pytest.raises(InvalidParameterValue):
            events(filter=bad)


# Who may, and what is missing


def test_authorization(workspace: FakeWorkspace, client: WorkspaceClient) -> None:
    pipeline = customers(workspace)
    assert requests.get(f"{workspace.url}/api/2.0/pipelines", timeout=5).status_code == 401
    with pytest.raises(PermissionDenied, match="Invalid access token"):
        WorkspaceClient(host=workspace.url, token="another").pipelines.get(pipeline.pipeline_id)
    workspace.expired.add(TOKEN)
    with pytest.raises(Unauthenticated, match="expired"):
        client.pipelines.get(pipeline.pipeline_id)
    workspace.expired.clear()
    workspace.read_only.add(pipeline.pipeline_id)
    assert client.pipelines.get(pipeline.pipeline_id).name == "customers"
    with pytest.raises(PermissionDenied, match="CAN RUN"):
        client.pipelines.start_update(pipeline.pipeline_id)
    last = workspace.requests[-1]
    assert (last.authorization, last.status) == (f"Bearer {TOKEN}", 403)
    assert "databricks-sdk-py" in last.user_agent


def test_what_is_not_there(workspace: FakeWorkspace, client: WorkspaceClient) -> None:
    with pytest.raises(NotFound, match=r"The specified pipeline p was not found\."):
        client.pipelines.get("p")
    pipeline = customers(workspace)
    with pytest.raises(NotFound):
        client.pipelines.get_update(pipeline.pipeline_id, "u")
    client.pipelines.delete(pipeline.pipeline_id)
    with pytest.raises(NotFound):
        client.pipelines.start_update(pipeline.pipeline_id)
    assert list(client.pipelines.list_pipelines()) == []
    url = f"{workspace.url}/api/2.0/pipelines/{pipeline.pipeline_id}/updates"
    reply = requests.post(url, data="{", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=5)
    assert (reply.status_code, reply.json()["error_code"]) == (400, "MALFORMED_REQUEST")


@pytest.mark.parametrize(
    "body",
    [
        {"full_refresh": "yes"},
        {"refresh_selection": "customers"},
        {"full_refresh": True, "refresh_selection": ["customers"]},
        {"rewind_spec": {"rewind_timestamp": "yesterday"}},
        {"rewind_spec": {"dry_run": True}},
    ],
)
def test_bodies_that_make_no_sense(workspace: FakeWorkspace, hook: DatabricksHook, body: dict[str, Any]) -> None:
    pipeline = customers(workspace)
    with pytest.raises(DatabricksApiError, match="INVALID_PARAMETER_VALUE") as error:
        hook._do_api_call(("POST", f"2.0/pipelines/{pipeline.pipeline_id}/updates"), body)
    assert error.value.http_status_code == 400
    assert len(pipeline.updates) == 1


def test_fields_of_tomorrow_pass_and_are_logged(workspace: FakeWorkspace, hook: DatabricksHook) -> None:
    pipeline = customers(workspace)
    body = {"refresh_selection_by_path": ["/x"], "replace_where_overrides": [{"flow_name": INITIAL}]}
    hook._do_api_call(("POST", f"2.0/pipelines/{pipeline.pipeline_id}/updates"), body)
    assert workspace.requests[-1].body == body


# Faults


def test_faults_one_by_one(workspace: FakeWorkspace, hook: DatabricksHook) -> None:
    pipeline = customers(workspace)
    start = ("POST", f"2.0/pipelines/{pipeline.pipeline_id}/updates")
    workspace.fault("POST", "/updates$", status=503, count=1)
    hook._do_api_call(start, {})
    assert [r.status for r in workspace.asked("POST", "/updates")] == [503, 200], "Airflow's hook posts again"
    pipeline.advance()
    # The answer is lost and the effect is not: posted again, the second request meets the first one's update.
    workspace.fault("POST", "/updates$", cut=True, took_effect=True)
    with pytest.raises(DatabricksApiError, match="active update"):
        hook._do_api_call(start, {})
    assert [r.status for r in workspace.asked("POST", "/updates")][2:] == [0, 409]
    pipeline.advance()
    workspace.fault("GET", f"/{pipeline.pipeline_id}$", status=429, retry_after=7, nth=2)
    url, headers = f"{workspace.url}/api/2.0/pipelines/{pipeline.pipeline_id}", {"Authorization": f"Bearer {TOKEN}"}
    replies = [requests.get(url, headers=headers, timeout=5) for _ in range(3)]
    assert [r.status_code for r in replies] == [200, 429, 200]
    assert replies[1].headers["Retry-After"] == "7"
    workspace.fault("GET", "/events$", cut=True)
    with pytest.raises(requests.ConnectionError):
        requests.get(url + "/events", headers=headers, timeout=5)


def test_a_slow_answer(workspace: FakeWorkspace) -> None:
    pipeline = customers(workspace)
    hold = threading.Event()
    workspace.fault("POST", "/updates$", hold=hold)
    url, headers = f"{workspace.url}/api/2.0/pipelines/{pipeline.pipeline_id}", {"Authorization": f"Bearer {TOKEN}"}
    with pytest.raises(requests.ReadTimeout):
        requests.post(url + "/updates", json={}, headers=headers, timeout=0.2)
    assert pipeline.active is not None, "nobody waited for the answer, and the update has begun"
    assert requests.get(url, headers=headers, timeout=5).json()["state"] == "DEPLOYING"
    hold.set()


def test_the_hook_awaits(workspace: FakeWorkspace, hook: DatabricksHook) -> None:
    pipeline = customers(workspace, pace=Pace.by_clock(0.01))
    update = pipeline.start({})

    async def follow() -> str:
        async with DatabricksHook(caller="Trigger") as hook:
            while True:
                found = await hook._a_do_api_call(
                    ("GET", f"2.0/pipelines/{pipeline.pipeline_id}/updates/{update.update_id}")
                )
                if (state := str(found["update"]["state"])) in ("COMPLETED", "FAILED"):
                    return state
                await asyncio.sleep(0.01)

    assert asyncio.run(asyncio.wait_for(follow(), 20)) == "COMPLETED"
    assert "Trigger" in workspace.requests[-1].user_agent


# What updates do


def test_the_rows_arrive_once(workspace: FakeWorkspace) -> None:
    pipeline = customers(workspace)
    assert ids(workspace) == [*(f"c{n:03d}" for n in range(6)), "old0", "old1", "old2"]
    land(workspace.sources["/landing/customers"], 2)
    assert ended(workspace, pipeline) == "COMPLETED"
    assert len(ids(workspace)) == len(set(ids(workspace))) == 11


@pytest.mark.parametrize(
    ("after", "doubled", "lost"),
    [
        ("2026-08-20T05:00:00Z", 0, 0),  # the newest file that was read, and every later one
        ("2026-08-20T02:00:00Z", 3, 0),
        ("2026-08-20T06:30:00Z", 0, 1),
        (None, 6, 0),
    ],
)
def test_a_reset_begins_where_the_code_says(
    workspace: FakeWorkspace, after: str | None, doubled: int, lost: int
) -> None:
    pipeline = customers(workspace)
    remove_drop_duplicates(pipeline)
    land(workspace.sources["/landing/customers"], 2)
    assert ended(workspace, pipeline) == "FAILED"
    pipeline.configuration.update({"modifiedAfter": after} if after else {})
    assert ended(workspace, pipeline, reset_checkpoint_selection=[INCREMENTAL]) == "COMPLETED"
    found = ids(workspace)
    assert len(found) - len(set(found)) == doubled
    assert 11 - len(set(found)) == lost
    assert [flow.resets for flow in pipeline.flows.values()] == [0, 1]


@pytest.mark.parametrize("unknown", ["fail", "reject", "ignore"])
def test_a_reset_of_a_flow_that_is_not_there(workspace: FakeWorkspace, client: WorkspaceClient, unknown: str) -> None:
    pipeline = customers(workspace, unknown_flows=unknown)
    if unknown == "reject":
        with pytest.raises(InvalidParameterValue):
            client.pipelines.start_update(pipeline.pipeline_id, reset_checkpoint_selection=["customers_flow"])
        return
    state = ended(workspace, pipeline, reset_checkpoint_selection=["customers_flow"])
    assert state == {"fail": "FAILED", "ignore": "COMPLETED"}[unknown]
    assert sum(flow.resets for flow in pipeline.flows.values()) == 0


def test_flows_answer_to_their_full_names(workspace: FakeWorkspace) -> None:
    pipeline = customers(workspace, qualified_names=True)
    ended(workspace, pipeline, reset_checkpoint_selection=[f"main.customers.{INCREMENTAL}"])
    assert pipeline.flows[INCREMENTAL].resets == 1
    shown = {event["origin"].get("flow_name") for event in pipeline.events.events}
    assert f"main.customers.{INITIAL}" in shown


@pytest.mark.parametrize(
    ("qualified", "explicit", "name"),
    [
        (None, None, INCREMENTAL),  # append_flow(name=...): as written
        (None, False, f"main.customers.{INCREMENTAL}"),
        (True, None, f"main.customers.{INCREMENTAL}"),
        (False, False, INCREMENTAL),  # an older pipeline
    ],
)
def test_a_reset_takes_the_name_of_the_events_to_the_letter(
    workspace: FakeWorkspace, qualified: bool | None, explicit: bool | None, name: str
) -> None:
    pipeline = customers(workspace, qualified_names=qualified)
    pipeline.flows[INCREMENTAL].explicit_name = explicit
    for given in (INCREMENTAL, f"main.customers.{INCREMENTAL}", f"customers.{INCREMENTAL}"):
        state = ended(workspace, pipeline, reset_checkpoint_selection=[given])
        assert state == ("COMPLETED" if given == name else "FAILED")
    said = json.dumps(pipeline.events.events)
    refused = "Reset checkpoint selection should not contain flow {}, which does not exist in the graph."
    assert refused.format(f"customers.{INCREMENTAL}") in said
    assert pipeline.flows[INCREMENTAL].resets == 1


@pytest.mark.parametrize("without", ["fail", "ignore"])
def test_selections_that_make_no_sense(workspace: FakeWorkspace, without: Any) -> None:
    pipeline = orders(workspace, reset_without_refresh=without)
    body = {"reset_checkpoint_selection": ["main.orders.bronze"], "refresh_selection": ["silver"]}
    assert ended(workspace, pipeline, **body) == ("FAILED" if without == "fail" else "COMPLETED")
    live = customers(workspace, name="live", continuous=True)
    live.stop()
    live.advance()
    assert ended(workspace, live, refresh_selection=["customers"]) == "FAILED"
    assert "CONTINUOUS_PIPELINE_NOT_SUPPORTED" in json.dumps(live.events.events)


def test_a_full_refresh_wipes_and_reads_what_is_left(workspace: FakeWorkspace) -> None:
    pipeline = customers(workspace)
    workspace.sources["/landing/customers"].expire_older_than(BEGIN + timedelta(hours=4))
    assert ended(workspace, pipeline, full_refresh_selection=["customers"]) == "COMPLETED"
    assert ids(workspace) == ["c004", "c005", "old0", "old1", "old2"]
    pipeline.datasets["customers"].properties["pipelines.reset.allowed"] = "false"
    land(workspace.sources["/landing/customers"], 1)
    ended(workspace, pipeline, full_refresh=True)
    assert ids(workspace) == ["c004", "c005", "c006", "old0", "old1", "old2"], "the table may not be reset"
    assert {event["level"] for event in pipeline.events.events} == {"INFO"}, "it is refreshed incrementally"
    assert ended(workspace, pipeline, full_refresh_selection=["customers"]) == "FAILED"
    assert "[TABLE_NOT_RESETTABLE]" in json.dumps(pipeline.events.events[-1])


def test_a_reset_does_not_limit_what_is_refreshed(workspace: FakeWorkspace) -> None:
    pipeline = orders(workspace)
    workspace.sources["orders-events"].add(BEGIN, id="o100", value="x")
    ended(workspace, pipeline, refresh_selection=["bronze"])
    assert [len(workspace.rows(f"main.orders.{t}")) for t in ("bronze", "silver")] == [21, 20]
    ended(workspace, pipeline, reset_checkpoint_selection=["main.orders.latest"])
    assert [len(workspace.rows(f"main.orders.{t}")) for t in ("bronze", "silver", "latest")] == [21, 21, 21]


def test_keys_of_an_auto_cdc_target_stay_single(workspace: FakeWorkspace) -> None:
    pipeline = orders(workspace)
    assert (
        ended(workspace, pipeline, reset_checkpoint_selection=["main.orders.silver", "main.orders.latest"])
        == "COMPLETED"
    )
    assert [len(workspace.rows(f"main.orders.{t}")) for t in ("silver", "latest")] == [40, 20]


def test_retention_breaks_a_kafka_flow(workspace: FakeWorkspace) -> None:
    pipeline = orders(workspace)
    topic = workspace.sources["orders-events"]
    for n in range(4):
        topic.add(BEGIN + timedelta(days=1), id=f"n{n}")
    topic.expire_before(22)
    assert ended(workspace, pipeline) == "FAILED"
    assert "KAFKA_DATA_LOSS.START_OFFSET_RESET" in json.dumps(pipeline.events.events)
    pipeline.flows["bronze"].start_in_code = {}
    pipeline.configuration["startingOffsets"] = '{"orders-events": {"0": 22}}'
    bronze = ["main.orders.bronze"]
    assert ended(workspace, pipeline, reset_checkpoint_selection=bronze) == "COMPLETED"
    assert len(workspace.rows("main.orders.bronze")) == 22
    pipeline.configuration["startingOffsets"] = "latest"
    ended(workspace, pipeline, reset_checkpoint_selection=bronze)
    assert len(workspace.rows("main.orders.bronze")) == 22


def test_a_union_counts_its_sources(workspace: FakeWorkspace) -> None:
    for name in ("a", "b"):
        workspace.add_source(name).add(BEGIN, id=name)
    pipeline = workspace.add_pipeline("union", datasets=[Dataset("t")], flows=[Flow("f", "t", ("a",))])
    assert ended(workspace, pipeline) == "COMPLETED"
    pipeline.flows["f"].sources = ("a", "b")
    assert ended(workspace, pipeline) == "FAILED"
    assert "There are [1] sources in the checkpoint offsets and now there are [2]" in json.dumps(pipeline.events.events)
    later = (BEGIN + timedelta(seconds=1)).isoformat()
    pipeline.flows["f"].language = "sql"
    ended(workspace, pipeline, reset_checkpoint_selection=["f"], parameters={"a.modifiedAfter": later})
    assert ids(workspace, "main.sales.t") == ["a", "b"]


def test_follow_ups(workspace: FakeWorkspace) -> None:
    pipeline = customers(workspace, update_retries=2, follow_up_after=1)
    pipeline.flows[INCREMENTAL].error = FlowFailed("SPARK_JOB_CANCELLED", "Job 3 cancelled because of a lost executor")
    pipeline.start({"reset_checkpoint_selection": [INITIAL]})
    pipeline.advance()
    assert [(u.cause, u.state) for u in pipeline.updates[1:]] == [
        ("API_CALL", "FAILED"),
        ("RETRY_ON_FAILURE", "FAILED"),
        ("RETRY_ON_FAILURE", "FAILED"),
    ]
    assert pipeline.flows[INITIAL].resets == 1, "a retry does not reset again"
    assert pipeline.state == "FAILED"
    assert ended(workspace, pipeline, development=True) == "FAILED"
    assert len(pipeline.updates) == 5, "no retries in development mode"
    pipeline.flows[INCREMENTAL].error = None
    pipeline.flows[INCREMENTAL].schema_change = True
    ended(workspace, pipeline)
    assert [(u.cause, u.state) for u in pipeline.updates[5:]] == [
        ("API_CALL", "FAILED"),
        ("SCHEMA_CHANGE", "COMPLETED"),
    ]


def test_continuous_pipelines_go_on(workspace: FakeWorkspace) -> None:
    pipeline = customers(workspace, name="live", continuous=True)
    assert pipeline.state == "RUNNING"
    land(workspace.sources["/landing/live"], 1)
    pipeline.step()
    assert len(workspace.rows("main.live.customers")) == 10
    assert pipeline.updates[0].info()["mode"] == "CONTINUOUS"
    pipeline.stop()
    pipeline.advance()
    assert (pipeline.state, pipeline.updates[0].state) == ("IDLE", "CANCELED")


def test_validate_only_reads_and_writes_nothing(workspace: FakeWorkspace) -> None:
    pipeline = customers(workspace)
    remove_drop_duplicates(pipeline)
    land(workspace.sources["/landing/customers"], 1)
    assert ended(workspace, pipeline, validate_only=True) == "COMPLETED", "it does not open checkpoints"
    pipeline.flows[INCREMENTAL].analysis_error = FlowFailed("UNRESOLVED_COLUMN.WITH_SUGGESTION", "no column `nam`")
    assert ended(workspace, pipeline, validate_only=True) == "FAILED"
    assert len(workspace.rows(CUSTOMERS)) == 9


def test_rewind() -> None:
    with FakeWorkspace(start=datetime(2026, 8, 20, 6, tzinfo=UTC)) as workspace:
        enabled = {"pipelines.rewind.betaEnabled": "true"}
        pipeline = orders(workspace, configuration=enabled, channel="PREVIEW")
        noon = (workspace.clock.now() + timedelta(minutes=30)).isoformat()
        workspace.clock.advance(hours=2)
        for n in range(5):
            workspace.sources["orders-events"].add(workspace.clock.now(), id=f"n{n}")
        ended(workspace, pipeline)

        def rewound(**spec: Any) -> tuple[str, list[int]]:
            state = ended(workspace, pipeline, rewind_spec={"rewind_timestamp": noon, **spec})
            return state, [len(workspace.rows(f"main.orders.{t}")) for t in ("bronze", "silver", "latest")]

        assert rewound(dry_run=True) == ("COMPLETED", [25, 25, 25])
        assert rewound(datasets=[{"identifier": "main.orders.silver"}]) == ("COMPLETED", [25, 20, 25])
        assert ended(workspace, pipeline) == "COMPLETED"
        assert len(workspace.rows("main.orders.silver")) == 25, "the replay is an update of its own"
        assert rewound(datasets=[{"identifier": "bronze", "cascade": True}]) == ("COMPLETED", [20, 20, 20])
        assert ended(workspace, pipeline) == "COMPLETED"
        assert [len(workspace.rows(f"main.orders.{t}")) for t in ("bronze", "silver", "latest")] == [25, 25, 25]
        assert rewound(datasets=[{"identifier": "bronze", "cascade": False, "reset_checkpoints": False}]) == (
            "COMPLETED",
            [20, 25, 25],
        )
        pipeline.spec["channel"] = "CURRENT"
        assert rewound()[0] == "FAILED"
        pipeline.spec["channel"] = "PREVIEW"
        del pipeline.configuration["pipelines.rewind.betaEnabled"]
        assert rewound()[0] == "FAILED"
        pipeline.configuration.update(enabled)
        workspace.clock.advance(days=8)
        assert rewound()[0] == "FAILED"
        found = [e["error"]["exceptions"][0]["message"] for e in pipeline.events.events if "error" in e]
        assert [re.findall(r"\[(.*?)\]", message)[0] for message in found] == [
            "UNSUPPORTED_REWIND.DBR_VERSION_TOO_LOW",
            "UNSUPPORTED_REWIND_CONFIGURATION.REWIND_NOT_ENABLED",
            "REWIND_POINT_NOT_FOUND",
        ]


# Jobs and statements


def test_a_job_runs_its_pipeline(workspace: FakeWorkspace, hook: DatabricksHook) -> None:
    pipeline = customers(workspace)
    job = workspace.add_job("nightly", pipeline)
    body = {
        "job_id": job.job_id,
        "idempotency_token": "t",
        "pipeline_params": {"reset_checkpoint_selection": [INCREMENTAL]},
    }
    run = hook.run_now(body)
    assert hook.run_now(body) == run, "one token, one run"
    busy = hook.run_now({"job_id": job.job_id})
    assert "active update" in hook.get_run_state(busy).state_message
    assert any((state := hook.get_run_state(run)).is_terminal for _ in range(8))
    assert state.is_successful
    assert [(u.cause, u.body) for u in pipeline.updates[1:]] == [("JOB_TASK", body["pipeline_params"])]
    assert pipeline.flows[INCREMENTAL].resets == 1
    other = hook.run_now({"job_id": job.job_id})
    hook.cancel_run(other)
    pipeline.advance()
    assert hook.get_run_state(other).result_state == "CANCELED"


def test_statements_run_over_the_tables(workspace: FakeWorkspace, hook: DatabricksHook) -> None:
    customers(workspace)

    def execute(statement: str, **more: Any) -> dict[str, Any]:
        body = {"statement": statement, "warehouse_id": WAREHOUSE, **more}
        return dict(hook._do_api_call(("POST", "2.0/sql/statements"), body))

    def value(statement: str, **more: Any) -> list[list[str]]:
        answer = execute(statement, **more)
        assert answer["status"]["state"] == "SUCCEEDED", answer
        return answer["result"].get("data_array", [])

    copy = "main.customers.`customers__copy`"
    for clone, why in (
        ("DEEP CLONE `main`.`customers`.`customers` VERSION AS OF 1", "TIME_TRAVEL_NOT_SUPPORTED"),
        (f"DEEP CLONE {CUSTOMERS}", "REQUIRES_WITH_HISTORY"),
    ):
        refused = execute(f"CREATE TABLE IF NOT EXISTS {copy} {clone}")["status"]["error"]["message"]
        assert refused.startswith(f"[DELTA_DEEP_CLONE_MV_ST_ERROR.{why}]")
    workspace.tables.clones_of_pipelines = False
    assert execute(f"CREATE TABLE {copy} DEEP CLONE {CUSTOMERS} WITH HISTORY")["status"]["state"] == "FAILED"
    workspace.tables.clones_of_pipelines = True
    value(f"CREATE OR REPLACE TABLE {copy} DEEP CLONE {CUSTOMERS} WITH HISTORY")
    assert value(f"SELECT count(*) AS n FROM {copy}") == [["9"]]
    assert value("SHOW TABLES IN `main`.`customers` LIKE 'customers__*'") == [["customers", "customers__copy", "false"]]
    history = value(f"DESCRIBE HISTORY {CUSTOMERS} LIMIT 1")
    assert (history[0][0], history[0][3]) == ("2", "STREAMING UPDATE")
    value(f"DELETE FROM {CUSTOMERS} WHERE id LIKE :pattern", parameters=[{"name": "pattern", "value": "c%"}])
    assert value(f"SELECT count(*) FROM (SELECT * FROM {copy} EXCEPT ALL SELECT * FROM {CUSTOMERS}) AS d") == [["6"]]
    missing = (
        f"SELECT count(*) FROM {copy} AS b WHERE NOT EXISTS (SELECT 1 FROM {CUSTOMERS} AS t WHERE t.`id` <=> b.`id`)"
    )
    assert value(missing) == [["6"]]
    value(f"MERGE INTO {CUSTOMERS} AS t USING {copy} AS b ON t.`id` <=> b.`id` WHEN NOT MATCHED THEN INSERT *")
    assert value(missing) == [["0"]]
    assert value(f"SELECT count(*) FROM {CUSTOMERS} VERSION AS OF 1") == [["3"]]
    value(f"DROP TABLE IF EXISTS {copy}")
    failed = execute(f"SELECT * FROM {copy}")["status"]
    assert failed["error"]["message"].startswith("[TABLE_OR_VIEW_NOT_FOUND] The table or view `main`.`customers`.")
    statement = hook.post_sql_statement(
        {"statement": f"DELETE FROM {CUSTOMERS}", "warehouse_id": WAREHOUSE, "wait_timeout": "0s"}
    )
    hook.cancel_sql_statement(statement)
    assert hook.get_sql_statement_state(statement).state == "CANCELED"
    assert len(workspace.rows(CUSTOMERS)) == 9
    assert hook.list_pipelines(pipeline_name="customers")[0]["name"] == "customers"
    assert hook.test_connection() == (True, "Connection successfully tested")


def test_the_program_with_a_token_and_an_address_of_its_own() -> None:
    """As docker-compose.yml runs it."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.fake_databricks", "--port", "0", "--address", "0.0.0.0"],
        env={**os.environ, "FAKE_DATABRICKS_TOKEN": "a-token-of-its-own"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = next(line for line in process.stdout if "AIRFLOW_CONN_DATABRICKS_DEFAULT" in line)
        connection = json.loads(said.split("'")[1])
        assert connection["password"] == "a-token-of-its-own"
        url = f"http://127.0.0.1:{connection['port']}/api/2.0/pipelines"
        codes = [
            requests.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=30).status_code
            for token in ("a-token-of-its-own", TOKEN)
        ]
        assert codes == [200, 403]
    finally:
        process.kill()
        process.wait()
