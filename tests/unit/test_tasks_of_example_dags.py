"""The functions of tasks in example DAGs, each called as Airflow calls it."""

from __future__ import annotations

import importlib.util
import json
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

DAGS = Path(__file__).parents[2] / "dags"
FORM = {"measure": "rows", "max_growth_percent": 50, "on_growth": "fail"}


def module_of(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_dag", DAGS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def audit(place: Path, rows_before: int, rows: int) -> str:
    """A report of an audit, compared with the one before."""
    before = {"rows": rows_before, "bytes": 0, "batch_id": 3, "taken": "2026-01-01", "rows_percent": None}
    report = {"checkpoint": "s3a://lake/ck", "batch_id": 9, "rows": rows, "bytes": 0, "compared_with": before}
    (place / "r.json").write_text(json.dumps({**report, "compared_with": {**before, "bytes_percent": None}}))
    return str(place / "r.json")


def test_state_that_was_empty_and_is_not_any_more_has_grown_too_much(tmp_path: Path) -> None:
    judge: Any = module_of("audit_state").judge.function
    said = r"s3a://lake/ck grew from 0 to 50,000,000 rows since batch 3 \(2026-01-01\), more than 50 %"
    with pytest.raises(AirflowFailException, match=said):
        judge(audit(tmp_path, 0, 50_000_000), None, params=FORM)


def test_state_that_was_empty_and_has_grown_gives_an_event(tmp_path: Path) -> None:
    module = module_of("audit_state")
    events: list[Any] = []
    alias = SimpleNamespace(add=lambda asset, extra: events.append((asset.uri, extra["message"], extra["percent"])))
    report = audit(tmp_path, 0, 1)
    form = {**FORM, "on_growth": "event"}
    module.judge.function(report, None, params=form, outlet_events={module.GREW: alias})
    [(uri, message, percent)] = events
    assert (uri, percent) == ("s3://lake/ck", None)
    assert "grew from 0 to 1 rows" in message


def test_state_that_stays_empty_has_not_grown(tmp_path: Path) -> None:
    judge: Any = module_of("audit_state").judge.function
    assert judge(audit(tmp_path, 0, 0), None, params=FORM)["percent"] is None
    # Of what is not measured nothing is said.
    assert judge(audit(tmp_path, 0, 7), None, params={**FORM, "measure": "bytes"})["rows"] == 7


def test_every_attempt_copies_a_table_under_the_name_of_its_run() -> None:
    copies: Any = module_of("lakeflow_predeploy").copies.function
    run = SimpleNamespace(run_after=datetime(2026, 1, 31, 23, 59, tzinfo=UTC))
    form = {"tables": [], "warehouse_id": "w"}
    [copy] = copies(["main.sales.orders"], params=form, run_id="manual__1", dag_run=run)
    # Not of the day of the attempt: after midnight a retry would make a second copy.
    assert "orders__ckpt_20260131_" in copy["statement"]
