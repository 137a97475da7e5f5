"""The key of an encrypted repository comes from its connection."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator
from airflow_ckpt_provider.operators.verify import CheckpointVerifyOperator

Run = Callable[..., dict[str, Any]]


def connection(key: str) -> str:
    return json.dumps({"conn_type": "fs", "extra": {"ckpt_repository_key": key}})


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VAULT", "OTHER"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", connection(base64.b64encode(os.urandom(32)).decode()))
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", connection("secret"))


def test_backup_verify_restore(checkpoint: Path, repository: Path, tmp_path: Path, run: Run) -> None:
    place = {"repository": str(repository), "repository_conn_id": "vault"}
    made = CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), **place).execute({})
    assert CheckpointVerifyOperator(task_id="v", read_data="all", **place).execute(run())["ok"] is True
    restored = CheckpointRestoreOperator(
        task_id="r", target=str(tmp_path / "target"), backup_id=made["backup_id"], mode="apply", **place
    ).execute(run())
    assert restored["outcome"]["batch_id"] == made["batch_id"]
    raw = [file.read_bytes() for file in repository.rglob("*") if file.is_file() and file.name != "repository.json"]
    assert all(data.startswith(b"ACKPT") for data in raw)
    for conn_id, says in (
        ("other", "is encrypted with another key than the one given"),
        (None, "is encrypted, and no key was given"),
        ("broken", "ckpt_repository_key of connection 'broken' is no key"),
    ):
        with pytest.raises(AirflowFailException, match=says) as error:
            CheckpointVerifyOperator(task_id="v", **{**place, "repository_conn_id": conn_id}).execute(run())
        assert "secret" not in str(error.value)
