"""ResetCheckpointOperator against a workspace over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.links.pipeline_update import PipelineUpdateLink
from tests.fake_databricks import Dataset, FakeWorkspace, Flow, samples
from tests.fake_databricks.pipelines import Pipeline
from tests.support.attempts import Task
from tests.support.lakeflow_resets import ALL, FLOW, POSITION, READ_UP_TO, either_way, ids, reset
from tests.support.lakeflow_resets import broken as broken


@either_way
def test_the_vendors_example(workspace: FakeWorkspace, broken: Pipeline, deferrable: bool) -> None:
    task = Task(lambda: reset(broken, deferrable=deferrable))
    result = task.attempt()
    assert ids(workspace) == ALL
    assert broken.flows[FLOW].resets == 1
    assert result["state"] == "COMPLETED"
    assert result["update_id"] == broken.updates[-1].update_id
    assert result["flows"] == [FLOW]
    assert (result["cause"], result["found"]) == ("API_CALL", "answer")
    assert [state["state"] for state in result["states"]][-1] == "COMPLETED"
    assert all(state["time"] for state in result["states"])
    assert result["url"] == task.pushed[PipelineUpdateLink.XCOM_KEY]
    assert result["url"].startswith(f"{workspace.url}/#joblist/pipelines/{broken.pipeline_id}/updates/")
    assert bool(task.deferred) is deferrable


def test_a_plan_sends_nothing_but_get(workspace: FakeWorkspace, broken: Pipeline) -> None:
    workspace.requests.clear()
    result = Task(lambda: reset(broken, mode="plan")).attempt()
    assert {request.method for request in workspace.requests} == {"GET"}
    assert result["mode"] == "plan"
    assert result["update_id"] is None
    assert result["plan"]["verdict"] == "SAFE"
    assert result["plan"]["calls"] == [
        {
            "method": "PUT",
            "path": f"2.0/pipelines/{broken.pipeline_id}",
            "body": {"configuration": {"modifiedAfter": READ_UP_TO}},
        },
        {
            "method": "POST",
            "path": f"2.0/pipelines/{broken.pipeline_id}/updates",
            "body": {"reset_checkpoint_selection": [FLOW]},
        },
    ]
    assert "`customers_incremental_flow`" in result["markdown"]
    assert "does not limit what is refreshed" in result["markdown"]


def test_an_approved_plan_is_the_one_that_is_carried_out(workspace: FakeWorkspace, broken: Pipeline) -> None:
    plan = Task(lambda: reset(broken, mode="plan")).attempt()["plan"]
    assert Task(lambda: reset(broken, fingerprint=plan["fingerprint"])).attempt()["state"] == "COMPLETED"
    later = {"configuration": {"modifiedAfter": "2026-08-20T04:00:00Z"}, "accept": "WILL_DUPLICATE"}
    with pytest.raises(AirflowFailException, match="is not the one that would be carried out now"):
        Task(lambda: reset(broken, fingerprint=plan["fingerprint"], **later)).attempt()


@pytest.mark.parametrize(
    ("deployed", "verdict", "words"),
    [
        (None, "WILL_DUPLICATE", "neither the update's parameters nor the pipeline's configuration has modifiedAfter"),
        ("2026-08-20T03:00:00Z", "WILL_DUPLICATE", "which is earlier: what lies between is written again"),
        ("2026-08-20T09:00:00+00:00", "WILL_LOSE", "which is later: what lies between is never read"),
        ("yesterday", "UNKNOWN", "which cannot be compared with it"),
        ("2026-08-20T07:00:00+02:00", "SAFE", "is in the pipeline's configuration as modifiedAfter"),
    ],
)
def test_the_deployed_code_has_to_carry_the_position(
    workspace: FakeWorkspace, broken: Pipeline, deployed: str | None, verdict: str, words: str
) -> None:
    if deployed:
        broken.configuration["modifiedAfter"] = deployed
    plan = Task(lambda: reset(broken, mode="plan", configuration=None)).attempt()["plan"]
    assert plan["verdict"] == verdict
    assert words in " ".join(plan["reasons"])
    if verdict != "SAFE":
        with pytest.raises(AirflowFailException, match=f"the verdict is {verdict}"):
            Task(lambda: reset(broken, configuration=None)).attempt()
        assert broken.flows[FLOW].resets == 0


def test_a_wrong_time_that_was_accepted_is_counted_after(workspace: FakeWorkspace, broken: Pipeline) -> None:
    wrong = {"configuration": {"modifiedAfter": "2026-08-20T03:00:00Z"}, "accept": "WILL_DUPLICATE"}
    Task(lambda: reset(broken, **wrong)).attempt()
    assert len(ids(workspace)) == len(ALL) + 2


def test_without_a_position_nobody_knows(workspace: FakeWorkspace, broken: Pipeline) -> None:
    with pytest.raises(AirflowFailException, match="it is not known where it begins to read") as refused:
        Task(lambda: reset(broken, starting_positions=None)).attempt()
    assert "accept='UNKNOWN'" in str(refused.value)
    assert broken.flows[FLOW].resets == 0


@pytest.mark.parametrize(
    ("flows", "words"),
    [
        (["customers_incremental"], "is customers_incremental_flow or "),
        ([f"main.customers.{FLOW}"], f"is {FLOW} meant?"),
        (["orders"], "they name customers_incremental_flow, customers_initial_flow"),
    ],
    ids=["misspelt", "qualified", "other"],
)
def test_wrong_flow(workspace: FakeWorkspace, broken: Pipeline, flows: list[str], words: str) -> None:
    with pytest.raises(AirflowFailException, match="the verdict is WILL_FAIL") as refused:
        Task(lambda: reset(broken, flows=flows, starting_positions=None)).attempt()
    assert words in str(refused.value)
    assert len(broken.updates) == 2


def test_bare_name_where_events_are_qualified(workspace: FakeWorkspace) -> None:
    pipeline = samples.customers(workspace, qualified_names=True)
    with pytest.raises(AirflowFailException, match=rf"is main\.customers\.{FLOW} meant"):
        Task(lambda: reset(pipeline, starting_positions=None)).attempt()


@pytest.mark.parametrize("flows", [[], "", [FLOW, ""], None], ids=repr)
def test_empty_selection(workspace: FakeWorkspace, broken: Pipeline, flows: Any) -> None:
    with pytest.raises(AirflowFailException, match="flows is"):
        Task(lambda: reset(broken, flows=flows, starting_positions=None)).attempt()
    assert len(broken.updates) == 2


def test_wrong_pipeline(workspace: FakeWorkspace) -> None:
    with pytest.raises(AirflowFailException, match=r"pipeline nowhere: .*was not found"):
        Task(lambda: reset("nowhere")).attempt()


def test_deleted_pipeline(workspace: FakeWorkspace, broken: Pipeline) -> None:
    broken.deleted = True
    with pytest.raises(AirflowFailException, match=r"is deleted|was not found"):
        Task(lambda: reset(broken)).attempt()


def test_two_pipelines_of_one_name(workspace: FakeWorkspace, broken: Pipeline) -> None:
    other = workspace.add_pipeline("customers")
    with pytest.raises(AirflowFailException, match="2 pipelines are named 'customers'") as refused:
        Task(lambda: reset(broken, pipeline_name="customers")).attempt()
    assert other.pipeline_id in str(refused.value)


def test_by_name(workspace: FakeWorkspace, broken: Pipeline) -> None:
    workspace.add_pipeline("customers2")
    workspace.add_pipeline("custom_rs")
    assert Task(lambda: reset(broken, pipeline_name="customers")).attempt()["pipeline_id"] == broken.pipeline_id
    with pytest.raises(AirflowFailException, match="no pipeline is named 'custom%'"):
        Task(lambda: reset(broken, pipeline_name="custom%")).attempt()
    with pytest.raises(AirflowFailException, match="give pipeline_id or pipeline_name"):
        Task(lambda: reset("p", pipeline_name=None, pipeline_id=None)).attempt()


def test_expired_token(workspace: FakeWorkspace, broken: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DATABRICKS_DEFAULT", workspace.airflow_connection("old"))
    workspace.expired.add("old")
    with pytest.raises(Exception, match=r"401.*\n?.*HINT: the token of the connection is wrong or expired"):
        Task(lambda: reset(broken)).attempt()
    monkeypatch.setenv("AIRFLOW_CONN_DATABRICKS_DEFAULT", workspace.airflow_connection())
    workspace.read_only.add(broken.pipeline_id)
    with pytest.raises(Exception, match=r"403.*\n?.*HINT: the connection's user needs the permission CAN RUN"):
        Task(lambda: reset(broken, configuration=None, accept="WILL_DUPLICATE")).attempt()
    assert broken.flows[FLOW].resets == 0


def test_no_connection(workspace: FakeWorkspace, broken: Pipeline) -> None:
    with pytest.raises(AirflowFailException, match="airflow connections add"):
        Task(lambda: reset(broken, databricks_conn_id="nobody")).attempt()


def test_development_mode(workspace: FakeWorkspace) -> None:
    pipeline = samples.customers(workspace, development=True, update_retries=2)
    result = Task(lambda: reset(pipeline)).attempt()
    assert "development mode" in result["markdown"]


def test_all_fields_pass_and_unknown_ones_too(workspace: FakeWorkspace, broken: Pipeline) -> None:
    made = reset(
        broken,
        refresh_selection=["customers"],
        cause="JOB_TASK",
        parameters={"day": "2026-08-20"},
        body={"development": True, "replace_where_overrides": [{"flow_name": "f", "predicate_override": "x > 1"}]},
        mode="plan",
    )
    assert Task(lambda: made).attempt()["plan"]["calls"][-1]["body"] == {
        "reset_checkpoint_selection": [FLOW],
        "refresh_selection": ["customers"],
        "cause": "JOB_TASK",
        "parameters": {"day": "2026-08-20"},
        "development": True,
        "replace_where_overrides": [{"flow_name": "f", "predicate_override": "x > 1"}],
    }
    with pytest.raises(AirflowFailException, match="parameters is given twice"):
        Task(lambda: reset(broken, parameters={"a": "c"}, body={"parameters": {"a": "b"}})).attempt()


@pytest.mark.parametrize(
    "body",
    [
        {"rewind_spec": {"rewind_timestamp": "2026-08-20T00:00:00Z", "dry_run": False}},
        {"replace_where_overrides": [{"flow_name": "f", "predicate_override": "true"}]},
        {"new_field": 1},
    ],
)
def test_a_field_whose_effect_nobody_has_judged(broken: Pipeline, body: dict[str, Any]) -> None:
    plan = Task(lambda: reset(broken, mode="plan")).attempt()["plan"]
    assert plan["verdict"] == "SAFE"
    plan = Task(lambda: reset(broken, mode="plan", body=body)).attempt()["plan"]
    assert plan["verdict"] == "UNKNOWN"
    assert plan["reasons"][0].startswith(f"{next(iter(body))} of body ")


def test_through_a_job(workspace: FakeWorkspace, broken: Pipeline) -> None:
    job = workspace.add_job("nightly", broken)
    broken.configuration["modifiedAfter"] = READ_UP_TO
    made = lambda **more: reset(broken, job_id=job.job_id, configuration=None, **more)  # noqa: E731
    plan = Task(lambda: made(mode="plan")).attempt()["plan"]
    assert plan["calls"][0]["path"] == "2.2/jobs/run-now"
    assert plan["calls"][0]["body"]["pipeline_params"] == {"reset_checkpoint_selection": [FLOW]}
    workspace.fault("POST", r"run-now$", cut=True, took_effect=True)
    result = Task(made).attempt()
    assert result["state"] == "COMPLETED"
    assert result["cause"] == "JOB_TASK"
    assert broken.flows[FLOW].resets == 1
    with pytest.raises(AirflowFailException, match="jobs/run-now has no field parameters"):
        Task(lambda: made(body={"parameters": {"a": "b"}})).attempt()


def test_reset_forbidden_and_flows_that_are_no_streams(workspace: FakeWorkspace) -> None:
    workspace.add_source("raw", "delta")
    pipeline = workspace.add_pipeline(
        "sales",
        datasets=[Dataset("kept", properties={"pipelines.reset.allowed": "false"}), Dataset("totals")],
        flows=[Flow("kept", "kept", ("raw",)), Flow("totals", "totals", ("kept",), kind="materialized")],
    )
    pipeline.start({})
    pipeline.advance()
    names = ("main.sales.kept", "main.sales.totals")
    deployed = {flow: {"options": {"startingVersion": "1"}, "deployed": True} for flow in names}
    result = Task(
        lambda: reset(
            pipeline,
            flows=["main.sales.kept", "main.sales.totals"],
            starting_positions=deployed,
            configuration=None,
            full_refresh_selection=["kept"],
            mode="plan",
        )
    ).attempt()
    warnings = " ".join(result["plan"]["warnings"])
    assert "flow main.sales.totals is not a stream" in warnings
    assert "flow main.sales.kept is not a stream" not in warnings
    assert "table main.sales.kept has pipelines.reset.allowed=false" in warnings


def test_every_source_of_a_join_is_named(workspace: FakeWorkspace, broken: Pipeline) -> None:
    result = Task(
        lambda: reset(
            broken,
            sources={FLOW: ["a", "b"]},
            starting_positions={FLOW: {**POSITION[FLOW], "source": "a"}},
            mode="plan",
        )
    ).attempt()
    assert result["plan"]["verdict"] == "UNKNOWN"
    assert "joins or unions a, b: there is no starting position for b" in " ".join(result["plan"]["reasons"])


def test_guard_report(workspace: FakeWorkspace, broken: Pipeline) -> None:
    report = {"verdict": "WILL_LOSE", "reasons": ["offsets 1 to 9 are gone"]}
    with pytest.raises(AirflowFailException, match="source guard of raw: offsets 1 to 9 are gone"):
        Task(lambda: reset(broken, guard_report={"raw": report})).attempt()
    assert Task(lambda: reset(broken, guard_report=report, accept="WILL_LOSE")).attempt()["state"] == "COMPLETED"


@pytest.mark.parametrize(
    "what",
    [
        {"full_refresh_selection": ["customers"]},
        {"body": {"full_refresh_selection": ["customers"]}},
        {"body": {"full_refresh": True}},
        {"body": {"full_refresh_selection_by_path": ["/pipelines/customers.py"]}},
    ],
    ids=str,
)
def test_a_reset_that_empties_tables_is_judged_as_a_full_refresh(
    workspace: FakeWorkspace, broken: Pipeline, what: dict[str, Any]
) -> None:
    plan = Task(lambda: reset(broken, mode="plan", **what)).attempt()["plan"]
    assert plan["verdict"] == "UNKNOWN"
    assert "emptied by a full refresh" in " ".join(plan["reasons"])
    assert "are emptied" in " ".join(plan["steps"])
    assert "keep their rows" not in " ".join(plan["steps"])
    with pytest.raises(AirflowFailException, match="the verdict is UNKNOWN"):
        Task(lambda: reset(broken, **what)).attempt()
    assert not workspace.asked("POST", "/updates")


def test_a_full_refresh_of_a_table_that_forbids_it(workspace: FakeWorkspace, broken: Pipeline) -> None:
    broken.datasets["customers"].properties["pipelines.reset.allowed"] = "false"
    plan = Task(lambda: reset(broken, mode="plan", full_refresh_selection=["customers"])).attempt()["plan"]
    assert plan["verdict"] == "WILL_FAIL"
