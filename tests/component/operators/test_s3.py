"""The operators on a real S3 server, reached through Airflow connections."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.links.manifest import manifest_url
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator
from airflow_ckpt_provider.operators.seal import CheckpointSealOperator, CheckpointUnsealOperator
from airflow_ckpt_provider.operators.verify import CheckpointVerifyOperator
from airflow_ckpt_provider.places import open_place
from tests.support.one_checkpoint import NEWEST, unpack
from tests.support.s3_server import READER, STRANGER, S3Server


@pytest.fixture
def bucket(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket with a checkpoint in ``checkpoints/orders``, and connections to its server."""
    name = s3_server.make_bucket()
    fs = s3_server.filesystem()
    fs.put(f"{unpack(tmp_path / 'orders')}/", f"{name}/checkpoints/orders/", recursive=True)
    monkeypatch.setenv("AIRFLOW_CONN_LAKE_OF_THIS_TEST", s3_server.airflow_connection(READER))
    monkeypatch.setenv("AIRFLOW_CONN_BACKUPS", s3_server.airflow_connection())
    monkeypatch.setenv("AIRFLOW_CONN_STRANGER", s3_server.airflow_connection(STRANGER))
    return name


def _back_up(bucket: str, **fields: Any) -> dict[str, Any]:
    arguments = {
        "checkpoint": f"s3a://{bucket}/checkpoints/orders",
        "checkpoint_conn_id": "lake_of_this_test",
        "repository": f"s3://backups@{bucket}/backups",
        "create": True,
        **fields,
    }
    return CheckpointBackupOperator(task_id="b", **arguments).execute({})


def test_backup_verify_restore(bucket: str, s3_server: S3Server) -> None:
    """The checkpoint through a connection that may only read it, the repository through another one."""
    backup = _back_up(bucket)
    assert backup["checkpoint"] == f"s3://{bucket}/checkpoints/orders"
    assert backup["repository"] == f"s3://{bucket}/backups"
    # The server refuses an address without a signature, so there is no link to it.
    assert manifest_url(open_place(f"s3://{bucket}/backups", "backups"), backup["manifest"]) == ""
    with pytest.raises(HTTPError, match="403"):
        urlopen(f"{s3_server.endpoint}/{bucket}/backups/{backup['manifest']}", timeout=30)
    again = _back_up(bucket)
    assert again["copied_files"] == 0

    there = {"repository": f"s3://{bucket}/backups", "repository_conn_id": "backups"}
    report = CheckpointVerifyOperator(task_id="v", read_data="all", **there).execute({})
    assert (report["ok"], report["read_files"]) == (True, backup["files"])

    target = {"target": f"s3a://{bucket}/restored/orders", "target_conn_id": "backups"}
    restored = CheckpointRestoreOperator(task_id="r", mode="apply", **there, **target).execute({})
    assert restored["outcome"]["batch_id"] == NEWEST
    found = Checkpoint.at(open_place(f"s3://{bucket}/restored/orders", "backups")).resume_point()
    assert found.batch_id == NEWEST + 1


def test_seal(bucket: str) -> None:
    place = {"checkpoint": f"s3a://{bucket}/checkpoints/orders", "checkpoint_conn_id": "backups"}
    sealed = CheckpointSealOperator(task_id="s", reason="moving the table", **place).execute({})
    assert sealed["path"] == f"offsets/{NEWEST + 1}"
    with pytest.raises(AirflowFailException, match="is sealed by plan"):
        CheckpointUnsealOperator(task_id="u", plan_id="another", **place).execute({})
    unsealed = CheckpointUnsealOperator(task_id="u", plan_id=sealed["plan_id"], **place).execute({})
    assert unsealed["lifted"] is True


@pytest.mark.parametrize(
    "fields",
    [{"repository_conn_id": "lake_of_this_test"}, {"repository_conn_id": "stranger"}],
    ids=["read-only", "unknown"],
)
def test_rights_that_are_missing_are_left_to_the_retries(bucket: str, fields: dict[str, str]) -> None:
    with pytest.raises(StorageError, match="HINT: check"):
        _back_up(bucket, repository=f"s3://{bucket}/elsewhere", **fields)


def test_connection_that_is_not_there_is_not_retried(bucket: str) -> None:
    """Airflow's S3 filesystem would quietly continue as nobody."""
    with pytest.raises(AirflowFailException, match="there is no Airflow connection 'typo'"):
        _back_up(bucket, checkpoint_conn_id="typo")
