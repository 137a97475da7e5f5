"""ResetCheckpointOperator against a workspace over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_ckpt_provider.guards.delta_start import TABLE_READ
from airflow_ckpt_provider.links.pipeline_update import PipelineUpdateLink
from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from tests.fake_databricks import Dataset, FakeWorkspace, Flow, FlowFailed, Pace, samples
from tests.fake_databricks.pipelines import Pipeline
from tests.support.attempts import Killed, Task

FLOW = samples.INCREMENTAL
TABLE = "main.customers.customers"
#: The last of the six files that were read; what landed later is new.
READ_UP_TO = "2026-08-20T05:00:00Z"
POSITION = {FLOW: {"options": {"modifiedAfter": READ_UP_TO}, "carried_by": {"modifiedAfter": "modifiedAfter"}}}
either_way = pytest.mark.parametrize("deferrable", [False, True], ids=["waiting", "deferred"])


def reset(pipeline: Pipeline | str, **fields: Any) -> ResetCheckpointOperator:
    given = {"pipeline_id": pipeline if isinstance(pipeline, str) else pipeline.pipeline_id}
    about: dict[str, Any] = {"flows": [FLOW], "mode": "apply", "poll_interval": 0.001, "starting_positions": POSITION}
    about |= {"configuration": {"modifiedAfter": READ_UP_TO}, "flows_run_for": 0.0}
    about |= {} if "pipeline_name" in fields else given
    return ResetCheckpointOperator(task_id="reset", **{**about, **fields})


@pytest.fixture
def broken(workspace: FakeWorkspace) -> Pipeline:
    """The vendor's example: ``dropDuplicates`` was taken out, two new files have landed, and the flow fails on its checkpoint."""
    pipeline = samples.customers(workspace)
    samples.remove_drop_duplicates(pipeline)
    samples.land(workspace.sources["/landing/customers"], 2)
    pipeline.start({})
    pipeline.advance()
    assert pipeline.updates[-1].state == "FAILED"
    return pipeline


def ids(workspace: FakeWorkspace) -> list[str]:
    return sorted(str(row["id"]) for row in workspace.rows(TABLE))


ALL = sorted([*(f"c{n:03d}" for n in range(8)), *(f"old{n}" for n in range(3))])


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


# ---- an update that is active ---------------------------------------------------------------------------------------


def test_an_active_update_is_left_alone(workspace: FakeWorkspace, broken: Pipeline) -> None:
    broken.pace = Pace.by_hand()
    running = broken.start({})
    with pytest.raises(AirflowFailException, match=f"update {running.update_id} is active"):
        Task(lambda: reset(broken)).attempt()
    assert running.active
    assert not workspace.asked("POST", "/updates")


@either_way
def test_an_active_update_is_waited_for(workspace: FakeWorkspace, broken: Pipeline, deferrable: bool) -> None:
    running = broken.start({"validate_only": True})
    result = Task(lambda: reset(broken, on_active_update="wait", deferrable=deferrable)).attempt()
    assert running.state == "COMPLETED"
    assert result["state"] == "COMPLETED"
    assert result["update_id"] != running.update_id
    assert not workspace.asked("POST", "/stop")


@either_way
def test_an_active_update_is_stopped(workspace: FakeWorkspace, broken: Pipeline, deferrable: bool) -> None:
    running = broken.start({})
    result = Task(lambda: reset(broken, on_active_update="stop", deferrable=deferrable)).attempt()
    assert running.state == "CANCELED"
    assert result["state"] == "COMPLETED"
    assert ids(workspace) == ALL


@pytest.mark.parametrize("room", ["fail", "wait", "stop"])
@pytest.mark.parametrize("failed_state", ["IDLE", "FAILED"])
def test_a_pipeline_whose_update_has_failed_is_at_rest(broken: Pipeline, failed_state: str, room: str) -> None:
    broken.failed_state = failed_state
    assert broken.state == failed_state
    assert Task(lambda: reset(broken, on_active_update=room)).attempt()["state"] == "COMPLETED"


def test_conflict_that_comes_between_look_and_start(workspace: FakeWorkspace, broken: Pipeline) -> None:
    workspace.fault("POST", r"/updates$", status=409)
    with pytest.raises(AirflowFailException, match="409"):
        Task(lambda: reset(broken)).attempt()
    workspace.fault("POST", r"/updates$", status=409)
    assert Task(lambda: reset(broken, on_active_update="wait")).attempt()["state"] == "COMPLETED"
    assert broken.flows[FLOW].resets == 1


