"""What is made of the positions that were found: arguments, parameters, and random histories in which SAFE is never wrong."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.operators.pipeline_positions import PipelinePositionsOperator
from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from airflow_ckpt_provider.operators.table_check import TableCheckOperator
from tests.fake_databricks import WAREHOUSE, Dataset, FakeWorkspace, Flow
from tests.fake_databricks.sources import Kind
from tests.support.attempts import Task
from tests.support.found_positions import NAMES, broken, go, land, made, only, rows_of, run, steps

MINUTES = timedelta(minutes=1)


def test_the_operator_gives_the_arguments_of_the_reset(workspace: FakeWorkspace) -> None:
    pipeline, source = made(workspace, "delta")
    broken(workspace, pipeline, source)
    about = {
        "main.sales.orders": {
            "sources": [NAMES["delta"]],
            "carried_by": {"startingVersion": "orders.startingVersion"},
            "language": "python",
            "keys": ["id"],
            "stateful": False,
        }
    }
    seen = len(workspace.requests)
    found = Task(
        lambda: PipelinePositionsOperator(
            task_id="find", pipeline_id=pipeline.pipeline_id, warehouse_id=WAREHOUSE, about=about, poll_interval=0.001
        )
    ).attempt()
    assert {r.method for r in workspace.requests[seen:] if "/sql/" not in r.path} == {"GET"}
    assert found["flows"] == ["main.sales.orders"]
    step = found["steps"][0]
    assert step["failure"].startswith("[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA]")
    assert step["carried"] == {"by": "configuration", "keys": {"orders.startingVersion": "12"}}
    for words in ("1. **Identify.**", "2. **Position**", "3. **Carried**", "4. **Reset**", "5. **Verify**"):
        assert words in found["markdown"]
    reset = {name: found[name] for name in ("flows", "starting_positions", "configuration", "parameters")}
    Task(
        lambda: ResetCheckpointOperator(
            task_id="reset", pipeline_id=pipeline.pipeline_id, mode="apply", poll_interval=0.001, **reset
        )
    ).attempt()
    counted = Task(
        lambda: TableCheckOperator(task_id="check", tables=found["checks"], warehouse_id=WAREHOUSE, poll_interval=0.001)
    ).attempt()
    assert counted["tables"]["main.sales.orders"] == {"rows": 15, "doubled": 0}


def test_sql_flows_get_parameters(workspace: FakeWorkspace) -> None:
    pipeline, source = made(workspace, "delta")
    pipeline.flows["orders"].language = "sql"
    broken(workspace, pipeline, source)
    found = steps(workspace, pipeline, "delta", language="sql")
    assert (found.parameters, found.configuration) == ({"orders.startingVersion": "12"}, {})
    assert found.verdict.value == "UNKNOWN"
    assert "only this update has the parameter orders.startingVersion" in found.plan.reasons[0]
    pipeline.parameters = {"orders.startingVersion": "12"}
    assert steps(workspace, pipeline, "delta", language="sql").verdict.value == "SAFE", "later updates have it too"
    pipeline.parameters = {}
    go(pipeline, found)
    assert rows_of(workspace) == (15, 15)
    assert not workspace.asked("PUT")


def test_sql_flows_that_read_the_configuration(workspace: FakeWorkspace) -> None:
    pipeline, source = made(workspace, "files")
    pipeline.flows["orders"].language = "sql"
    broken(workspace, pipeline, source)
    found = steps(workspace, pipeline, "files", language="sql", carried_in="configuration", margin=timedelta(0))
    assert (found.verdict.value, found.parameters, list(found.configuration)) == ("SAFE", {}, ["orders.modifiedAfter"])
    go(pipeline, found)
    run(workspace, pipeline)
    assert rows_of(workspace) == (15, 15)


def test_keys_that_nobody_has_said_the_code_reads(workspace: FakeWorkspace) -> None:
    pipeline, source = made(workspace, "delta")
    broken(workspace, pipeline, source)
    found = steps(workspace, pipeline, "delta", carried_by={})
    assert (only(found).verdict.value, found.verdict.value) == ("SAFE", "UNKNOWN")
    assert found.configuration == {"orders.startingVersion": "12"}
    assert "see that the deployed code reads them" in found.to_markdown()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"about": {"nosuch": {}}}, "about names flow nosuch, which is not reset"),
        ({"about": {"main.sales.orders": {"colour": "red"}}}, "about has 'main.sales.orders'"),
        ({"about": "no json"}, "about is 'no json'"),
        ({"about": {"main.sales.orders": {"target": "upsert"}}}, "target is 'upsert'"),
        ({"about": {"main.sales.orders": {"language": "scala"}}}, "the language of flow main.sales.orders is 'scala'"),
        ({"margin": "soon"}, "margin is 'soon'"),
        ({"margin": -1.0}, "margin is -1.0"),
    ],
)
def test_bad_input(workspace: FakeWorkspace, given: dict[str, Any], message: str) -> None:
    pipeline, source = made(workspace, "delta")
    broken(workspace, pipeline, source)
    with pytest.raises(AirflowFailException, match=message):
        Task(lambda: PipelinePositionsOperator(task_id="find", pipeline_id=pipeline.pipeline_id, **given)).attempt()


def test_nothing_has_failed(workspace: FakeWorkspace) -> None:
    pipeline, _ = made(workspace, "delta")
    with pytest.raises(AirflowFailException, match="no flow of its newest update has failed"):
        Task(lambda: PipelinePositionsOperator(task_id="find", pipeline_id=pipeline.pipeline_id)).attempt()


def random_history(workspace: FakeWorkspace, seed: int) -> dict[str, Any]:
    """A random life of a flow, a recovery from the position that is found, and what became of the rows."""
    chance = random.Random(seed)
    kind: Kind = chance.choice(["kafka", "delta", "files"])
    workspace.sources.clear()
    workspace.pipelines.clear()
    source = workspace.add_source(NAMES[kind], kind)
    start = {"startingOffsets": "earliest"} if kind == "kafka" else {}
    schema = f"s{seed}"
    pipeline = workspace.add_pipeline(
        "sales",
        schema=schema,
        datasets=[Dataset("orders")],
        flows=[Flow("orders", "orders", (NAMES[kind],), start_in_code=start)],
        history_names_batches=chance.random() < 0.7,
        progress_as_text=chance.random() < 0.3,
    )
    for _ in range(chance.randrange(1, 6)):
        land(workspace, source, chance.randrange(0, 5))
        workspace.clock.advance(minutes=chance.choice([0, 1, 30, 90]))
        pipeline.progress_lost = {"orders"} if chance.random() < 0.3 else set()
        if chance.random() < 0.15:
            # Rows that arrive while the update runs, before or after the flow reads.
            pipeline.when[chance.choice(["INITIALIZING", "RUNNING"])] = lambda p: land(workspace, source, 1)
        run(workspace, pipeline)
    if chance.random() < 0.3:
        pipeline.events.metrics.clear()
    if chance.random() < 0.1:
        source.recreate()
    elif chance.random() < 0.15:
        workspace.tables.execute(f"DELETE FROM main.{schema}.orders WHERE id < 'o0002'")
    before = [row["id"] for row in workspace.tables.rows(f"main.{schema}.orders")]
    broken(workspace, pipeline, source, unread=chance.randrange(0, 5)) if source.rows or before else None
    if pipeline.flows["orders"].checkpoint is None:
        return {"verdict": "nothing"}
    margin = chance.choice([None, timedelta(0), 30 * MINUTES])
    found = steps(workspace, pipeline, kind, margin=margin)
    position = only(found)
    known = {"verdict": position.verdict.value, "kind": kind, "how": position.how, "seed": seed}
    if position.verdict.value not in ("SAFE", "WILL_DUPLICATE"):
        return known
    unsure = any(j.verdict.value == "UNKNOWN" for j in position.judgements)
    go(pipeline, found)
    ids = [row["id"] for row in workspace.rows(f"main.{schema}.orders")]
    lost = {row.values["id"] for row in source.kept()} - set(ids)
    doubled = len(ids) - len(set(ids))
    forecast = max((position.again or {}).values(), default=0)
    return known | {"lost": len(lost), "doubled": doubled, "forecast": forecast, "unsure": unsure}


def see(found: dict[str, Any]) -> None:
    if found["verdict"] not in ("SAFE", "WILL_DUPLICATE"):
        return
    assert found["lost"] == 0 or found["unsure"], found
    assert found["doubled"] <= found["forecast"], found
    if found["verdict"] == "SAFE":
        assert (found["lost"], found["doubled"]) == (0, 0), found


def test_safe_is_never_wrong_in_random_histories(workspace: FakeWorkspace) -> None:
    found = [random_history(workspace, seed) for seed in range(12)]
    for each in found:
        see(each)
    assert {"SAFE", "WILL_DUPLICATE", "UNKNOWN"} <= {each["verdict"] for each in found}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_safe_is_never_wrong_in_many_random_histories(
    workspace: FakeWorkspace, capsys: pytest.CaptureFixture[str]
) -> None:
    counted: dict[str, int] = {}
    for seed in range(1000, 1500):
        each = random_history(workspace, seed)
        workspace.requests.clear()
        see(each)
        counted[each["verdict"]] = counted.get(each["verdict"], 0) + 1
    with capsys.disabled():
        print(f"\npositions of {sum(counted.values())} random histories: {counted}")
