"""CheckpointBackupOperator, with real checkpoints and repositories and a stand-in for the task run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_ckpt_provider.assets import BACKUPS, backup_asset
from airflow_ckpt_provider.backup.lease import lease
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import BackupRunningError, StorageError
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.places import open_place
from tests.support.one_checkpoint import NEWEST

Run = Callable[..., dict[str, Any]]


def _operator(checkpoint: Any, repository: Any, **fields: Any) -> CheckpointBackupOperator:
    return CheckpointBackupOperator(task_id="back_up", checkpoint=str(checkpoint), repository=str(repository), **fields)


def test_backup(checkpoint: Path, repository: Path, run: Run) -> None:
    operator = _operator(checkpoint, repository, tags={"release": 27}, reason="before 2.7", restorable_batches="2")
    result = operator.execute(run())
    assert json.loads(json.dumps(result)) == result
    manifest = Repository.open(open_place(str(repository))).manifest(result["backup_id"])
    assert result == {
        **manifest.summary(),
        "repository": str(repository),
        "manifest": f"backups/orders/{manifest.backup_id}.json",
        "uri": f"{repository}/backups/orders/{manifest.backup_id}.json",
        "copied_files": len(manifest.files),
        "copied_bytes": manifest.bytes,
        "seconds": result["seconds"],
        "already_done": False,
        "unchanged": False,
        "immutable_until": None,
        "copied_by_store": None,
    }
    assert (manifest.name, manifest.batch_id, manifest.restorable) == ("orders", NEWEST, (NEWEST - 1, NEWEST))
    assert (manifest.tags, manifest.reason) == ({"release": "27"}, "before 2.7")
    assert manifest.made_by == "dag/manual__1/task/-1"


def test_a_cleared_task_takes_another_one_where_the_stream_has_gone_on(
    checkpoint: Path, repository: Path, run: Run
) -> None:
    """The task of an upgrade is cleared hours later: what it backed up then is no place to return to now."""
    newest = [*checkpoint.glob(f"*/{NEWEST}"), *checkpoint.glob(f"*/.{NEWEST}.crc")]
    kept = {path: path.read_bytes() for path in newest}
    for path in newest:
        path.unlink()
    first = _operator(checkpoint, repository, current=True).execute(run())
    assert first["batch_id"] == NEWEST - 1
    assert _operator(checkpoint, repository, current=True).execute(run(try_number=2))["already_done"]
    for path, data in kept.items():
        path.write_bytes(data)
    second = _operator(checkpoint, repository, current=True).execute(run(try_number=3))
    assert (second["batch_id"], second["already_done"]) == (NEWEST, False)


def test_backup_into_memory(checkpoint: Path, run: Run) -> None:
    first = _operator(checkpoint, "memory://operators/backups", name="one", create=True).execute(run())
    second = _operator(checkpoint, "memory://operators/backups", name="one", create=True).execute(run())
    assert first["copied_files"] == first["files"]
    assert second["copied_files"] == 0
    assert first["backup_id"] < second["backup_id"]


def test_without_a_task_run(checkpoint: Path, repository: Path) -> None:
    """From a notebook or a test: no announcement, nobody's name."""
    assert _operator(checkpoint, repository).execute({})["made_by"] == ""


def test_retry_returns_the_backup_of_the_attempt_before(checkpoint: Path, repository: Path, run: Run) -> None:
    first = _operator(checkpoint, repository).execute(run())
    second = _operator(checkpoint, repository).execute(run(try_number=2))
    assert second == {**first, "copied_files": 0, "copied_bytes": 0, "seconds": 0.0, "already_done": True}
    assert len(Repository.open(open_place(str(repository))).backups()) == 1