# ---- continuous -----------------------------------------------------------------------------------------------------


@either_way
def test_continuous(workspace: FakeWorkspace, deferrable: bool) -> None:
    pipeline = samples.customers(workspace, continuous=True)
    assert pipeline.active
    made = {"on_active_update": "stop", "wait_for": "RUNNING", "deferrable": deferrable}
    with pytest.raises(AirflowFailException, match="its updates never complete"):
        Task(lambda: reset(pipeline, **{**made, "wait_for": "COMPLETED"})).attempt()
    with pytest.raises(AirflowFailException, match="its update never ends by itself"):
        Task(lambda: reset(pipeline, **{**made, "on_active_update": "wait"})).attempt()
    result = Task(lambda: reset(pipeline, **made)).attempt()
    assert result["state"] == "RUNNING"
    assert pipeline.active
    assert pipeline.flows[FLOW].resets == 1


def test_not_waited_for(workspace: FakeWorkspace, broken: Pipeline) -> None:
    broken.pace = Pace.by_hand()
    result = Task(lambda: reset(broken, wait_for=None)).attempt()
    assert result["state"] is None
    assert result["update_id"] == broken.updates[-1].update_id
    assert broken.updates[-1].active


# ---- updates that fail ----------------------------------------------------------------------------------------------


@either_way
def test_failure_has_the_event_log_and_the_way_out(workspace: FakeWorkspace, deferrable: bool) -> None:
    pipeline = samples.customers(workspace)
    samples.remove_drop_duplicates(pipeline)
    position = {"options": {"startingVersion": "3"}, "deployed": True}
    task = Task(
        lambda: reset(
            pipeline,
            flows=[samples.INITIAL],
            starting_positions={samples.INITIAL: {**position, "reasons": [f"{TABLE_READ}it has version 3"]}},
            deferrable=deferrable,
        )
    )
    with pytest.raises(AirflowFailException) as failed:
        task.attempt()
    said = str(failed.value)
    assert f"flow {FLOW}: " in said
    assert "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA" in said
    assert "Way out: " in said
    assert f'"reset_checkpoint_selection": ["{FLOW}"]' in said
    assert task.pushed["return_value"]["state"] == "FAILED"
    # Airflow does not try this again by itself; whoever does finds the same update, and starts none.
    with pytest.raises(AirflowFailException):
        task.attempt()
    assert len(workspace.asked("POST", "/updates")) == 1


@either_way
@pytest.mark.parametrize("after", [0, 2])
def test_automatic_retry_is_followed(workspace: FakeWorkspace, deferrable: bool, after: int) -> None:
    pipeline = samples.customers(workspace, update_retries=2, follow_up_after=after)
    lost = FlowFailed("SOME_ERROR", "[SOME_ERROR] the cluster was lost")
    pipeline.when["RESETTING"] = lambda p: setattr(p.flows[FLOW], "error", lost)
    original = pipeline._begin

    def mended(update: Any) -> Any:
        if update.cause == "RETRY_ON_FAILURE":
            pipeline.flows[FLOW].error = None
        return original(update)

    pipeline._begin = mended  # type: ignore[method-assign]
    result = Task(lambda: reset(pipeline, deferrable=deferrable)).attempt()
    assert result["state"] == "COMPLETED"
    assert len(result["update_ids"]) == 2
    assert [s["cause"] for s in result["states"]][-1] == "RETRY_ON_FAILURE"
    assert pipeline.flows[FLOW].resets == 1


def test_canceled_by_somebody(workspace: FakeWorkspace, broken: Pipeline) -> None:
    broken.when["RUNNING"] = lambda pipeline: pipeline.stop()
    with pytest.raises(AirflowFailException, match="is CANCELED: somebody stopped it"):
        Task(lambda: reset(broken)).attempt()


