"""dags/audit_state.py in a real Airflow, with a real spark-submit."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from tests.support.airflow_runs import DAGS, RunDag, event_of, result, states

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def reports(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the report of an earlier day, when the state had 2 rows of the 5 that it has now."""
    found = tmp_path / "audits"
    found.mkdir()
    monkeypatch.setenv("AIRFLOW_VAR_CKPT_CHECKPOINT", str(checkpoint))
    monkeypatch.setenv("AIRFLOW_VAR_CKPT_AUDITS", str(found))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    # As in a worker whose environment is activated.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    return found


def earlier(reports: Path, *, rows: int) -> None:
    store = {"name": "default", "kind": "store", "rows": rows, "bytes": 100}
    report = {
        "format": "airflow-ckpt-state-audit",
        "version": 1,
        "batch_id": 1,
        "taken": "2026-01-01T00:00:00+00:00",
        "rows": rows,
        "bytes": 100,
        "operators": [{"id": 0, "name": "stateStoreSave", "stores": [store]}],
    }
    (reports / "20260101T000000.json").write_text(json.dumps(report))


@pytest.mark.slow
def test_growth_gives_an_event(example_dags: dict[str, DAG], run_dag: RunDag, reports: Path, checkpoint: Path):
    earlier(reports, rows=2)
    dag = example_dags["audit_state"]
    dag.get_task("audit").retries = 0  # rather an error than a wait
    run = run_dag(dag, run_conf={"on_growth": "event"})
    assert states(run) == {"audit": "success", "judge": "success"}
    found = result(run, "judge")
    assert (found["batch_id"], found["rows"], found["percent"]) == (5, 5, 150.0)
    event = event_of(f"file://{checkpoint}")
    assert event is not None
    assert event["percent"] == 150.0
    assert f"the state of {checkpoint} grew by 150.0 % from 2 to 5 rows since batch 1" in event["message"]
    new = [p for p in reports.iterdir() if p.name != "20260101T000000.json"]
    assert [str(p) for p in new] == [event["report"]]


@pytest.fixture
def judge(example_dags: dict[str, DAG]) -> Any:
    """The function behind the task."""
    spec = importlib.util.spec_from_file_location("audit_state_dag", DAGS / "audit_state.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.judge.function


FORM = {"measure": "rows", "max_growth_percent": 50, "on_growth": "fail"}


def compared(place: Path, percent: float | None) -> str:
    before = {
        "rows": 100,
        "bytes": 100,
        "batch_id": 3,
        "taken": "2026-01-01",
        "rows_percent": percent,
        "bytes_percent": 500.0,
    }
    report = {"checkpoint": "s3a://lake/ck", "batch_id": 9, "rows": 180, "bytes": 600}
    (place / "r.json").write_text(json.dumps({**report, "compared_with": before if percent is not None else None}))
    return str(place / "r.json")


def test_growth_fails_the_task(judge: Any, tmp_path: Path):
    with pytest.raises(
        AirflowFailException, match=r"s3a://lake/ck grew by 80\.0 % from 100 to 180 rows .*, more than 50 %"
    ):
        judge(compared(tmp_path, 80.0), None, params=FORM)


@pytest.mark.parametrize("percent", [50.0, 0.0, -20.0, None])
def test_growth_that_is_allowed(percent: float | None, judge: Any, tmp_path: Path):
    assert judge(compared(tmp_path, percent), "", params=FORM)["percent"] == percent


def test_bytes_may_be_what_is_measured(judge: Any, tmp_path: Path):
    with pytest.raises(AirflowFailException, match=r"500\.0 % from 100 to 600 bytes"):
        judge(compared(tmp_path, 0.0), None, params={**FORM, "measure": "bytes"})


@pytest.mark.slow
def test_an_unreadable_checkpoint_fails_with_advice(
    example_dags: dict[str, DAG],
    run_dag: RunDag,
    reports: Path,
    checkpoint: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    for changelog in checkpoint.glob("state/0/*/1.changelog"):
        changelog.unlink()
    dag = example_dags["audit_state"]
    monkeypatch.setattr(dag.get_task("audit"), "retries", 0)
    run = run_dag(dag)
    assert states(run) == {"audit": "failed", "judge": "upstream_failed"}
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "STATE-FILE-MISSING (CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE)" in said
