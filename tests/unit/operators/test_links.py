"""The links of tasks: to a manifest where a browser can open it, to the page, and never an error."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest

from airflow_ckpt_provider.links.manifest import BackupManifestLink, manifest_url
from airflow_ckpt_provider.links.page import CheckpointsPageLink, page_of
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.fleet import FleetReportOperator
from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator
from airflow_ckpt_provider.operators.undo import CheckpointUndoOperator
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import location_of
from tests.support.operator_runs import Run

PATH = "backups/orders/20261121T083000Z-b000223.json"


def test_no_run_no_link() -> None:
    key = SimpleNamespace(dag_id="dag", task_id="task", run_id="run", map_index=-1)
    assert BackupManifestLink().get_link(None, ti_key=key) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", ["file", "memory", "hdfs", "abfs"])
def test_a_place_that_no_browser_opens_has_no_link(scheme: str, tmp_path: Path) -> None:
    place = location_of(fsspec.filesystem("file" if scheme != "memory" else scheme), str(tmp_path / "backups"))
    store = SimpleNamespace(protocol=scheme)
    if scheme in ("hdfs", "abfs"):  # neither a client nor a server is needed to say no
        place = Location(store, place.root)  # type: ignore[arg-type]
    assert manifest_url(place, PATH) == ""


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({}, f"https://s3.console.aws.amazon.com/s3/object/bucket?prefix=backups/{PATH}"),
        # Such a server refuses an address without a signature.
        ({"endpoint_url": "http://localhost:8333/"}, ""),
        ({"client_kwargs": {"endpoint_url": "http://localhost:8333"}}, ""),
    ],
)
def test_s3(options: dict[str, object], url: str) -> None:
    pytest.importorskip("s3fs")
    place = location_of(fsspec.filesystem("s3", key="k", secret="s", **options), "bucket/backups")
    assert manifest_url(place, PATH) == url


def test_a_task_leads_to_the_page_of_its_change(
    checkpoint: Path, repository: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), repository=str(repository)).execute(run())
    places = {"target": str(checkpoint), "repository": str(repository), "replace": True, "query_is_stopped": True}
    accepted = {"quiet_for": 0, "sink": "foreachBatch", "accept": "sink_duplicates"}
    apply = CheckpointRestoreOperator(task_id="r", mode="apply", batch=5, **places, **accepted)
    (checkpoint / "commits" / "5").unlink()
    context = run()
    plan_id = apply.execute(context)["plan"]["plan_id"]
    assert CheckpointsPageLink.XCOM_KEY not in context["pushed"]  # the page is not about this repository
    monkeypatch.setenv("AIRFLOW__CKPT__REPOSITORY", str(repository))
    undone = run("u", run_id="2")
    undo = CheckpointUndoOperator(
        task_id="u",
        checkpoint=str(checkpoint),
        repository=str(repository),
        query_is_stopped=True,
        quiet_for=0,
        sink="foreachBatch",
    )
    assert undo.execute(undone)["plan_id"] == plan_id
    assert undone["pushed"][CheckpointsPageLink.XCOM_KEY] == f"/plugin/checkpoints/ckpt/change?id={plan_id}"
    again = run("r", run_id="3")
    plan_id = apply.execute(again)["plan"]["plan_id"]
    assert again["pushed"][CheckpointsPageLink.XCOM_KEY] == f"/plugin/checkpoints/ckpt/change?id={plan_id}"
    planned = run("p")
    CheckpointRestoreOperator(task_id="p", **places).execute(planned)
    assert CheckpointsPageLink.XCOM_KEY not in planned["pushed"]  # nothing of a plan is kept
    reported = run("f")
    FleetReportOperator(
        task_id="f", repository=str(repository), checkpoints=[str(checkpoint)], on_finding="warn"
    ).execute(reported)
    assert reported["pushed"][CheckpointsPageLink.XCOM_KEY] == "/plugin/checkpoints"


def test_a_change_that_fails_half_way_has_its_link(
    checkpoint: Path, repository: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CKPT__REPOSITORY", str(repository))
    CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), repository=str(repository)).execute(run())
    shutil.rmtree(checkpoint)

    def broken(*_: object, **__: object) -> None:
        raise ConnectionError("the store is gone")

    monkeypatch.setattr("airflow_ckpt_provider.recovery.restore.apply.apply_restore", broken)
    context = run()
    with pytest.raises(ConnectionError):
        CheckpointRestoreOperator(
            task_id="r", mode="apply", target=str(checkpoint), repository=str(repository)
        ).execute(context)
    assert context["pushed"][CheckpointsPageLink.XCOM_KEY].startswith("/plugin/checkpoints/ckpt/change?id=")


def test_the_page_in_airflow_comes_first_where_it_is_about_this_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    place = location_of(fsspec.filesystem("file"), "/backups")
    assert page_of(place.uri, "backup", name="orders", id="b1") == ""
    monkeypatch.setenv("AIRFLOW__CKPT__REPOSITORY", "/other")
    assert page_of(place.uri, "backup", name="orders", id="b1") == ""
    monkeypatch.setenv("AIRFLOW__CKPT__REPOSITORY", "/backups/")
    assert page_of(place.uri, "backup", name="orders", id="b1") == "/plugin/checkpoints/ckpt/backup?name=orders&id=b1"
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.com/airflow/")
    assert page_of(place.uri, "backup", name="orders", id="b1").startswith("/airflow/plugin/checkpoints/")
