"""TableCheckOperator: what was lost, what is there twice, and what cannot be known."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from airflow_ckpt_provider.operators.table_check import TableCheckOperator
from tests.fake_databricks import WAREHOUSE, FakeWorkspace
from tests.fake_databricks.samples import customers, land
from tests.support.attempts import Task

TABLE = "main.customers.customers"
CHECK = {"keys": ["id"], "expected": "SELECT id FROM read_files('/landing/customers')"}


def check(about: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    tables = {TABLE: CHECK if about is None else about}
    operator = TableCheckOperator(
        task_id="check", **{"tables": tables, "warehouse_id": WAREHOUSE, "poll_interval": 0.0, **fields}
    )
    result: dict[str, Any] = operator.execute({})  # type: ignore[typeddict-item]
    return result


@pytest.fixture
def before(workspace: FakeWorkspace) -> dict[str, Any]:
    customers(workspace)
    found = check()
    assert found["tables"] == {TABLE: {"rows": 9, "doubled": 0, "missing": 0}}
    assert (found["verdict"], found["reasons"]) == ("SAFE", [])
    return found


def test_rows_that_are_there_twice(workspace: FakeWorkspace, before: dict[str, Any]) -> None:
    workspace.tables.execute(f"INSERT INTO {TABLE} SELECT * FROM {TABLE} WHERE id = 'c001'")
    found = check(before=before)
    assert (found["verdict"], found["reasons"]) == ("WILL_DUPLICATE", [f"{TABLE}: 1 keys are there twice or more"])
    assert check(before=found)["verdict"] == "SAFE", "they had been there before"
    with pytest.raises(AirflowFailException, match="1 keys are there twice"):
        check(before=before, fail_when_worse="true")


def test_rows_that_are_missing(workspace: FakeWorkspace, before: dict[str, Any]) -> None:
    land(workspace.sources["/landing/customers"], 2)
    assert check(before=before)["reasons"] == [f"{TABLE}: 2 rows of its source are not in it"]
    workspace.tables.execute(f"DELETE FROM {TABLE} WHERE id LIKE 'old%'")
    assert f"{TABLE}: 6 rows, where it had 9 before" in check(before=before)["reasons"]
    assert check({"keys": ["id"]}, before=before)["verdict"] == "WILL_LOSE"


def test_what_cannot_be_known(workspace: FakeWorkspace, before: dict[str, Any]) -> None:
    assert check({})["verdict"] == "UNKNOWN"
    assert check({"keys": ["id"]})["reasons"][0].startswith(f"{TABLE}: not counted: missing; give")
    found = check(tables="{}", warehouse_id=None)
    assert (found["verdict"], found["reasons"]) == ("UNKNOWN", ["no table was named: nothing was counted"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tables": {TABLE: {"expected": "SELECT 1"}}}, "compared by keys"),
        ({"tables": [TABLE]}, "tables is"),
        ({"tables": "main"}, "tables is 'main'"),
        ({"tables": {"a.b.c.d": {}}}, "no name of a table"),
        ({"tables": {"main.customers.other": {}}}, "TABLE_OR_VIEW_NOT_FOUND"),
        ({"warehouse_id": None}, "warehouse_id is empty"),
        ({"warehouse_id": "another"}, "another"),
    ],
)
def test_bad_input(before: dict[str, Any], fields: dict[str, Any], words: str) -> None:
    with pytest.raises(AirflowFailException, match=words):
        check(**fields)


@pytest.mark.parametrize("store", [True, False], ids=["task state", "below Airflow 3.3"])
def test_statements_that_take_long_are_waited_for_in_the_triggerer(
    workspace: FakeWorkspace, before: dict[str, Any], store: bool
) -> None:
    workspace.tables.execute(f"INSERT INTO {TABLE} SELECT * FROM {TABLE} WHERE id = 'c001'")
    task = Task(
        lambda: TableCheckOperator(
            task_id="check",
            tables={TABLE: CHECK},
            warehouse_id=WAREHOUSE,
            before=before,
            deferrable=True,
            poll_interval=0.01,
        ),
        store=store,
    )
    asked = len(workspace.requests)
    found = task.attempt()
    assert (found["verdict"], found["reasons"]) == ("WILL_DUPLICATE", [f"{TABLE}: 1 keys are there twice or more"])
    assert task.deferred == 3, "once a statement"
    sent = [request for request in workspace.requests[asked:] if request.method == "POST"]
    assert len(sent) == 3, "no statement is sent again after a deferral"


def test_a_count_that_takes_too_long_names_its_statement(
    workspace: FakeWorkspace, before: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace.statements, "_step", lambda statement: None)
    with pytest.raises(AirflowException, match=r"not within 0.05 s: statement \S+ has not ended\nHINT: see the wareh"):
        check(timeout=0.05)


def test_a_deferred_count_that_takes_too_long_goes_on_in_the_warehouse(
    workspace: FakeWorkspace, before: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow ends the wait, not the trigger, which would cancel the statement; the next attempt may find it ended."""
    monkeypatch.setattr(workspace.statements, "_step", lambda statement: None)
    task = TableCheckOperator(
        task_id="check", tables={TABLE: CHECK}, warehouse_id=WAREHOUSE, deferrable=True, poll_interval=0.01, timeout=60
    )
    with pytest.raises(TaskDeferred) as deferred:
        task.execute({})  # type: ignore[typeddict-item]
    assert deferred.value.timeout < timedelta(seconds=121)
    assert deferred.value.trigger.end_time > time.time() + 3000
    with pytest.raises(AirflowException, match="not within 60 s: the statements have not ended\nHINT: see the wareh"):
        task.resume_execution("__fail__", {"error": "Trigger timeout"}, {})  # type: ignore[typeddict-item]
