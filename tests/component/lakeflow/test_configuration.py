"""How a position reaches the code: parameters reach SQL only, the configuration reaches Python, and is put back."""

from __future__ import annotations

import random
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from databricks.sdk.service.pipelines import PipelinesAPI

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook
from airflow_ckpt_provider.lakeflow.settings import MARK, PutBack, merge_configuration, put_back_configuration
from airflow_ckpt_provider.operators.pipeline_configuration import PipelineConfigurationPutBackOperator
from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from tests.fake_databricks import Dataset, FakeWorkspace, Flow, FlowFailed, samples
from tests.fake_databricks.pace import Pace
from tests.fake_databricks.pipelines import Pipeline
from tests.support import lakeflow_resets
from tests.support.attempts import Killed, Task
from tests.support.guard_reports import delta_report, kafka_report

KEY = "orders.startingOffsets"
OFFSETS = '{"orders-events": {"0": 20}}'
TABLE = "main.sales.orders"
BEFORE = {"startingOffsets": "earliest", "spark.sql.shuffle.partitions": "8"}
WANTED = {"startingOffsets": OFFSETS}
POSITION = {"orders": {"options": {"startingOffsets": OFFSETS}, "carried_by": {"startingOffsets": "startingOffsets"}}}
#: What a guard says that has asked the broker: without it no position of Kafka is safe.
ASKED = kafka_report("orders-events")


@pytest.fixture
def pipeline(workspace: FakeWorkspace) -> Pipeline:
    """A Python flow from Kafka: 20 records were read, five have come since, and it fails on its checkpoint."""
    return broken(workspace)


def broken(workspace: FakeWorkspace, **settings: Any) -> Pipeline:
    topic = workspace.add_source("orders-events", "kafka")
    for number in range(20):
        topic.add(samples.BEGIN, id=f"o{number:03d}")
    about: dict[str, Any] = {"configuration": BEFORE, "parameters": {"region": "eu"}, **settings}
    flow = Flow("orders", "orders", ("orders-events",), operators=("dedupe",), explicit_name=True)
    made = workspace.add_pipeline("sales", datasets=[Dataset("orders")], flows=[flow], **about)
    made.spec |= {"tags": {"team": "sales"}, "libraries": [{"file": {"path": "/pipelines/orders.py"}}]}
    made.start({})
    made.advance()
    flow.operators = ()
    for number in range(20, 25):
        topic.add(samples.BEGIN, id=f"o{number:03d}")
    made.start({})
    made.advance()
    assert made.updates[-1].state == "FAILED"
    return made


def reset(pipeline: Pipeline, **fields: Any) -> ResetCheckpointOperator:
    about: dict[str, Any] = {
        "pipeline_id": pipeline.pipeline_id,
        "flows": ["orders"],
        "mode": "apply",
        "poll_interval": 0.001,
        "flows_run_for": 0.0,
        "guard_report": ASKED,
        "starting_positions": POSITION,
        "sources": {"orders": ["orders-events"]},
    }
    return ResetCheckpointOperator(task_id="reset", **{**about, **fields})


def count(workspace: FakeWorkspace) -> tuple[int, int]:
    """Rows, and rows of different ids."""
    rows = [row["id"] for row in workspace.rows(TABLE)]
    return len(rows), len(set(rows))


