"""dags/lakeflow_recover.py on the fake workspace: the scenario of the vendor's page, to its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError

from airflow_ckpt_provider.operators.pipeline_waiting import PipelineOperator
from tests.fake_databricks import WAREHOUSE, FakeWorkspace, FlowFailed, Pipeline
from tests.fake_databricks.samples import INCREMENTAL, customers, land, remove_drop_duplicates
from tests.support.airflow_runs import Answer, RunDag, result, states

pytestmark = pytest.mark.airflow

#: The newest file that the flow had read before it failed; two more have landed since.
RIGHT, TOO_EARLY, TOO_LATE = "2026-08-20T05:00:00Z", "2026-08-20T02:00:00Z", "2026-08-20T06:30:00Z"
PRODUCTION, TEST = "customers", "customers_test"


def table(name: str) -> str:
    return f"main.{name}.customers"


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWorkspace]:
    with FakeWorkspace() as workspace:
        monkeypatch.setenv("AIRFLOW_CONN_DATABRICKS_DEFAULT", workspace.airflow_connection())
        monkeypatch.setattr(PipelineOperator, "follow_up_within", 0.0)
        yield workspace


def broken(workspace: FakeWorkspace, name: str) -> Pipeline:
    """The pipeline after ``dropDuplicates`` was taken out and two more files have landed."""
    pipeline = customers(workspace, name, pipeline_id=name)
    land(workspace.sources[f"/landing/{name}"], 2)
    remove_drop_duplicates(pipeline)
    pipeline.start({}, cause="USER_ACTION")
    pipeline.advance()
    assert pipeline.state == "FAILED"
    return pipeline


@pytest.fixture
def production(workspace: FakeWorkspace) -> Pipeline:
    return broken(workspace, PRODUCTION)


@pytest.fixture
def test_pipeline(workspace: FakeWorkspace) -> Pipeline:
    return broken(workspace, TEST)


def checks(name: str) -> dict[str, Any]:
    return {table(name): {"keys": ["id"], "expected": f"SELECT id FROM read_files('/landing/{name}')"}}


def about(name: str) -> dict[str, Any]:
    """What a person says of the flow."""
    facts = {"sources": {f"/landing/{name}": "files"}, "carried_by": {"modifiedAfter": "modifiedAfter"}}
    return {INCREMENTAL: {**facts, "language": "python", "keys": ["id"], "stateful": False}}


@pytest.fixture
def recover(example_dags: dict[str, DAG], run_dag: RunDag) -> Callable[..., Any]:
    """Fill in the form and run the DAG."""

    def run(after: str | None = RIGHT, **form: Any) -> Any:
        dag = example_dags["lakeflow_recover"]
        for each in dag.tasks:
            if hasattr(each, "poll_interval"):
                each.poll_interval = 0.01
        positions = {
            INCREMENTAL: {
                "options": {"modifiedAfter": after},
                "carried_by": {"modifiedAfter": "modifiedAfter"},
                "all_sources": True,
            }
        }
        facts = {"source": "files", "source_holds_unread": True, "source_holds_history": False, "stateful": False}
        conf = {
            "pipeline": PRODUCTION,
            "facts": facts,
            "flows": [INCREMENTAL],
            "starting_positions": positions if after else {},
            "tables": ["customers"],
            "warehouse_id": WAREHOUSE,
            "checks": checks(PRODUCTION),
            **form,
        }
        return run_dag(dag, run_conf=conf)

    return run


def counted(workspace: FakeWorkspace, name: str = PRODUCTION) -> tuple[int, int, int]:
    """Rows, rows too many, and customers that are lost (11 have landed or were there from the start)."""
    found = Counter(row["id"] for row in workspace.rows(table(name)))
    return sum(found.values()), sum(found.values()) - len(found), 11 - len(found)


def succeeded(run: Any) -> set[str]:
    return {task for task, state in states(run).items() if state == "success"}


def test_the_form_is_a_plan_and_nothing_of_production_comes_before_the_approval(example_dags: dict[str, DAG]) -> None:
    dag = example_dags["lakeflow_recover"]
    form = {name: dag.params.get_param(name) for name in dag.params}
    assert (form["mode"].value, form["strategy"].value, form["accept"].value) == ("plan", "advise me", None)
    assert all(each.schema.get("title") for each in form.values())
    with pytest.raises(ParamValidationError):
        form["strategy"].resolve("delete everything")
    with pytest.raises(ParamValidationError):
        form["pipeline"].resolve("")
    approved = dag.get_task("approve").get_flat_relative_ids(upstream=False)
    for each in dag.tasks:
        if getattr(each, "mode", "plan") == "apply" and "params.pipeline " in str(each.pipeline_id):
            # The branch before it runs when all before that has succeeded, and so the approval.
            branch = next(task for task in each.upstream_list if task.task_id.startswith("which_"))
            assert {each.task_id, branch.task_id, "before"} <= approved
            assert {dag.get_task(task_id).trigger_rule for task_id in (branch.task_id, "before")} == {"all_success"}
            if each.trigger_rule != "all_success":
                # Positions are found again in between, unless the form gives them: behind the branch too.
                between = dag.get_task("find_again")
                assert each.upstream_task_ids == {branch.task_id, "find_again"}
                assert (between.upstream_task_ids, between.trigger_rule) == ({"room"}, "all_success")
                room = dag.get_task("room")
                assert (room.upstream_task_ids, room.trigger_rule) == ({branch.task_id}, "all_success")
                assert each.trigger_rule == "none_failed_min_one_success"


def test_the_plan_that_is_shown_and_applied_is_that_of_the_way_of_now(example_dags: dict[str, DAG]) -> None:
    """Where a run is cleared and finds another way, the task that it skips still has the plan of before."""
    dag = example_dags["lakeflow_recover"]
    left = {
        "advise": {"way": "full_refresh", "markdown": "ways"},
        "plan_reset": {"markdown": "old plan", "plan": {"fingerprint": "old"}},
        "plan_refresh": {"markdown": "new plan", "plan": {"fingerprint": "new"}},
    }
    ti = SimpleNamespace(xcom_pull=lambda task_ids: left.get(task_ids))
    approve, refresh = dag.get_task("approve"), dag.get_task("refresh")
    assert approve.render_template(approve.body, {"ti": ti}).startswith("new plan")
    assert refresh.render_template(refresh.fingerprint, {"ti": ti}) == "new"


@pytest.mark.slow
def test_a_plan_sends_nothing_but_reads(
    recover: Callable[..., Any], workspace: FakeWorkspace, production: Pipeline
) -> None:
    run = recover()
    assert run.state == "success"
    assert succeeded(run) == {"positions_given", "advise", "which_plan_reset", "plan_reset", "what_next"}
    assert {request.method for request in workspace.requests} == {"GET"}
    assert result(run, "advise")["way"] == "reset_checkpoint"
    plan = result(run, "plan_reset")
    assert plan["plan"]["verdict"] == "SAFE", plan["markdown"]
    assert [call["body"] for call in plan["plan"]["calls"]] == [
        {"configuration": {"modifiedAfter": RIGHT}},
        {"reset_checkpoint_selection": [INCREMENTAL]},
    ]
    assert production.flows[INCREMENTAL].resets == 0


@pytest.mark.slow
def test_the_vendors_scenario(
    recover: Callable[..., Any],
    workspace: FakeWorkspace,
    production: Pipeline,
    test_pipeline: Pipeline,
    answer: Answer,
) -> None:
    """Positions are found, in the test pipeline from its own event log and files; both begin behind the newest file."""
    answer("lakeflow_recover", "Approve")
    assert counted(workspace) == (9, 0, 2)
    form = {"flows": [], "about": about(PRODUCTION), "test_about": about(TEST), "margin": 0}
    run = recover(None, mode="apply", test_pipeline=TEST, test_checks=checks(TEST), **form)
    assert run.state == "success"
    assert {"find", "test_find", "test_reset", "test_after", "approve", "find_again", "reset", "after"} <= succeeded(
        run
    )
    for words in ("**Identify.**", "**Position**", "**Carried**", "**Reset**", "**Verify**"):
        assert words in result(run, "find")["flows_markdown"]
    assert result(run, "advise")["way"] == "reset_checkpoint"
    (after,) = result(run, "find")["configuration"].values()
    assert after == "2026-08-20T05:59:59.999Z", "a millisecond before the oldest file that is not read"
    assert result(run, "plan_reset")["plan"]["verdict"] == "SAFE"
    assert "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA in both" in result(run, "reproduced")
    for name, pipeline in ((TEST, test_pipeline), (PRODUCTION, production)):
        assert counted(workspace, name) == (11, 0, 0), "the table is kept, and no row is lost or doubled"
        assert {flow.name: flow.resets for flow in pipeline.flows.values()} == {
            "customers_initial_flow": 0,
            INCREMENTAL: 1,
        }
    assert result(run, "after")["tables"] == {table(PRODUCTION): {"rows": 11, "doubled": 0, "missing": 0}}
    assert result(run, "after")["verdict"] == "SAFE"
    posts = [str(request).replace(TEST, "test") for request in workspace.asked("POST", "/updates")]
    body = f'{{"reset_checkpoint_selection": ["{INCREMENTAL}"]}}'
    assert posts == [f"POST /api/2.0/pipelines/{name}/updates {body}" for name in ("test", PRODUCTION)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "verdict", "counts"),
    [(TOO_EARLY, "WILL_DUPLICATE", (14, 3, 0)), (TOO_LATE, "WILL_LOSE", (10, 0, 1))],
)
def test_a_wrong_time_is_caught_on_the_test_pipeline(
    recover: Callable[..., Any],
    workspace: FakeWorkspace,
    production: Pipeline,
    test_pipeline: Pipeline,
    after: str,
    verdict: str,
    counts: tuple[int, int, int],
) -> None:
    run = recover(after, mode="apply", test_pipeline=TEST, test_checks=checks(TEST))
    assert run.state == "failed"
    assert states(run)["test_after"] == "failed"
    assert result(run, "test_after")["verdict"] == verdict
    assert counted(workspace, TEST) == counts
    assert states(run)["approve"] == "upstream_failed"
    assert counted(workspace) == (9, 0, 2), "production was not touched"
    assert production.flows[INCREMENTAL].resets == 0


def found_form(**form: Any) -> dict[str, Any]:
    return {"mode": "apply", "flows": [], "about": about(PRODUCTION), "margin": 0, **form}


@pytest.mark.slow
def test_a_flow_that_has_read_on_since_the_approval_is_not_reset(
    example_dags: dict[str, DAG],
    recover: Callable[..., Any],
    workspace: FakeWorkspace,
    production: Pipeline,
    answer: Answer,
) -> None:
    answer("lakeflow_recover", "Approve")
    flow = production.flows[INCREMENTAL]

    def repaired_and_broken_again(context: Any) -> None:
        flow.operators = flow.checkpoint.operators if flow.checkpoint else ()
        production.start({}, cause="USER_ACTION")
        production.advance()
        land(workspace.sources["/landing/customers"], 1)
        remove_drop_duplicates(production)
        production.start({}, cause="USER_ACTION")
        production.advance()

    example_dags["lakeflow_recover"].get_task("before").pre_execute = repaired_and_broken_again  # type: ignore[method-assign]
    run = recover(None, **found_form())
    assert (states(run)["find_again"], states(run)["reset"]) == ("success", "failed")
    assert flow.resets == 0
    assert result(run, "find")["configuration"] != result(run, "find_again")["configuration"]
    assert production.configuration == {}


@pytest.mark.slow
def test_where_the_update_fails_no_note_is_left_in_the_configuration(
    recover: Callable[..., Any], workspace: FakeWorkspace, production: Pipeline, answer: Answer
) -> None:
    answer("lakeflow_recover", "Approve")
    production.when["RUNNING"] = lambda p: setattr(p.flows[INCREMENTAL], "error", FlowFailed("SOME_ERROR", "no"))
    run = recover(None, **found_form())
    assert (states(run)["reset"], states(run)["put_back"]) == ("failed", "success")
    assert production.configuration == {"modifiedAfter": "2026-08-20T05:59:59.999Z"}, (
        "what the flow may still need stays"
    )


@pytest.mark.slow
def test_full_refresh(
    recover: Callable[..., Any],
    workspace: FakeWorkspace,
    production: Pipeline,
    test_pipeline: Pipeline,
    answer: Answer,
) -> None:
    answer("lakeflow_recover", "Approve")
    form = {"strategy": "full_refresh", "test_pipeline": TEST, "test_checks": checks(TEST), "accept": "UNKNOWN"}
    run = recover(None, mode="apply", **form)
    assert run.state == "success"
    assert {"plan_refresh", "test_refresh", "refresh", "after"} <= succeeded(run)
    assert {states(run)[task] for task in ("find", "test_find", "find_again", "put_back")} == {"skipped"}
    for name in (TEST, PRODUCTION):
        assert counted(workspace, name) == (11, 0, 0)


@pytest.mark.slow
def test_without_a_test_pipeline_it_is_counted_afterwards(
    recover: Callable[..., Any], workspace: FakeWorkspace, production: Pipeline, answer: Answer
) -> None:
    answer("lakeflow_recover", "Approve")
    run = recover(TOO_LATE, mode="apply")
    assert (run.state, states(run)["reset"], states(run)["after"]) == ("failed", "success", "failed")
    assert result(run, "after")["reasons"] == [f"{table(PRODUCTION)}: 1 rows of its source are not in it"]
    assert counted(workspace) == (10, 0, 1)


@pytest.mark.slow
def test_no_is_a_no(
    recover: Callable[..., Any], workspace: FakeWorkspace, production: Pipeline, answer: Answer
) -> None:
    answer("lakeflow_recover", "Reject")
    run = recover(mode="apply")
    assert run.state == "success"
    assert states(run)["reset"] == states(run)["after"] == "skipped"
    assert workspace.asked("POST") == []


@pytest.mark.slow
def test_without_a_position_nothing_is_reset(
    recover: Callable[..., Any], workspace: FakeWorkspace, production: Pipeline, answer: Answer
) -> None:
    answer("lakeflow_recover", "Approve")
    run = recover(None, mode="apply", strategy="reset_checkpoint")
    assert states(run)["reset"] == "failed"
    assert production.flows[INCREMENTAL].resets == 0


@pytest.mark.slow
def test_another_failure_on_the_test_pipeline_proves_nothing(
    recover: Callable[..., Any], workspace: FakeWorkspace, production: Pipeline
) -> None:
    customers(workspace, TEST, pipeline_id=TEST)
    run = recover(mode="apply", test_pipeline=TEST, test_checks=checks(TEST))
    assert states(run)["reproduced"] == "failed"
    assert workspace.asked("POST", "/updates") == []


@pytest.mark.slow
def test_full_refresh_with_backup_and_backfill(
    recover: Callable[..., Any],
    workspace: FakeWorkspace,
    production: Pipeline,
    test_pipeline: Pipeline,
    answer: Answer,
) -> None:
    """The landing directories have lost their first four files: only the copy still has these customers."""
    for name in (PRODUCTION, TEST):
        workspace.sources[f"/landing/{name}"].expire_before(4)
    answer("lakeflow_recover", "Approve")
    run = recover(
        None,
        mode="apply",
        strategy="full_refresh_with_backup",
        backfill="merge",
        test_pipeline=TEST,
        test_checks=checks(TEST),
        accept="UNKNOWN",
    )
    assert run.state == "success"
    assert {"plan_refresh", "test_refresh", "refresh", "after"} <= succeeded(run)
    assert counted(workspace) == (11, 0, 0)
    done = result(run, "refresh")
    assert [(each["rows"], bool(each["backup"])) for each in done["backups"]] == [(9, True)]
    assert done["verification"][0]["brought_back"] == 4
