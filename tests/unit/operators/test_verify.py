"""CheckpointVerifyOperator: whole backups pass, damaged ones fail permanently, and the report says where."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.verify import CheckpointVerifyOperator
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.storage import local_store
from tests.support.spoiled import file_at, spoil

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def backup(checkpoint: Path, repository: Path) -> dict[str, Any]:
    return CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), repository=str(repository)).execute({})


@pytest.mark.parametrize(("read_data", "share"), [(None, 0), ("None", 0), ("all", 1), ("10%", 0.1), ("1/1", 1)])
def test_whole(backup: dict[str, Any], run: Run, read_data: str | None, share: float) -> None:
    result = CheckpointVerifyOperator(task_id="v", repository=backup["repository"], read_data=read_data).execute(run())
    assert json.loads(json.dumps(result)) == result
    assert result["ok"] is True
    assert (result["backup_id"], result["name"], result["batch_id"]) == (backup["backup_id"], "orders", 5)
    assert (result["files"], result["bytes"]) == (backup["files"], backup["bytes"])
    assert result["read_files"] == round(backup["files"] * share)


@pytest.mark.format_1("the whole message; a pack is one finding more")
def test_damaged(backup: dict[str, Any], run: Run) -> None:
    repository = Path(backup["repository"])
    manifest = Repository.open(open_place(str(repository))).manifest()
    entry = next(e for e in manifest.files if e.path == "metadata")
    spoil(open_place(str(repository)), entry)
    context = run()
    operator = CheckpointVerifyOperator(task_id="v", repository=str(repository), read_data="all")
    with pytest.raises(AirflowFailException) as e:
        operator.execute(context)
    assert str(e.value) == (
        f"backup {backup['backup_id']} is damaged: 1 finding\n"
        f"metadata: its object {entry.object} has another content than was backed up\n"
        "HINT: take a new backup, and restore none from this one"
    )
    report = context["pushed"]["return_value"]
    assert report["ok"] is False
    assert [f["path"] for f in report["findings"]] == ["metadata"]


def test_many_findings_are_cut_short_in_the_message_but_not_in_the_report(backup: dict[str, Any], run: Run) -> None:
    repository = Path(backup["repository"])
    for file in (repository / "objects").rglob("*"):
        if file.is_file():
            file.unlink()
    context = run()
    with pytest.raises(AirflowFailException) as e:
        CheckpointVerifyOperator(task_id="v", repository=str(repository)).execute(context)
    lines = str(e.value).splitlines()
    assert lines[0] == f"backup {backup['backup_id']} is damaged: {backup['files']} findings"
    assert len(lines) == 13
    assert lines[11] == f"… and {backup['files'] - 10} more"
    assert len(context["pushed"]["return_value"]["findings"]) == backup["files"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"backup_id": "20200101T000000Z-b000001"},
            "{repository} holds no backup 20200101T000000Z-b000001\nHINT: `airflow-ckpt backups REPOSITORY` lists what there is",
        ),
        ({"read_data": "some"}, "cannot read 'some' of the data\nHINT: use all, n/t with 1 <= n <= t <= 999999, or x%"),
        ({"backup_id": ""}, "backup_id is empty\nHINT: give backup_id, or check the template that it comes from"),
    ],
)
def test_refused(backup: dict[str, Any], run: Run, fields: dict[str, str], message: str) -> None:
    operator = CheckpointVerifyOperator(task_id="v", repository=backup["repository"], **fields)
    with pytest.raises(AirflowFailException) as e:
        operator.execute(run())
    assert str(e.value) == message.format(repository=backup["repository"])


class TestAll:
    def test_whole(self, backup: dict[str, Any], run: Run) -> None:
        operator = CheckpointVerifyOperator(
            task_id="v", repository=backup["repository"], backup_id="all", read_data="1/30"
        )
        result = operator.execute(run())
        assert json.loads(json.dumps(result)) == result
        (orders,) = result["streams"]
        assert (result["ok"], orders["backups"], orders["read_objects"]) == (True, 1, 1)
        assert orders["coverage"]["read"] == 1

    def test_only_one_stream(self, backup: dict[str, Any], run: Run) -> None:
        operator = CheckpointVerifyOperator(
            task_id="v", repository=backup["repository"], backup_id="all", name="payments"
        )
        with pytest.raises(AirflowFailException, match="holds no backup of payments"):
            operator.execute(run())

    @pytest.mark.format_1("the whole message; a pack is one finding more")
    def test_damaged(self, backup: dict[str, Any], run: Run) -> None:
        entry = rot(backup)
        context = run()
        operator = CheckpointVerifyOperator(
            task_id="v", repository=backup["repository"], backup_id="all", read_data="all"
        )
        with pytest.raises(AirflowFailException) as e:
            operator.execute(context)
        assert str(e.value) == (
            "1 backup is damaged: 1 finding\n"
            f"orders {backup['backup_id']}: metadata: its object {entry.object} has another content than was backed up\n"
            "HINT: take a new backup, and restore none from this one"
        )
        assert context["pushed"]["return_value"]["ok"] is False


def rot(backup: dict[str, Any]) -> FileEntry:
    repository = Path(backup["repository"])
    manifest = Repository.open(open_place(str(repository))).manifest(whole=False)
    entry = next(e for e in manifest.files if e.path == "metadata")
    spoil(open_place(str(repository)), entry)
    return entry


@pytest.mark.format_1("the disk fails where a whole file is read")
@pytest.mark.parametrize("backup_id", ["latest", "all"])
def test_what_could_not_be_read_is_tried_again(
    backup: dict[str, Any], run: Run, backup_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Path(backup["repository"])
    manifest = Repository.open(open_place(str(repository))).manifest()
    lost = file_at(repository, next(e.object for e in manifest.files if e.path == "metadata"))
    opened = local_store._opened_to_read

    def fail(path: str) -> BinaryIO:
        if Path(path) == lost:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return opened(path)

    monkeypatch.setattr(local_store, "_opened_to_read", fail)
    context = run()
    operator = CheckpointVerifyOperator(task_id="v", repository=str(repository), backup_id=backup_id, read_data="all")
    with pytest.raises(StorageError, match=r"^not all could be read: 1 finding"):
        operator.execute(context)
    assert context["pushed"]["return_value"]["ok"] is False
    monkeypatch.undo()
    assert operator.execute(run())["ok"] is True
