"""dags/fleet.py, run by Airflow on many streams of which some are broken."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk import DAG

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.airflow_runs import RunDag, result
from tests.support.checkpoints import logs, plant
from tests.support.one_checkpoint import unpack

pytestmark = pytest.mark.airflow


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three streams, one of which no batch has committed, and the Variables that the DAG reads."""
    place = tmp_path / "checkpoints"
    unpack(place / "orders")
    plant(open_location(str(place / "payments")), logs(range(3)))
    plant(open_location(str(place / "fresh")), {k: v for k, v in logs(range(1)).items() if "commits" not in k})
    Repository.open_or_create(open_location(str(tmp_path / "backups")))
    monkeypatch.setenv("AIRFLOW_VAR_CKPT_DIRECTORIES", f"{place},")
    monkeypatch.setenv("AIRFLOW_VAR_CKPT_REPOSITORY", str(tmp_path / "backups"))
    return place


def mapped(run: object) -> dict[str, str]:
    """State of each mapped backup, by the name that people see."""
    instances = run.get_task_instances()  # type: ignore[attr-defined]
    return {str(ti.rendered_map_index): str(ti.state) for ti in instances if ti.task_id == "back_up"}


@pytest.mark.slow
def test_each_stream_has_a_task_of_its_own(example_dags: dict[str, DAG], run_dag: RunDag, roots: Path) -> None:
    run = run_dag(example_dags["fleet"])
    assert mapped(run) == {"orders": "success", "payments": "success"}
    assert run.state == "success"
    report = {s["name"]: s for s in result(run, "report")["streams"]}
    assert set(report) == {"orders", "payments", "fresh"}
    assert report["orders"]["backup"]["backup_id"] == result(run, "back_up", map_index=0)["backup_id"]
    assert report["fresh"]["backup"] is None
    assert result(run, "report", "problems") == {}


def test_one_that_fails_fails_alone_and_is_reported(example_dags: dict[str, DAG], run_dag: RunDag, roots: Path) -> None:
    (roots / "payments" / "offsets" / "2").write_bytes(b"torn")
    example_dags["fleet"].get_task("back_up").partial_kwargs["retries"] = 0  # type: ignore[union-attr]
    run = run_dag(example_dags["fleet"])
    assert mapped(run) == {"orders": "success", "payments": "failed"}
    assert run.get_task_instance("report").state == "failed"
    problems = result(run, "report", "report")["problems"]
    assert set(problems) == {str(roots / "payments")}
    assert "offsets/2" in problems[str(roots / "payments")][0]
    repository = Repository.open(open_place(str(roots.parent / "backups")))
    assert repository.names() == ("orders",)
