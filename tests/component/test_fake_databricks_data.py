"""The fake workspace moves rows as the vendor's pipelines do: resets, refreshes, rewinds, retention, jobs and statements."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.databricks.hooks.databricks import DatabricksHook
from databricks.sdk import WorkspaceClient
from databricks.sdk.errors import InvalidParameterValue

from tests.fake_databricks import WAREHOUSE, Dataset, FakeWorkspace, Flow, FlowFailed
from tests.fake_databricks.samples import (
    BEGIN,
    INCREMENTAL,
    INITIAL,
    customers,
    land,
    orders,
    remove_drop_duplicates,
)
from tests.support.fake_workspaces import CUSTOMERS, ended
from tests.support.fake_workspaces import client as client
from tests.support.fake_workspaces import hook as hook
from tests.support.fake_workspaces import workspace as workspace


def ids(workspace: FakeWorkspace, table: str = CUSTOMERS) -> list[str]:
    return sorted(row["id"] for row in workspace.rows(table))


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
