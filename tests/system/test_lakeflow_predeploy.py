"""dags/lakeflow_predeploy.py on the fake workspace: a deployment that renames a flow, and one that cannot be analysed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from airflow.sdk import DAG

from tests.fake_databricks import WAREHOUSE, FakeWorkspace, FlowFailed, Pipeline
from tests.fake_databricks.samples import INCREMENTAL, customers
from tests.support.airflow_runs import RunDag, result, states

pytestmark = pytest.mark.airflow


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWorkspace]:
    with FakeWorkspace() as workspace:
        monkeypatch.setenv("AIRFLOW_CONN_DATABRICKS_DEFAULT", workspace.airflow_connection())
        customers(workspace, pipeline_id="customers")
        yield workspace


@pytest.fixture
def candidate(workspace: FakeWorkspace) -> Pipeline:
    """The new code, deployed to a pipeline of its own: the incremental flow has another name."""
    pipeline = customers(workspace, "next", pipeline_id="next", development=True)
    flow = pipeline.flows.pop(INCREMENTAL)
    flow.name = "customers_new_flow"
    pipeline.flows[flow.name] = flow
    return pipeline


@pytest.fixture
def check(example_dags: dict[str, DAG], run_dag: RunDag) -> Callable[..., Any]:
    def run(**form: Any) -> Any:
        dag: Any = example_dags["lakeflow_predeploy"]
        dag.get_task("validated").poke_interval = 0.01
        dag.get_task("validated").follow_up_within = 0.0
        dag.get_task("clone").partial_kwargs["polling_period_seconds"] = 0
        return run_dag(dag, run_conf={"pipeline": "customers", "candidate": "next", "warehouse_id": WAREHOUSE, **form})

    return run


def test_a_renamed_flow_is_found_and_its_table_copied(
    check: Callable[..., Any], workspace: FakeWorkspace, candidate: Pipeline
) -> None:
    before = workspace.rows("main.customers.customers")
    run = check(tables=["main.next.customers"])
    assert run.state == "success"
    found = result(run, "what_would_break")
    assert found["verdict"] == "WILL_DUPLICATE"
    assert f"flow {INCREMENTAL} is gone, and customers_new_flow writes to the same table" in found["markdown"]
    assert found["tables"] == ["main.customers.customers"]
    # Mapped tasks run in any order.
    copies = sorted(name for name in workspace.tables.history if "__ckpt_" in name)
    assert [name.rpartition("__ckpt_")[0] for name in copies] == ["main.customers.customers", "main.next.customers"]
    assert workspace.tables.rows(copies[0]) == before == workspace.rows("main.customers.customers")
    assert [str(r) for r in workspace.asked("POST", "/updates")] == [
        'POST /api/2.0/pipelines/next/updates {"validate_only": true}'
    ]


@pytest.mark.slow
def test_code_that_cannot_be_analysed_stops_it(
    check: Callable[..., Any], workspace: FakeWorkspace, candidate: Pipeline
) -> None:
    candidate.flows["customers_new_flow"].analysis_error = FlowFailed("UNRESOLVED_COLUMN", "no column `nam`")
    run = check()
    assert states(run)["validated"] == "failed"
    assert states(run)["what_would_break"] == "upstream_failed"
    assert workspace.asked("POST", "/sql/statements") == []
