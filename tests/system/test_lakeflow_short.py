"""The short DAGs, ``lakeflow_short_reset``, ``lakeflow_short_refresh`` and ``lakeflow_short_backfill``: the vendor's three ways.

And the matrix of failures: (source recreated, new operator in a stateful query, checkpoint lost) by source, language, mode, each
to the row. Where no position can be found, ``lakeflow_recover`` takes the one that a person gives.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_ckpt_provider.operators.pipeline_waiting import PipelineOperator
from tests.fake_databricks import WAREHOUSE, FakeWorkspace
from tests.fake_databricks.failures import (
    FAILURES,
    KINDS,
    LANGUAGES,
    LOST,
    MODES,
    OPERATOR,
    RECREATED,
    TABLE,
    Broken,
    broken,
    land,
)
from tests.fake_databricks.sources import Kind
from tests.support.airflow_runs import DAGS, Answer, RunDag, load_dags, result, states
from tests.support.every_run import of_these

pytestmark = pytest.mark.airflow

RESET, REFRESH, BACKFILL = "lakeflow_short_reset", "lakeflow_short_refresh", "lakeflow_short_backfill"
SHORT = (RESET, REFRESH, BACKFILL)
Run = Callable[..., Any]


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWorkspace]:
    with FakeWorkspace() as workspace:
        monkeypatch.setenv("AIRFLOW_CONN_DATABRICKS_DEFAULT", workspace.airflow_connection())
        monkeypatch.setattr(PipelineOperator, "follow_up_within", 0.0)
        yield workspace


@pytest.fixture
def run(run_dag: RunDag) -> Run:
    """Fill in the form of a DAG and run it."""

    def run(dag_id: str, **form: Any) -> Any:
        dag = load_dags(DAGS / f"{dag_id}.py")[dag_id]
        for task in dag.tasks:
            task.retries = 0
            for name in ("poll_interval", "flows_run_for"):
                if hasattr(task, name):
                    setattr(task, name, 0.01)
        return run_dag(dag, run_conf={"pipeline": "sales", **form})

    return run


@pytest.mark.parametrize("dag_id", SHORT)
def test_it_is_short(dag_id: str) -> None:
    code = (DAGS / f"{dag_id}.py").read_text()
    docstring = ast.parse(code).body[0]
    lines = [
        line
        for number, line in enumerate(code.splitlines(), 1)
        if line.strip() and not line.strip().startswith("#") and number > (docstring.end_lineno or 0)
    ]
    assert len(lines) <= 30


def to_the_row(case: Broken) -> None:
    assert case.counted() == (0, [])
    assert case.pipeline.flows["orders"].resets == 1
    # And it reads on.
    land(case.workspace, case.source, "later")
    case.pipeline.step() if case.pipeline.active else case.pipeline.start({})
    case.pipeline.advance()
    if case.pipeline.active:
        case.pipeline.step()
    ids = [row["id"] for row in case.workspace.rows(TABLE)]
    assert sorted(ids) == sorted([*case.expected, "later"])


def can_be_found(failure: str, kind: Kind) -> bool:
    """Of a table or topic that was recreated, no position of before means anything."""
    return failure != RECREATED or kind == "files"


MATRIX = list(itertools.product(FAILURES, KINDS, LANGUAGES, MODES))
EVERY_RUN = (
    (RECREATED, "files", "python", "triggered"),
    (OPERATOR, "delta", "sql", "triggered"),
    (LOST, "kafka", "python", "continuous"),
)


@pytest.mark.parametrize(("failure", "kind", "language", "mode"), of_these(MATRIX, *EVERY_RUN))
def test_the_matrix(
    workspace: FakeWorkspace, run: Run, answer: Answer, failure: str, kind: Kind, language: Any, mode: str
) -> None:
    case = broken(workspace, failure, kind, language, mode)
    seen = len(workspace.requests)
    configuration = dict(case.pipeline.configuration)
    carried_in = case.carried_in
    if can_be_found(failure, kind):
        # Nobody has asked a broker; and state that was not kept is not brought back.
        accept = "UNKNOWN" if kind == "kafka" or failure == OPERATOR else None
        ran = run(RESET, warehouse=WAREHOUSE, about=case.about, margin=0, accept=accept)
        assert ran.state == "success", states(ran)
        found = result(ran, "find")
        assert found["verdict"] == (accept or "SAFE"), found["markdown"]
        assert found["steps"][0]["carried"]["by"] == case.carried_in
        assert result(ran, "count")["tables"][TABLE]["doubled"] == 0
    else:
        answer("lakeflow_recover", "Approve")
        form = {"mode": "apply", "strategy": "reset_checkpoint", "warehouse_id": WAREHOUSE}
        # Nobody has asked a broker or read the table; and later updates have no parameter of this one.
        form["accept"] = "UNKNOWN" if kind != "files" or language == "sql" else None
        form["wait_for"] = "RUNNING" if mode == "continuous" else "COMPLETED"
        positions = case.starting_positions
        ran = run("lakeflow_recover", **form, flows=list(positions), starting_positions=positions)
        assert ran.state == "success", states(ran)
        assert states(ran)["find"] == "skipped"
        carried_in = "parameters" if language == "sql" else "configuration"
    changed = [request for request in workspace.requests[seen:] if request.method == "PUT"]
    assert bool(changed) == (carried_in == "configuration")
    kept = {case.key: case.position} if case.option in ("modifiedAfter", "startingVersion") and changed else {}
    assert case.pipeline.configuration == configuration | kept, (
        "what the flow may still need stays, all else is put back"
    )
    to_the_row(case)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "files"])
def test_of_a_source_that_was_made_again_nothing_is_found(workspace: FakeWorkspace, run: Run, kind: Kind) -> None:
    case = broken(workspace, RECREATED, kind)
    ran = run(RESET, warehouse=WAREHOUSE, about=case.about)
    assert (states(ran)["find"], states(ran)["reset"]) == ("success", "failed")
    assert result(ran, "find")["verdict"] == "UNKNOWN"
    assert workspace.asked("POST", "/updates") == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_of_several_flows_into_a_table(workspace: FakeWorkspace, run: Run, kind: Kind) -> None:
    case = broken(workspace, LOST, kind, several=True)
    ran = run(RESET, warehouse=WAREHOUSE, about=case.about, margin=0, accept="UNKNOWN")
    assert ran.state == "success", states(ran)
    assert result(ran, "find")["flows"] == ["main.sales.orders"]
    assert case.pipeline.flows["returns"].resets == 0
    to_the_row(case)


@pytest.mark.parametrize("accept", of_these([None, "UNKNOWN"], "UNKNOWN"))
def test_full_refresh(workspace: FakeWorkspace, run: Run, accept: str | None) -> None:
    case = broken(workspace, LOST, "files")
    tables = {TABLE: {"keys": ["id"], "expected": f"SELECT id FROM read_files('{case.source.name}')"}}
    ran = run(REFRESH, warehouse=WAREHOUSE, tables=tables, accept=accept)
    if accept is None:
        assert states(ran) == {"before": "success", "refresh": "failed", "after": "upstream_failed"}
        assert case.counted() == (0, ["n0", "n1", "n2"])
        return
    assert ran.state == "success", states(ran)
    assert result(ran, "after")["tables"][TABLE] == {"rows": 15, "doubled": 0, "missing": 0}
    to_the_row(case)


@pytest.mark.slow
def test_a_full_refresh_that_loses_rows_says_so(workspace: FakeWorkspace, run: Run) -> None:
    """Control: the source has lost its first eight files, and the form says that it has all."""
    case = broken(workspace, LOST, "files")
    case.source.expire_before(8)
    ran = run(REFRESH, warehouse=WAREHOUSE, tables={TABLE: {"keys": ["id"]}}, accept="UNKNOWN")
    assert states(ran)["after"] == "failed"
    assert case.counted() == (0, [f"o{number:02d}" for number in range(8)])


@pytest.mark.parametrize("kind", of_these(["files", "delta"], "files"))
def test_full_refresh_with_backup_and_backfill(workspace: FakeWorkspace, run: Run, kind: Kind) -> None:
    """The source has lost its first eight rows; only the copy still has them."""
    case = broken(workspace, LOST, kind)
    case.source.expire_before(8)
    ran = run(BACKFILL, warehouse=WAREHOUSE, tables={TABLE: ["id"]}, accept="UNKNOWN")
    assert ran.state == "success", states(ran)
    done = result(ran, "refresh")
    assert (done["backups"][0]["rows"], done["verification"][0]["brought_back"]) == (12, 8)
    assert case.counted() == (0, [])
