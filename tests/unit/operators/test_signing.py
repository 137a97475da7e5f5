"""The keys of signatures come from the connection of the repository; the check keeps its pin as an XCom."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.repository import CheckpointRepositoryCheckOperator
from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator
from airflow_ckpt_provider.operators.verify import CheckpointVerifyOperator
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.signatures import new_signing_key, public_key

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    made = new_signing_key()
    secret, public = (base64.b64encode(each).decode() for each in (made, public_key(made)))
    extras: dict[str, dict[str, Any]] = {
        "signer": {"ckpt_signing_secret_key": secret, "ckpt_trusted_keys": [public]},
        "reader": {"ckpt_trusted_keys": f"{public}, {base64.b64encode(b'x' * 32).decode()}"},
    }
    for name, extra in extras.items():
        document = json.dumps({"conn_type": "fs", "extra": extra})
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", document)
    return secret


def test_backup_check_restore(
    checkpoint: Path, tmp_path: Path, run: Run, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    masked: list[object] = []
    monkeypatch.setattr("airflow_ckpt_provider.places.mask_secret", masked.append)
    place: dict[str, Any] = {"repository": str(tmp_path / "signed"), "repository_conn_id": "signer"}
    made = CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), create=True, **place).execute({})
    assert secret in masked
    reader = {**place, "repository_conn_id": "reader"}
    assert CheckpointVerifyOperator(task_id="v", **place).execute(run())["ok"] is True
    context = run()
    operator = CheckpointRepositoryCheckOperator(task_id="c", trust=True, pin="null", **reader)
    report = operator.execute(context)
    assert (report["ok"], report["trust"]["findings"]) == (True, [])
    pin = context["pushed"]["pin"]
    assert pin == report["trust"]["pin"]
    with pytest.raises(AirflowFailException, match="no key to sign new ones with"):
        CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), **reader).execute({})

    CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), **{**place, "repository_conn_id": None}).execute(
        {}
    )
    restored = CheckpointRestoreOperator(
        task_id="r", target=str(tmp_path / "target"), name=made["name"], mode="apply", **place
    ).execute(run())
    assert restored["plan"]["backup_id"] == made["backup_id"]
    repository = Repository.open(open_location(str(tmp_path / "signed")))
    repository.location.delete(f"backups/{made['name']}/{made['backup_id']}.json")
    operator = CheckpointRepositoryCheckOperator(task_id="c", trust="true", pin=json.dumps(pin), **reader)
    context = run()
    with pytest.raises(AirflowFailException, match="is pinned, is missing"):
        operator.execute(context)
    assert context["pushed"]["pin"] == pin
    with pytest.raises(AirflowFailException, match="pin is no JSON"):
        CheckpointRepositoryCheckOperator(task_id="c", trust=True, pin="{", **reader).execute(run())
