"""What OpenLineage's own listener sends of our tasks, run by Airflow: backup, verify, restore, a verdict that fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_ckpt_provider.lineage.runs import FACETS
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.preflight import RecoveryPreflightOperator
from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator
from airflow_ckpt_provider.operators.verify import CheckpointVerifyOperator
from tests.support.airflow_runs import RunDag, result, states
from tests.support.lineage_schema import check
from tests.support.one_checkpoint import NEWEST

pytest.importorskip("airflow.providers.openlineage", reason="pip install 'airflow-ckpt-provider[openlineage]'")
pytestmark = pytest.mark.airflow

#: Of https://openlineage.io/spec/2-0-2/OpenLineage.json: what a run event has to have.
_FACETS = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "properties": {
            "_producer": {"type": "string", "format": "uri"},
            "_schemaURL": {"type": "string", "format": "uri"},
        },
        "required": ["_producer", "_schemaURL"],
    },
}
_DATASETS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "namespace": {"type": "string"},
            "name": {"type": "string"},
            "facets": _FACETS,
            "inputFacets": _FACETS,
            "outputFacets": _FACETS,
        },
        "required": ["namespace", "name"],
    },
}
EVENT = {
    "type": "object",
    "properties": {
        "eventTime": {"type": "string", "format": "date-time"},
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        "run": {
            "type": "object",
            "properties": {"runId": {"type": "string", "format": "uuid"}, "facets": _FACETS},
            "required": ["runId"],
        },
        "job": {
            "type": "object",
            "properties": {"namespace": {"type": "string"}, "name": {"type": "string"}, "facets": _FACETS},
            "required": ["namespace", "name"],
        },
        "inputs": _DATASETS,
        "outputs": _DATASETS,
    },
    "required": ["eventTime", "producer", "schemaURL", "run", "job"],
}


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, Any]]]:
    """Send the events to a file; return the newest event of a type of a job."""
    from airflow.providers.openlineage.plugins.listener import OpenLineageListener
    from airflow.sdk.listener import get_listener_manager

    file = tmp_path / "events.jsonl"
    transport = {"type": "file", "log_file_path": str(file), "append": True}
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
    listener = OpenLineageListener()
    manager = get_listener_manager()
    manager.add_listener(listener)

    def of(job: str, kind: str = "COMPLETE") -> dict[str, Any]:
        found = [json.loads(line) for line in file.read_text().splitlines()]
        *_, event = (each for each in found if (each["job"]["name"], each["eventType"]) == (job, kind))
        validate(event)
        return dict(event)

    yield of
    manager.pm.unregister(listener)


def validate(event: dict[str, Any]) -> None:
    import jsonschema

    jsonschema.Draft202012Validator(EVENT).validate(event)
    every = [event["run"]["facets"], *(each["facets"] for each in (*event["inputs"], *event["outputs"]))]
    ours = [(name, facet) for facets in every for name, facet in facets.items() if name.startswith("ckpt_")]
    for name, facet in ours:
        assert facet["_schemaURL"].endswith(f"#/$defs/{FACETS[name]}")
        check(name, {key: value for key, value in facet.items() if key[0] != "_"})


def versions(datasets: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    return {(each["namespace"], each["name"]): each["facets"]["version"]["datasetVersion"] for each in datasets}


def test_backup_verify_restore(
    run_dag: RunDag, checkpoint: Path, repository: Path, tmp_path: Path, events: Callable[..., dict[str, Any]]
) -> None:
    where: dict[str, Any] = {"repository": str(repository)}
    with DAG("lineage", schedule=None) as dag:
        backup = CheckpointBackupOperator(task_id="back_up", checkpoint=str(checkpoint), **where)
        verify = CheckpointVerifyOperator(task_id="verify", **where)
        restore = CheckpointRestoreOperator(
            task_id="restore", target=str(tmp_path / "new"), mode="apply", query_is_stopped=True, quiet_for=0, **where
        )
        backup >> verify >> restore
    run = run_dag(dag)
    assert run.state == "success"
    backup_id = result(run, "back_up")["backup_id"]
    backups = ("file", f"{repository}/backups/orders")
    assert versions(events("lineage.back_up")["inputs"]) == {("file", str(checkpoint)): str(NEWEST)}
    assert versions(events("lineage.back_up")["outputs"]) == {backups: backup_id}
    assert versions(events("lineage.verify")["inputs"]) == {backups: backup_id}
    restored = events("lineage.restore")
    assert versions(restored["inputs"]) == {backups: backup_id}
    assert versions(restored["outputs"]) == {("file", str(tmp_path / "new")): str(NEWEST)}
    assert restored["run"]["facets"]["ckpt_change"]["applied"] is True


def test_a_verdict_that_fails_the_task(run_dag: RunDag, tmp_path: Path, events: Callable[..., dict[str, Any]]) -> None:
    from tests.support.other_sources import OF_ANOTHER_KIND
    from tests.support.other_sources import checkpoint as checkpoint_of

    place = checkpoint_of(tmp_path / "ck", OF_ANOTHER_KIND)
    with DAG("lineage_guard", schedule=None) as dag:
        RecoveryPreflightOperator(task_id="guard", checkpoint=place)
    assert states(run_dag(dag)) == {"guard": "failed"}
    event = events("lineage_guard.guard", "FAIL")
    assert event["run"]["facets"]["ckpt_guard"]["verdict"] == "UNKNOWN"
    assert [each["name"] for each in event["inputs"]] == [place]
    assert event["outputs"] == []
