"""The fake workspace keeps the contract: the vendor's dataclasses, the vendor's client, Airflow's hook; and has the effects."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from typing import Any

import pytest
import requests
from airflow.providers.databricks.exceptions import DatabricksApiError
from airflow.providers.databricks.hooks.databricks import DatabricksHook
from databricks.sdk import WorkspaceClient
from databricks.sdk.errors import InvalidParameterValue, NotFound, PermissionDenied, ResourceConflict, Unauthenticated
from databricks.sdk.service import jobs

from tests.fake_databricks import TOKEN, WAREHOUSE, FakeWorkspace, Pace
from tests.fake_databricks.samples import (
    INCREMENTAL,
    INITIAL,
    customers,
    remove_drop_duplicates,
)
from tests.support.fake_workspaces import CLASSES, CUSTOMERS, check, ended
from tests.support.fake_workspaces import client as client
from tests.support.fake_workspaces import hook as hook
from tests.support.fake_workspaces import workspace as workspace


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
    answered = {check(request) for request in workspace.requests if request.status == 200}
    assert {path for _, path, _ in CLASSES} <= answered, "an answer that nothing here asked for"


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
