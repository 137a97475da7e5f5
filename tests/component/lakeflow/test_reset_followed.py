"""A reset is followed until it is known how it ended, by whom, and what it was."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_ckpt_provider.guards.delta_start import TABLE_READ
from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from tests.fake_databricks import FakeWorkspace, FlowFailed, Pace, samples
from tests.fake_databricks.pipelines import Pipeline
from tests.support.attempts import Killed, Task
from tests.support.lakeflow_resets import ALL, FLOW, READ_UP_TO, either_way, ids, reset
from tests.support.lakeflow_resets import broken as broken


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
    result = Task(lambda: reset(broken, on_active_update="stop", deferrable=deferrable, accept="UNKNOWN")).attempt()
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


@either_way
def test_continuous(workspace: FakeWorkspace, deferrable: bool) -> None:
    pipeline = samples.customers(workspace, continuous=True)
    assert pipeline.active
    made = {"on_active_update": "stop", "wait_for": "RUNNING", "deferrable": deferrable, "accept": "UNKNOWN"}
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


@either_way
def test_failure_has_the_event_log_and_the_way_out(workspace: FakeWorkspace, deferrable: bool) -> None:
    pipeline = samples.customers(workspace)
    samples.remove_drop_duplicates(pipeline)
    position = {"options": {"startingVersion": "3"}, "deployed": True, "all_sources": True}
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


def test_a_task_that_is_cleared_after_its_success_resets_nothing(workspace: FakeWorkspace, broken: Pipeline) -> None:
    """A second reset would read the same input again; with another position it is another reset."""
    after = [READ_UP_TO]

    def made() -> ResetCheckpointOperator:
        position = {FLOW: {"options": {"modifiedAfter": after[0]}, "carried_by": {"modifiedAfter": "modifiedAfter"}}}
        return reset(broken, starting_positions=position, configuration={"modifiedAfter": after[0]})

    task = Task(made)
    first = task.attempt()
    task.clear()
    assert task.attempt() == first
    task.clear()
    task.attempt()
    assert broken.flows[FLOW].resets == 1
    assert ids(workspace) == ALL
    after[0] = "2026-08-20T07:00:00Z"  # the newest file
    task.clear()
    task.attempt()
    assert broken.flows[FLOW].resets == 2
    assert ids(workspace) == ALL


def test_a_task_that_is_cleared_after_its_failure_starts_anew(broken: Pipeline) -> None:
    broken.when["RUNNING"] = lambda p: setattr(p.flows[FLOW], "error", FlowFailed("SOME_ERROR", "no"))
    options: dict[str, str] = {}
    task = Task(lambda: reset(broken, **options))
    with pytest.raises(AirflowFailException, match="SOME_ERROR"):
        task.attempt()
    broken.flows[FLOW].error = None
    options["accept"] = "UNKNOWN"  # nothing shows that the flow had written no batch
    task.clear()
    assert task.attempt()["state"] == "COMPLETED"
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


@either_way
def test_the_first_running_of_a_continuous_pipeline_is_no_success(workspace: FakeWorkspace, deferrable: bool) -> None:
    pipeline = samples.customers(workspace, continuous=True)
    pipeline.when["RESETTING"] = lambda p: setattr(p.flows[FLOW], "error", FlowFailed("SOME_ERROR", "it does not run"))
    about = {"on_active_update": "stop", "wait_for": "RUNNING", "deferrable": deferrable, "accept": "UNKNOWN"}
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
        if pipeline.flows[FLOW].resets and next(runs) == 1:
            pipeline.flows[FLOW].error = FlowFailed("SOME_ERROR", "it ran for a moment")
        run(update)

    pipeline._run = failing  # type: ignore[method-assign]
    about = {"on_active_update": "stop", "wait_for": "RUNNING", "flows_run_for": 3600.0, "accept": "UNKNOWN"}
    with pytest.raises(AirflowFailException, match="it ran for a moment"):
        Task(lambda: reset(pipeline, **about)).attempt()


def test_an_update_that_leaves_the_flow_out_is_no_success(workspace: FakeWorkspace) -> None:
    pipeline = samples.orders(workspace)
    flow = "main.orders.bronze"
    position = {flow: {"options": {"startingOffsets": "x"}, "deployed": True, "all_sources": True}}
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
