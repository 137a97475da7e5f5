"""The connection type ``ckpt_repository``: it names the repository, its keys, and the connection that reaches its store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.hooks.ckpt_repository import CkptRepositoryHook
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.fleet import FleetReportOperator
from airflow_ckpt_provider.operators.starting_positions import StartingPositionsOperator
from airflow_ckpt_provider.operators.upgrade import UpgradeBeginOperator
from airflow_ckpt_provider.operators.verify import CheckpointVerifyOperator
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.streams.stream import Stream

KEY = "a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2U="


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(conn_type: str = "ckpt_repository", **extra: str) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_VAULT", json.dumps({"conn_type": conn_type, "extra": extra}))

    return make


def test_a_task_needs_only_the_connection(connect: Any, checkpoint: Path, tmp_path: Path, run: Any) -> None:
    connect(repository=str(tmp_path / "vault"), ckpt_repository_secret_key=KEY)
    where = {"repository": None, "repository_conn_id": "vault"}
    backup = CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), create=True, **where).execute(run())
    assert "encryption" in json.loads((tmp_path / "vault" / "repository.json").read_text())
    report = CheckpointVerifyOperator(task_id="v", read_data="all", **where).execute(run())
    assert (report["backup_id"], report["ok"]) == (backup["backup_id"], True)
    assert CkptRepositoryHook("vault").test_connection() == (True, f"{tmp_path}/vault holds backups of 1 streams")


def test_steps_of_an_upgrade_positions_and_a_report_need_only_it_too(
    connect: Any, checkpoint: Path, tmp_path: Path, run: Any
) -> None:
    connect(repository=str(tmp_path / "vault"))
    where = {"repository": None, "repository_conn_id": "vault"}
    CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), create=True, **where).execute(run())
    begun = UpgradeBeginOperator(task_id="u", mode="savepoint", checkpoint=str(checkpoint), name="ck", **where)
    assert begun._open_repository().location.uri == open_location(str(tmp_path / "vault")).uri
    logs = StartingPositionsOperator(task_id="p", checkpoint=None, **where)._logs()
    assert logs.origin.startswith("backup ")
    orders = Stream("orders", checkpoint=str(checkpoint), repository="/copies")
    report = FleetReportOperator(task_id="f", streams=[orders], **where)
    assert report._repository_of([orders]).location.uri == open_location(str(tmp_path / "vault")).uri


def test_the_store_is_reached_by_its_own_connection(connect: Any, tmp_path: Path) -> None:
    connect(repository=str(tmp_path / "vault"), storage_conn_id="there_is_none")
    assert CkptRepositoryHook("vault").test_connection()[0] is False
    with pytest.raises(RefusedError, match="there is no Airflow connection 'there_is_none'"):
        CkptRepositoryHook("vault").get_conn()


def test_a_connection_that_names_no_repository_is_refused(connect: Any) -> None:
    for kind in ("ckpt_repository", "aws"):
        connect(kind)
        with pytest.raises(RefusedError, match="connection 'vault' names no repository"):
            CkptRepositoryHook("vault").get_conn()


@pytest.mark.parametrize(("kind", "wanted"), [("ckpt_repository", None), ("aws", "/backups")])
def test_the_repository_that_a_given_connection_names_comes_before_that_of_the_stream(
    connect: Any, run: Any, kind: str, wanted: str | None
) -> None:
    connect(kind, repository="/copies")
    orders = Stream("orders", checkpoint="/c/orders", repository="/backups", repository_conn_id="other")
    task = CheckpointVerifyOperator(task_id="v", stream=orders, repository_conn_id="vault")
    task.render_template_fields(run())
    assert (task.repository, task.repository_conn_id, task.name) == (wanted, "vault", "orders")