def test_control_parameters_of_a_post_do_not_reach_python(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    pipeline.start({"reset_checkpoint_selection": ["orders"], "parameters": WANTED})
    pipeline.advance()
    assert pipeline.updates[-1].state == "COMPLETED"
    assert count(workspace) == (45, 25)


@pytest.mark.parametrize(
    ("path", "said", "verdict", "words"),
    [
        (
            "/pipelines/orders.py",
            "",
            "WILL_DUPLICATE",
            "parameters do not reach Python code (the flow is Python: all source",
        ),
        ("/pipelines/orders", "", "UNKNOWN", "it is not known which the flow is written in"),
        ("/pipelines/orders.py", "sql", "SAFE", "which SQL reads as :offsets (the flow is SQL: as you say)"),
        ("/pipelines/orders.sql", "", "SAFE", "the flow is SQL: all source files of the pipeline are of that kind"),
        ("/pipelines/orders.sql", "python", "WILL_DUPLICATE", "the flow is Python: as you say"),
    ],
)
def test_the_verdict_says_which_way_the_code_gets_it(
    workspace: FakeWorkspace, pipeline: Pipeline, path: str, said: str, verdict: str, words: str
) -> None:
    pipeline.spec["libraries"] = [{"file": {"path": path}}]
    position = {"orders": {**POSITION["orders"], "carried_by": {"startingOffsets": "offsets"}, "language": said}}
    made = lambda **more: reset(  # noqa: E731
        pipeline, starting_positions=position, parameters={"offsets": OFFSETS}, **more
    )
    plan = Task(lambda: made(mode="plan")).attempt()["plan"]
    assert (plan["verdict"], words in " ".join(plan["reasons"])) == (verdict, True), plan["reasons"]
    if verdict != "SAFE":
        with pytest.raises(AirflowFailException, match=f"the verdict is {verdict}"):
            Task(made).attempt()


def test_sql_reads_parameters(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    pipeline.flows["orders"].language = "sql"
    pipeline.spec["libraries"] = [{"file": {"path": "/pipelines/orders.sql"}}]
    del pipeline.configuration["startingOffsets"]
    result = Task(lambda: reset(pipeline, parameters=WANTED)).attempt()
    assert result["plan"]["verdict"] == "SAFE"
    assert count(workspace) == (25, 25)


@pytest.mark.parametrize("serverless", [True, False])
def test_python_reads_the_configuration_and_it_is_put_back(workspace: FakeWorkspace, serverless: bool) -> None:
    pipeline = broken(workspace, serverless=serverless)
    spec = dict(pipeline.spec)
    result = Task(lambda: reset(pipeline, configuration=WANTED)).attempt()
    assert result["plan"]["verdict"] == "SAFE"
    assert "into which it is merged before the start" in " ".join(result["plan"]["reasons"])
    assert count(workspace) == (25, 25)
    assert pipeline.configuration == BEFORE
    assert pipeline.parameters == {"region": "eu"}
    assert {k: v for k, v in pipeline.spec.items() if v} == {k: v for k, v in spec.items() if v}
    puts = workspace.asked("PUT")
    assert len(puts) == 2
    for put in puts:
        assert set(put.body) <= set(signature(PipelinesAPI.update).parameters), "the vendor's client has every field"
    assert workspace.requests.index(puts[0]) < workspace.requests.index(workspace.asked("POST", "/updates")[0])


def test_a_new_key_is_removed_again(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    del pipeline.configuration["startingOffsets"]
    kept = dict(pipeline.configuration)
    Task(lambda: reset(pipeline, configuration=WANTED)).attempt()
    assert count(workspace) == (25, 25)
    assert pipeline.configuration == kept


def test_it_is_put_back_when_the_run_fails(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    pipeline.when["SETTING_UP_TABLES"] = lambda p: setattr(p.flows["orders"], "error", FlowFailed("X_Y", "no"))
    with pytest.raises(AirflowFailException, match="reads all of its source again"):
        Task(lambda: reset(pipeline, configuration=WANTED)).attempt()
    assert pipeline.configuration == BEFORE


def test_it_is_put_back_when_the_start_is_refused(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    workspace.fault("POST", "/updates$", status=400)
    with pytest.raises(AirflowFailException, match="400"):
        Task(lambda: reset(pipeline, configuration=WANTED)).attempt()
    assert pipeline.configuration == BEFORE


def test_killed_anywhere_and_retried(workspace: FakeWorkspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after every request: one reset, every row once, the configuration as it was."""
    call = DatabricksPipelinesHook._do_api_call
    for at in range(80):
        workspace.sources.clear()
        workspace.pipelines.clear()
        pipeline = broken(workspace, schema=f"s{at}")
        moments = iter(range(1000))

        def mortal(hook: Any, *args: Any, at: int = at, moments: Any = moments, **kwargs: Any) -> Any:
            if next(moments) == at:
                raise Killed
            found = call(hook, *args, **kwargs)
            if next(moments) == at:
                raise Killed
            return found

        task = Task(lambda pipeline=pipeline: reset(pipeline, configuration=WANTED), run_id=f"run{at}")
        with monkeypatch.context() as patched:
            patched.setattr(DatabricksPipelinesHook, "_do_api_call", mortal)
            try:
                task.attempt()
            except Killed:
                task.attempt()
            else:
                assert at > 20, "the moments ended too early"
                return
        rows = [row["id"] for row in workspace.rows(f"main.s{at}.orders")]
        assert (len(rows), len(set(rows)), pipeline.flows["orders"].resets) == (25, 25, 1), at
        assert pipeline.configuration == BEFORE, at
    raise AssertionError("it never ran to its end")


@pytest.mark.parametrize("seed", range(20))
def test_lost_answers_and_edits_in_between(workspace: FakeWorkspace, pipeline: Pipeline, seed: int) -> None:
    chance = random.Random(seed)
    for nth in (1, 2):
        effect = chance.random() < 0.5
        what = {"cut": True} if chance.random() < 0.5 else {"status": 503}
        workspace.fault("PUT", "", nth=nth, took_effect=effect, **what)

    def somebody_else() -> None:
        pipeline.edit(
            {
                **pipeline.spec,
                "configuration": {**pipeline.configuration, "theirs": "1"},
                "parameters": {"region": "eu"},
            }
        )

    workspace.fault("GET", f"/pipelines/{pipeline.pipeline_id}$", nth=chance.randrange(2, 6), then=somebody_else)
    Task(lambda: reset(pipeline, configuration=WANTED)).attempt()
    assert count(workspace) == (25, 25)
    assert pipeline.configuration == {**BEFORE, "theirs": "1"}


@pytest.fixture
def just_before_an_edit(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Lets somebody else edit the pipeline once, between our read and our edit, which is a conflict then."""

    def arranged(theirs: Callable[[], None]) -> None:
        edit, left = DatabricksPipelinesHook.edit_pipeline, [theirs]

        def edited(self: DatabricksPipelinesHook, pipeline_id: str, body: dict[str, Any]) -> None:
            while left:
                left.pop()()
            edit(self, pipeline_id, body)

        monkeypatch.setattr(DatabricksPipelinesHook, "edit_pipeline", edited)

    return arranged


def test_somebody_edits_another_setting_at_the_same_moment(
    workspace: FakeWorkspace, pipeline: Pipeline, just_before_an_edit: Callable[[Callable[[], None]], None]
) -> None:
    """Their edit stays, and the workspace is not blamed for it."""
    just_before_an_edit(
        lambda: pipeline.edit({**pipeline.spec, "tags": {"team": "other"}, "parameters": {"region": "us"}})
    )
    merge_configuration(DatabricksPipelinesHook(), pipeline.pipeline_id, WANTED, "me")
    assert (pipeline.configuration["startingOffsets"], pipeline.spec["tags"]) == (OFFSETS, {"team": "other"})
    assert pipeline.parameters == {"region": "us"}


def test_a_retry_does_not_write_over_what_somebody_has_set_since(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    """It took its own former value for the one to put back, and their edit was gone without a trace."""
    hook = DatabricksPipelinesHook()
    merge_configuration(hook, pipeline.pipeline_id, WANTED, "me")
    theirs = {**pipeline.configuration, "startingOffsets": "latest"}
    pipeline.edit({**pipeline.spec, "configuration": theirs})
    with pytest.raises(
        RefusedError, match="somebody has set startingOffsets of its configuration to 'latest' since me"
    ):
        merge_configuration(hook, pipeline.pipeline_id, WANTED, "me")
    assert pipeline.configuration == theirs
    found = put_back_configuration(hook, pipeline.pipeline_id, "me")
    assert (found.put_back, found.changed_since) == ({}, {"startingOffsets": "latest"})
    merge_configuration(hook, pipeline.pipeline_id, WANTED, "me")
    pipeline.edit({**pipeline.spec, "configuration": {**pipeline.configuration, "startingOffsets": "latest"}})
    merge_configuration(hook, pipeline.pipeline_id, WANTED, "me")  # its former value is nobody's edit
    assert pipeline.configuration["startingOffsets"] == OFFSETS


def test_what_was_not_put_back_is_not_reported_as_put_back(
    workspace: FakeWorkspace, pipeline: Pipeline, just_before_an_edit: Callable[[Callable[[], None]], None]
) -> None:
    """A deployment replaces the configuration at the same moment, our note with it."""
    hook, deployed = DatabricksPipelinesHook(), {"startingOffsets": "deployed"}
    merge_configuration(hook, pipeline.pipeline_id, WANTED, "me")
    just_before_an_edit(lambda: pipeline.edit({**pipeline.spec, "configuration": deployed}))
    assert put_back_configuration(hook, pipeline.pipeline_id).put_back == {}
    assert pipeline.configuration == deployed


def test_a_worker_that_is_gone_for_good_leaves_a_note(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    hook = DatabricksPipelinesHook()
    merge_configuration(hook, pipeline.pipeline_id, WANTED, "dag/run1/reset/-1")
    assert pipeline.configuration["startingOffsets"] == OFFSETS
    plan = Task(lambda: reset(pipeline, configuration=WANTED, mode="plan")).attempt()["plan"]
    assert plan["verdict"] == "WILL_FAIL"
    assert "dag/run1/reset/-1 has changed the pipeline's configuration" in " ".join(plan["reasons"])
    with pytest.raises(AirflowFailException, match="has changed the pipeline's configuration"):
        Task(lambda: reset(pipeline, configuration=WANTED)).attempt()
    assert "(changed_by='dag/run1/reset/-1')" in " ".join(plan["reasons"])
    made = lambda: put_back(pipeline)  # noqa: E731
    nothing = {"changed_since": {}, "left_to": None}
    assert Task(made, run_id="run1").attempt() == {
        "pipeline_id": pipeline.pipeline_id,
        "put_back": {"startingOffsets": "earliest"},
        **nothing,
    }
    assert pipeline.configuration == BEFORE
    assert Task(made, run_id="run1").attempt()["put_back"] == {}
    merge_configuration(hook, pipeline.pipeline_id, WANTED, "dag/run1/reset/-1")
    running = pipeline.start({"validate_only": True})
    assert Task(made, run_id="run1").attempt()["put_back"] == {"startingOffsets": "earliest"}
    assert not running.active, "an update may need the configuration until it has ended"


def put_back(pipeline: Pipeline, **fields: Any) -> PipelineConfigurationPutBackOperator:
    return PipelineConfigurationPutBackOperator(
        task_id="back", pipeline_id=pipeline.pipeline_id, poll_interval=0.001, **fields
    )


def test_keys_of_a_continuous_pipeline_stay_until_its_flows_run(workspace: FakeWorkspace) -> None:
    """The task of the reset has timed out, and its update has not begun to read."""
    pipeline = broken(workspace)
    pipeline.spec["continuous"] = True
    pace, pipeline.pace = pipeline.pace, Pace.by_hand()
    with pytest.raises(AirflowException, match="not within"):
        Task(lambda: reset(pipeline, configuration=WANTED, wait_for="RUNNING", timeout=0.05)).attempt()
    with pytest.raises(AirflowException, match="is QUEUED, waiting for RUNNING"):
        Task(lambda: put_back(pipeline, timeout=0.05)).attempt()
    pipeline.pace = pace
    assert Task(lambda: put_back(pipeline)).attempt()["put_back"] == {"startingOffsets": "earliest"}
    pipeline.step()
    assert count(workspace) == (25, 25)
    assert pipeline.configuration == BEFORE


def test_a_filter_that_the_flow_may_still_need_is_not_put_back(workspace: FakeWorkspace) -> None:
    """The plan has said that it stays; the task of the reset has timed out."""
    pipeline = samples.customers(workspace)
    workspace.sources["/landing/customers"].filters_each_listing = True
    pace, pipeline.pace = pipeline.pace, Pace.by_hand()
    with pytest.raises(AirflowException, match="not within"):
        Task(lambda: lakeflow_resets.reset(pipeline, timeout=0.05)).attempt()
    pipeline.pace = pace
    assert Task(lambda: put_back(pipeline)).attempt()["put_back"] == {}
    assert pipeline.configuration == {"modifiedAfter": lakeflow_resets.READ_UP_TO}


def test_keys_of_another_run_are_left_and_named(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    """A reset of run 2 fails because run 1 still holds its keys; its put_back (one_failed) must not take them away."""
    hook = DatabricksPipelinesHook()
    merge_configuration(hook, pipeline.pipeline_id, WANTED, "dag/run1/reset/-1")
    held = dict(pipeline.configuration)
    with pytest.raises(AirflowFailException, match="dag/run1/reset/-1 has changed the pipeline's configuration"):
        Task(lambda: reset(pipeline, configuration=WANTED), run_id="run2").attempt()
    puts = len(workspace.asked("PUT"))
    found = Task(lambda: put_back(pipeline), run_id="run2").attempt()
    assert (found["put_back"], found["left_to"]) == ({}, "dag/run1/reset/-1")
    # Neither does a run whose id only begins alike.
    assert Task(lambda: put_back(pipeline), run_id="run").attempt()["left_to"] == "dag/run1/reset/-1"
    assert (pipeline.configuration, len(workspace.asked("PUT"))) == (held, puts)
    with pytest.raises(AirflowFailException, match="was changed by dag/run1/reset/-1, not by dag/run3/reset/-1"):
        Task(lambda: put_back(pipeline, changed_by="dag/run3/reset/-1"), run_id="run2").attempt()
    named = Task(lambda: put_back(pipeline, changed_by="dag/run1/reset/-1"), run_id="run2").attempt()
    assert named["put_back"] == {"startingOffsets": "earliest"}
    assert pipeline.configuration == BEFORE


def test_what_is_changed_while_it_is_put_back_stays_and_is_named(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    hook = DatabricksPipelinesHook()
    merge_configuration(hook, pipeline.pipeline_id, {**WANTED, "other": "x"}, "dag/run1/reset/-1")

    def somebody_else() -> None:
        theirs = {**pipeline.configuration, "startingOffsets": "latest"}
        pipeline.edit({**pipeline.spec, "configuration": theirs, "parameters": {"region": "eu"}})

    # The edit intervenes the reading that the PUT goes by and the PUT itself.
    workspace.fault("GET", f"/pipelines/{pipeline.pipeline_id}$", nth=3, then=somebody_else)
    found = Task(lambda: put_back(pipeline), run_id="run1").attempt()
    assert [put.status for put in workspace.asked("PUT")][-2:] == [409, 200]
    assert found["put_back"] == {"other": None}
    assert found["changed_since"] == {"startingOffsets": "latest"}
    assert pipeline.configuration == {**BEFORE, "startingOffsets": "latest"}


def test_what_somebody_changed_since_is_left(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    hook = DatabricksPipelinesHook()
    merge_configuration(hook, pipeline.pipeline_id, {**WANTED, "other": "x"}, "me")
    pipeline.configuration["startingOffsets"] = "latest"
    assert put_back_configuration(hook, pipeline.pipeline_id, "somebody else") == PutBack(left_to="me")
    found = put_back_configuration(hook, pipeline.pipeline_id, "me")
    assert found == PutBack({"other": None}, {"startingOffsets": "latest"})
    assert pipeline.configuration == {**BEFORE, "startingOffsets": "latest"}
    pipeline.configuration[MARK] = "nonsense"
    with pytest.raises(Exception, match="cannot be read"):
        merge_configuration(hook, pipeline.pipeline_id, WANTED, "me")


def test_a_bundle_deploys_it(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    pipeline.spec["deployment"] = {"kind": "BUNDLE", "metadata_file_path": "/bundle/metadata.json"}
    result = Task(lambda: reset(pipeline, configuration=WANTED, mode="plan")).attempt()
    warned = " ".join(result["plan"]["warnings"])
    assert "a bundle deploys the pipeline: its next deployment overwrites its configuration" in warned
    assert '"startingOffsets": "{\\"orders-events\\": {\\"0\\": 20}}"' in warned


def test_who_may_run_and_not_edit(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    workspace.run_only.add(pipeline.pipeline_id)
    with pytest.raises(Exception, match=r"403.*\n?.*HINT: an edit needs the permission CAN MANAGE"):
        Task(lambda: reset(pipeline, configuration=WANTED)).attempt()
    assert pipeline.flows["orders"].resets == 0


@pytest.mark.parametrize("each_listing", [True, False])
@pytest.mark.parametrize("after", [None, "put_back", "keep"])
def test_a_filter_of_files_stays(workspace: FakeWorkspace, each_listing: bool, after: str | None) -> None:
    """No page of the vendor says whether files that ``modifiedAfter`` left out are read once it is gone: both are tried."""
    pipeline = samples.customers(workspace)
    landing = workspace.sources["/landing/customers"]
    landing.filters_each_listing = each_listing
    samples.remove_drop_duplicates(pipeline)
    samples.land(landing, 2)
    value = "2026-08-20T05:00:00Z"
    position = {
        samples.INCREMENTAL: {
            "options": {"modifiedAfter": value},
            "carried_by": {"modifiedAfter": "modifiedAfter"},
            "all_sources": True,
        }
    }
    about = {"flows": [samples.INCREMENTAL], "starting_positions": position, "configuration": {"modifiedAfter": value}}
    accept = "UNKNOWN" if after == "put_back" else None
    result = Task(lambda: reset(pipeline, configuration_after=after, accept=accept, **about)).attempt()
    assert result["plan"]["verdict"] == ("UNKNOWN" if after == "put_back" else "SAFE")
    assert pipeline.configuration == ({} if after == "put_back" else {"modifiedAfter": value})
    pipeline.start({})
    pipeline.advance()
    doubled = 6 if after == "put_back" and each_listing else 0
    assert len(workspace.rows("main.customers.customers")) == 11 + doubled


@pytest.mark.parametrize(("after", "verdict"), [(None, "SAFE"), ("put_back", "UNKNOWN"), ("keep", "SAFE")])
def test_a_version_stays_that_the_flow_may_still_need(
    workspace: FakeWorkspace, pipeline: Pipeline, after: str | None, verdict: str
) -> None:
    position = {"orders": {"options": {"startingVersion": "7"}, "carried_by": {"startingVersion": "version"}}}
    about = {"starting_positions": position, "configuration": {"version": "7"}, "configuration_after": after}
    about["guard_report"] = {"orders": delta_report("s3://lake/orders-events")}
    plan = Task(lambda: reset(pipeline, mode="plan", **about)).attempt()["plan"]
    assert plan["verdict"] == verdict
    assert ("leave version in the configuration" in plan["steps"]) is (after != "put_back")


def test_through_a_job_and_without_waiting(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    job = workspace.add_job("nightly", pipeline)
    about = {"job_id": job.job_id, "configuration": WANTED}
    plan = Task(lambda: reset(pipeline, mode="plan", **about)).attempt()["plan"]
    assert [call["method"] for call in plan["calls"]] == ["PUT", "POST"]
    Task(lambda: reset(pipeline, **about)).attempt()
    assert count(workspace) == (25, 25)
    assert pipeline.configuration == BEFORE
    with pytest.raises(AirflowFailException, match="nothing waits for that"):
        Task(lambda: reset(pipeline, configuration=WANTED, wait_for=None), run_id="2").attempt()
    kept = {"configuration": WANTED, "configuration_after": "keep", "wait_for": None}
    Task(lambda: reset(pipeline, **kept), run_id="3").attempt()
    assert pipeline.configuration == {**BEFORE, **WANTED}, "no note of ours is left"


def test_settings_that_the_workspace_does_not_keep(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    edit = pipeline.edit

    def forgetful(body: dict[str, Any]) -> None:
        edit({key: value for key, value in body.items() if key != "tags"})

    pipeline.edit = forgetful  # type: ignore[method-assign]
    with pytest.raises(AirflowFailException, match="with its configuration the workspace has changed tags"):
        Task(lambda: reset(pipeline, configuration=WANTED)).attempt()
    assert pipeline.configuration == BEFORE
    assert not workspace.asked("POST", "/updates")