@either_way
def test_deadline(workspace: FakeWorkspace, broken: Pipeline, deferrable: bool) -> None:
    broken.pace = Pace.by_hand()
    timeout = {"timeout": 0.05}
    task = Task(lambda: reset(broken, **timeout, deferrable=deferrable))
    with pytest.raises(AirflowException, match=r"not within 0.05 s: .*QUEUED, waiting for COMPLETED") as late:
        task.attempt()
    assert not isinstance(late.value, AirflowFailException)
    broken.pace = Pace.by_look()
    timeout["timeout"] = 60
    result = task.attempt()
    assert (result["state"], result["found"]) == ("COMPLETED", "answer")
    assert broken.flows[FLOW].resets == 1


# ---- kills ----------------------------------------------------------------------------------------------------------


def test_on_kill_stops_its_own_update_only(workspace: FakeWorkspace, broken: Pipeline) -> None:
    broken.pace = Pace.by_hand()
    task = Task(lambda: reset(broken, timeout=0.02))
    with pytest.raises(AirflowException):
        task.attempt()
    task.operator.on_kill()
    assert broken.updates[-1].state == "STOPPING"
    broken.advance()
    other = broken.start({})
    task.operator.on_kill()
    assert other.state == "QUEUED"


def test_killed_between_the_post_and_the_note(workspace: FakeWorkspace, broken: Pipeline) -> None:
    task = Task(lambda: reset(broken))
    assert task.store
    writes = iter(range(100))

    def kill() -> None:
        if workspace.asked("POST", "/updates") and next(writes) == 0:
            raise Killed

    task.store.before = kill
    with pytest.raises(Killed):
        task.attempt()
    assert len(workspace.asked("POST", "/updates")) == 1
    result = task.attempt()
    assert len(workspace.asked("POST", "/updates")) == 1
    assert (result["found"], result["state"]) == ("search", "COMPLETED")
    assert broken.flows[FLOW].resets == 1
    assert ids(workspace) == ALL


def test_an_airflow_that_keeps_nothing(workspace: FakeWorkspace, broken: Pipeline) -> None:
    """Below 3.3: the search begins where the run of the DAG began."""
    task = Task(lambda: reset(broken, wait_for=None), store=False)
    workspace.clock.advance(hours=1)
    task.began = workspace.clock.now()
    first = task.attempt()
    second = task.attempt()
    assert second["update_id"] == first["update_id"]
    assert second["found"] == "search"
    assert len(workspace.asked("POST", "/updates")) == 1


def test_cleared_task_starts_anew(workspace: FakeWorkspace, broken: Pipeline) -> None:
    task = Task(lambda: reset(broken))
    task.attempt()
    plain = task.context

    def cleared() -> dict[str, Any]:
        context = plain()
        context["ti"].max_tries = 1
        return context

    task.context = cleared  # type: ignore[method-assign]
    task.attempt()
    assert broken.flows[FLOW].resets == 2


def test_two_updates_that_can_be_it(workspace: FakeWorkspace, broken: Pipeline) -> None:
    task = Task(lambda: reset(broken))
    workspace.fault("POST", r"/updates$", cut=True, took_effect=True)

    def somebody_else(pipeline: Pipeline) -> None:
        pipeline.advance()
        pipeline.start({})

    broken.when["CREATED"] = somebody_else
    with pytest.raises(AirflowFailException, match="UNKNOWN which update is this run's"):
        task.attempt()
    assert len(workspace.asked("POST", "/updates")) == 1


def test_a_parameter_of_its_own_tells_updates_apart(workspace: FakeWorkspace, broken: Pipeline) -> None:
    workspace.fault("POST", r"/updates$", cut=True, took_effect=True)
    task = Task(lambda: reset(broken, run_parameter="airflow_run"))
    result = task.attempt()
    assert result["found"] == "search"
    assert broken.updates[-1].body["parameters"] == {
        "airflow_run": "dag/manual__1/task/-1",
    }


# ---- the request ----------------------------------------------------------------------------------------------------


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


# ---- what the request empties, and dry runs -------------------------------------------------------------------------


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


@either_way
def test_a_dry_run_is_labelled_and_resets_nothing(workspace: FakeWorkspace, broken: Pipeline, deferrable: bool) -> None:
    made = lambda **more: reset(broken, body={"validate_only": True}, deferrable=deferrable, **more)  # noqa: E731
    plan = Task(lambda: made(mode="plan")).attempt()
    assert plan["markdown"].startswith("### Dry run, nothing is changed: reset of a pipeline")
    assert plan["plan"]["dry_run"] is True
    result = Task(lambda: made()).attempt()
    assert (result["mode"], result["dry_run"], result["state"]) == ("dry_run", True, "COMPLETED")
    assert "only validates the code" in " ".join(result["plan"]["steps"])
    assert broken.flows[FLOW].resets == 0
    assert broken.configuration == {}, "nothing of it is changed for a dry run"
    assert not workspace.asked("PUT")
    real = Task(lambda: reset(broken)).attempt()
    assert (real["mode"], real["dry_run"]) == ("apply", False)