def test_no_backup_where_nothing_was_committed_since(
    checkpoint: Path, repository: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    first = _operator(checkpoint, repository).execute({**run(), "outlet_events": OutletEventAccessors()})
    assert "Downstream DAGs are notified" in capsys.readouterr().out
    context = {**run(run_id="manual__2"), "outlet_events": OutletEventAccessors()}
    second = _operator(checkpoint, repository, skip_if_unchanged="true").execute(context)
    assert second == {**first, "copied_files": 0, "copied_bytes": 0, "seconds": 0.0, "unchanged": True}
    assert json.loads(json.dumps(second)) == second
    assert context["outlet_events"][BACKUPS].asset_alias_events == [], "there is no new backup"
    assert "Downstream DAGs are notified" not in capsys.readouterr().out
    assert context["pushed"] == {}  # no browser opens a file of a worker
    third = _operator(checkpoint, repository, skip_if_unchanged="{{ x }}").execute
    with pytest.raises(AirflowFailException, match="skip_if_unchanged"):
        third(run(run_id="manual__3"))
    more = _operator(checkpoint, repository, skip_if_unchanged=True, restorable_batches=2)
    assert not more.execute(run(run_id="manual__4"))["unchanged"]


def test_spark_is_not_asked_where_nothing_was_committed_since(
    checkpoint: Path, repository: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _operator(checkpoint, repository).execute(run())
    monkeypatch.setattr("airflow_ckpt_provider.operators.spark_backup.backup_by_connection", None)
    operator = _operator(checkpoint, repository, skip_if_unchanged=True, engine="spark")
    assert operator.execute(run(run_id="manual__2"))["unchanged"]


@pytest.mark.parametrize("other", [{"run_id": "manual__2"}, {"task_id": "another"}])
def test_retry_does_not_take_the_backup_of_another_task(
    checkpoint: Path, repository: Path, run: Run, other: dict[str, str]
) -> None:
    first = _operator(checkpoint, repository).execute(run())
    second = _operator(checkpoint, repository).execute(run(try_number=2, **other))
    assert second["backup_id"] != first["backup_id"]
    assert second["already_done"] is False


def test_asset_events_and_link(checkpoint: Path, repository: Path, run: Run) -> None:
    own = Asset("orders_checkpoint")
    context = {**run(), "outlet_events": OutletEventAccessors()}
    operator = _operator(checkpoint, repository, outlets=[BACKUPS, own])
    result = operator.execute(context)
    extra = {
        key: result[key]
        for key in ("backup_id", "name", "batch_id", "checkpoint", "repository", "uri", "files", "bytes", "made_by")
    }
    events = context["outlet_events"]
    assert events[own].extra == extra
    (event,) = events[BACKUPS].asset_alias_events
    assert event.extra == extra
    assert event.dest_asset_key.uri == backup_asset(str(repository), "orders").uri
    assert context["pushed"] == {}


def test_outlets_default_to_the_alias(checkpoint: Path, repository: Path) -> None:
    own = Asset("orders_checkpoint")
    assert _operator(checkpoint, repository).outlets == [BACKUPS]
    assert _operator(checkpoint, repository, outlets=[own]).outlets == [own]


@pytest.mark.parametrize("create", [False, True])
def test_not_a_checkpoint_is_not_retried(tmp_path: Path, repository: Path, run: Run, create: bool) -> None:
    place = tmp_path / "none" if create else repository
    with pytest.raises(AirflowFailException) as e:
        _operator(tmp_path / "nothing", place, create=create).execute(run())
    assert not (tmp_path / "none").exists()
    assert str(e.value) == (
        f"{tmp_path}/nothing is not a checkpoint: it has no offsets/, no commits/ and no metadata\n"
        "HINT: check the address: it is the checkpointLocation of the query. It may also not have started yet; "
        "if it was deleted, put it back: airflow-ckpt restore REPOSITORY latest CHECKPOINT"
    )


@pytest.mark.parametrize("inside", ["backups", "."])
def test_no_repository_is_made_inside_the_checkpoint(checkpoint: Path, run: Run, inside: str) -> None:
    before = sorted(checkpoint.rglob("*"))
    with pytest.raises(AirflowFailException, match="the repository lies inside the checkpoint"):
        _operator(checkpoint, checkpoint / inside, create=True).execute(run())
    assert sorted(checkpoint.rglob("*")) == before


@pytest.mark.parametrize("name", ["../orders", "a/b", "-orders"])
def test_no_repository_is_made_for_a_name_that_cannot_be_one(
    checkpoint: Path, tmp_path: Path, run: Run, name: str
) -> None:
    with pytest.raises(AirflowFailException, match="cannot be the name of a stream"):
        _operator(checkpoint, tmp_path / "none", name=name, create=True).execute(run())
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("there", ["missing", "empty"])
def test_a_place_without_a_repository_is_refused(checkpoint: Path, tmp_path: Path, run: Run, there: str) -> None:
    """It may be mistyped, or not mounted."""
    place = tmp_path / "mount"
    if there == "empty":
        place.mkdir()
    for create in (False, "false"):
        with pytest.raises(AirflowFailException) as e:
            _operator(checkpoint, place, create=create).execute(run())
        assert str(e.value).startswith(f"{place} is not a repository: it has no repository.json\n")
        assert "is mounted" in str(e.value)
        assert "create=True" in str(e.value)
    assert sorted(place.rglob("*")) == []
    made = _operator(checkpoint, place, create="{{ true }}".strip("{ }")).execute(run())
    assert _operator(checkpoint, place).execute(run(run_id="manual__2"))["name"] == made["name"]


def test_another_repository_than_the_connection_expects(
    checkpoint: Path, repository: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Repository.open(open_place(str(repository))).repository_id
    other = Repository.open_or_create(open_place(str(tmp_path / "other"))).repository_id
    extra = {"ckpt_repository_id": f" {expected} "}
    monkeypatch.setenv("AIRFLOW_CONN_PINNED", json.dumps({"conn_type": "fs", "extra": extra}))
    pinned = {"repository_conn_id": "pinned", "create": True}
    assert _operator(checkpoint, repository, **pinned).execute(run())["name"] == "orders"
    wrong = f"{tmp_path / 'other'} is repository {other}, and repository {expected} is expected there"
    with pytest.raises(AirflowFailException, match=wrong):
        _operator(checkpoint, tmp_path / "other", **pinned).execute(run())
    with pytest.raises(AirflowFailException, match=f"repository {expected} is expected there"):
        _operator(checkpoint, tmp_path / "none", **pinned).execute(run())
    assert not (tmp_path / "none").exists()
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == ["repository.json"]


def test_another_stream_is_refused_unless_it_is_a_new_life(checkpoint: Path, repository: Path, run: Run) -> None:
    first = _operator(checkpoint, repository).execute(run())
    other = "2f1d8f3e-0b52-4a53-9a7b-000000000002"
    (checkpoint / "metadata").write_text(json.dumps({"id": other}))
    with pytest.raises(AirflowFailException, match=f"are of another stream: query {first['query_id']} of "):
        _operator(checkpoint, repository).execute(run(run_id="manual__2"))
    second = _operator(checkpoint, repository, new_life="true").execute(run(run_id="manual__3"))
    assert (second["name"], second["query_id"]) == ("orders", other)


def test_retry_finds_its_backup_though_the_checkpoint_is_lost(checkpoint: Path, repository: Path, run: Run) -> None:
    first = _operator(checkpoint, repository).execute(run())
    shutil.rmtree(checkpoint)
    assert _operator(checkpoint, repository).execute(run(try_number=2))["backup_id"] == first["backup_id"]


def test_empty_field_is_not_retried(repository: Path, run: Run) -> None:
    with pytest.raises(AirflowFailException) as e:
        _operator("", repository).execute(run())
    assert str(e.value) == "checkpoint is empty\nHINT: give checkpoint, or check the template that it comes from"


def test_storage_error_is_raised_as_it_is(checkpoint: Path, tmp_path: Path, run: Run) -> None:
    """So that Airflow tries again: a store may be back in a minute."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError) as e:
        _operator(checkpoint, tmp_path / "file" / "backups").execute(run())
    assert not isinstance(e.value, AirflowFailException)


def test_running_backup_is_waited_for_by_retrying(checkpoint: Path, repository: Path, run: Run) -> None:
    """The other backup may be the attempt before, on a worker that was lost."""
    place = open_place(str(repository))
    with lease(place, "orders", made_by="somebody"), pytest.raises(BackupRunningError):
        _operator(checkpoint, repository).execute(run())
