"""No key and no credential on a page of Airflow, in its REST API, in a log, in an XCom or in an audit record."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.throwaway_airflow import HOME

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

pytestmark = pytest.mark.airflow

KEY = base64.b64encode(os.urandom(32)).decode()
PASSWORD = "pass-w0rd/of+AKIA"


@pytest.fixture
def client(metadata_database: None) -> TestClient:
    """Airflow's REST API, as its web interface uses it."""
    from airflow.api_fastapi.app import create_app
    from fastapi.testclient import TestClient

    made = TestClient(create_app(apps="core"))
    made.headers["Authorization"] = "Bearer " + made.get("/auth/token").json()["access_token"]
    return made


def add(client: TestClient, conn_id: str, name: str) -> None:
    body = {"connection_id": conn_id, "conn_type": "fs", "extra": json.dumps({name: KEY, "path": "/shown"})}
    client.delete(f"/api/v2/connections/{conn_id}")
    client.post("/api/v2/connections", json=body).raise_for_status()


def test_the_key_of_a_connection(client: TestClient) -> None:
    add(client, "vault", "ckpt_repository_secret_key")
    add(client, "old_vault", "ckpt_repository_key")
    for path in ("/api/v2/connections", "/api/v2/connections/vault"):
        shown = client.get(path).text
        assert "/shown" in shown
        of_vault = [
            c for c in json.loads(shown).get("connections", [json.loads(shown)]) if c["connection_id"] == "vault"
        ]
        assert [json.loads(c["extra"]) for c in of_vault] == [{"ckpt_repository_secret_key": "***", "path": "/shown"}]
    assert KEY in client.get("/api/v2/connections/old_vault").text, "why the old name is deprecated"


#: A DAG file, with a line that somebody has left, or a library: it logs what the task was given.
DAG_FILE = """
from airflow.sdk import DAG
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator


class Careless(CheckpointBackupOperator):
    def execute(self, context):
        try:
            return super().execute(context)
        finally:
            from pathlib import Path
            self.log.warning("the task was given %s", Path({given!r}).read_text())


with DAG({dag_id!r}, schedule=None) as dag:
    backup = Careless(task_id="backup", checkpoint={checkpoint!r}, repository={repository!r}, repository_conn_id={conn_id!r},
        create=True)
    backup >> CheckpointRestoreOperator(
        task_id="restore", backup_id=backup.output["backup_id"], repository={repository!r}, repository_conn_id={conn_id!r},
        target={target!r}, mode="apply",
    )
"""
RunTasks = Callable[..., str]


@pytest.fixture
def run_tasks(client: TestClient, tmp_path: Path) -> Iterator[RunTasks]:
    """Run such a DAG as a worker does, and return all that Airflow shows of it: its pages, XComs, logs."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    file = HOME / "dags" / "no_credential_is_shown.py"

    def run(given: str, task_ids: list[str], **names: Any) -> str:
        (tmp_path / "given").write_text(given)
        names = {"conn_id": None, "target": str(tmp_path / "target"), "given": str(tmp_path / "given"), **names}
        file.write_text(DAG_FILE.format(**names))
        DagBundlesManager().sync_bundles_to_db()
        bag = DagBag(dag_folder=str(file))
        assert bag.import_errors == {}
        sync_bag_to_db(bag, "dags-folder", None)
        dag_id = names["dag_id"]
        made = client.post(f"/api/v2/dags/{dag_id}/dagRuns", json={"logical_date": None})
        made.raise_for_status()
        run_id = made.json()["dag_run_id"]
        worker = subprocess.run(
            [sys.executable, "-m", "tests.support.worker", dag_id, run_id, *task_ids],
            cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        base = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        parts = [worker.stdout, worker.stderr, client.get(base).text]
        for task_id in task_ids:
            parts.append(client.get(f"{base}/{task_id}").text)
            parts.append(client.get(f"{base}/{task_id}/xcomEntries").text)
            parts.append(client.get(f"{base}/{task_id}/xcomEntries/return_value?stringify=true").text)
            parts.append(client.get(f"{base}/{task_id}/logs/1?full_content=true").text)
        return "\n".join(parts)

    yield run
    file.unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ckpt_repository_secret_key", "ckpt_repository_key"])
def test_the_key_in_a_run(
    client: TestClient, run_tasks: RunTasks, checkpoint: Path, repository: Path, tmp_path: Path, name: str
) -> None:
    add(client, "vault", name)
    vault = repository.parent / "vault"
    said = run_tasks(
        KEY,
        ["backup", "restore"],
        dag_id=f"encrypted_{name}",
        checkpoint=str(checkpoint),
        repository=str(vault),
        conn_id="vault",
    )
    assert "the task was given ***" in said
    assert (tmp_path / "target" / "commits").is_dir(), said
    assert KEY not in said
    deprecated = (
        "The extra `ckpt_repository_key` of connection 'vault' is deprecated, and Airflow shows its value in clear."
    )
    assert (deprecated in said) is (name == "ckpt_repository_key")
    assert all(KEY.encode() not in path.read_bytes() for path in vault.rglob("*") if path.is_file())


@pytest.mark.slow
def test_credentials_in_the_address_of_a_place(
    run_tasks: RunTasks, monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    """It comes from a Variable, so that the source of the DAG does not show it."""
    monkeypatch.setenv("AIRFLOW_VAR_PLACE", f"s3://AKIAEXAMPLE:{PASSWORD}@bucket/checkpoints/orders")
    for name, value in (
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
    ):
        monkeypatch.setenv(name, value)
    said = run_tasks(
        f"the password {PASSWORD}",
        ["backup"],
        dag_id="credentials_in_uri",
        checkpoint="{{ var.value.place }}",
        repository=str(repository),
    )
    assert "the task was given the password ***" in said
    assert "AKIAEXAMPLE:***@bucket" in said
    assert PASSWORD not in said