# ---- success means that the flows run -------------------------------------------------------------------------------


@either_way
def test_the_first_running_of_a_continuous_pipeline_is_no_success(workspace: FakeWorkspace, deferrable: bool) -> None:
    pipeline = samples.customers(workspace, continuous=True)
    pipeline.when["RESETTING"] = lambda p: setattr(p.flows[FLOW], "error", FlowFailed("SOME_ERROR", "it does not run"))
    about = {"on_active_update": "stop", "wait_for": "RUNNING", "deferrable": deferrable}
    with pytest.raises(AirflowFailException, match="SOME_ERROR"):
        Task(lambda: reset(pipeline, **about)).attempt()
    update = pipeline.updates[-1].update_id[:6]
    assert f"Update {update} is RUNNING." in [event["message"] for event in pipeline.events.events]


def test_a_flow_that_fails_after_it_ran(workspace: FakeWorkspace) -> None:
    """It ran for a moment; within ``flows_run_for`` it fails."""
    pipeline = samples.customers(workspace, continuous=True)
    run = pipeline._run
    runs = iter(range(100))

    def failing(update: Any) -> None:
        if next(runs) == 2:
            pipeline.flows[FLOW].error = FlowFailed("SOME_ERROR", "it ran for a moment")
        run(update)

    pipeline._run = failing  # type: ignore[method-assign]
    about = {"on_active_update": "stop", "wait_for": "RUNNING", "flows_run_for": 3600.0}
    with pytest.raises(AirflowFailException, match="it ran for a moment"):
        Task(lambda: reset(pipeline, **about)).attempt()


def test_an_update_that_leaves_the_flow_out_is_no_success(workspace: FakeWorkspace) -> None:
    pipeline = samples.orders(workspace)
    flow = "main.orders.bronze"
    position = {flow: {"options": {"startingOffsets": "x"}, "deployed": True}}
    about = {"flows": [flow], "starting_positions": position, "configuration": None}
    without = lambda **more: reset(pipeline, refresh_selection=["silver"], **about, **more)  # noqa: E731
    with pytest.raises(AirflowFailException, match="its table bronze is not among those that are refreshed"):
        Task(without).attempt()
    with pytest.raises(AirflowFailException, match="RESET_CHECKPOINT_WITHOUT_REFRESH"):
        Task(lambda: without(accept="WILL_FAIL")).attempt()
    pipeline.reset_without_refresh = "ignore"
    with pytest.raises(AirflowFailException, match=r"flow main.orders.bronze was not seen to run \(EXCLUDED\)"):
        Task(lambda: without(accept="WILL_FAIL"), run_id="other").attempt()
    assert Task(lambda: reset(pipeline, refresh_selection=["bronze"], **about)).attempt()["state"] == "COMPLETED"


def test_the_log_does_not_repeat_a_line_at_each_poll(workspace: FakeWorkspace, broken: Pipeline) -> None:
    broken.pace = Pace.by_hand()
    seen: list[str] = []
    task = Task(lambda: reset(broken, timeout=2.0))
    made = task.make

    def listening() -> Any:
        operator = made()
        operator.log.info = lambda message, *args: seen.append(message % args)  # type: ignore[method-assign]
        return operator

    task.make = listening  # type: ignore[assignment]
    with pytest.raises(AirflowException, match="not within"):
        task.attempt()
    polls = len(workspace.asked("GET", broken.updates[-1].update_id))
    assert polls > 3
    assert len([line for line in seen if "QUEUED, waiting for COMPLETED" in line]) == 1


def test_a_flow_that_does_not_exist_is_explained(workspace: FakeWorkspace, broken: Pipeline) -> None:
    with pytest.raises(AirflowFailException, match="PIPELINE-FLOW-NOT-FOUND"):
        Task(lambda: reset(broken, flows=["nobody"], starting_positions=None, accept="WILL_FAIL")).attempt()
