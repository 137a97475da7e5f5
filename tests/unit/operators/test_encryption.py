"""The key of an encrypted repository comes from its connection."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.exceptions import AirflowProviderDeprecationWarning
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator
from airflow_ckpt_provider.operators.verify import CheckpointVerifyOperator

Run = Callable[..., dict[str, Any]]


def connection(key: str) -> str:
    return json.dumps({"conn_type": "fs", "extra": {"ckpt_repository_secret_key": key}})


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VAULT", "OTHER"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", connection(base64.b64encode(os.urandom(32)).decode()))
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", connection("no-such-thing"))


def test_backup_verify_restore(checkpoint: Path, tmp_path: Path, run: Run) -> None:
    repository = tmp_path / "vault"
    place = {"repository": str(repository), "repository_conn_id": "vault"}
    made = CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), create=True, **place).execute({})
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
        ("broken", "ckpt_repository_secret_key of connection 'broken' is no key"),
    ):
        with pytest.raises(AirflowFailException, match=says) as error:
            CheckpointVerifyOperator(task_id="v", **{**place, "repository_conn_id": conn_id}).execute(run())
        assert "no-such-thing" not in str(error.value)


def test_the_old_name_of_the_key(checkpoint: Path, repository: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It works for one release, with a warning that does not show the key; where both are given, the new one is used."""
    key, other = (base64.b64encode(os.urandom(32)).decode() for _ in range(2))
    old = {"conn_type": "fs", "extra": {"ckpt_repository_key": key}}
    monkeypatch.setenv("AIRFLOW_CONN_OLD", json.dumps(old))
    monkeypatch.setenv("AIRFLOW_CONN_NEW", connection(key))
    monkeypatch.setenv(
        "AIRFLOW_CONN_BOTH", json.dumps({**old, "extra": {"ckpt_repository_secret_key": other, **old["extra"]}})
    )
    place = {"repository": f"{repository}-encrypted", "repository_conn_id": "old"}
    with pytest.warns(AirflowProviderDeprecationWarning, match="Use `ckpt_repository_secret_key` instead") as warned:
        CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), create=True, **place).execute({})
    assert key not in " ".join(str(w.message) for w in warned)
    with pytest.warns(AirflowProviderDeprecationWarning), pytest.raises(AirflowFailException, match="another key"):
        CheckpointVerifyOperator(task_id="v", **{**place, "repository_conn_id": "both"}).execute(run())
    assert CheckpointVerifyOperator(task_id="v", **{**place, "repository_conn_id": "new"}).execute(run())["ok"] is True
