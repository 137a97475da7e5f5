"""CheckpointRestoreOperator: plans without a change, restores once, continues after a stop, and never restores twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.storage.local_store import LocalStore
from tests.support.one_checkpoint import NEWEST
from tests.support.spoiled import spoil

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def backup(checkpoint: Path, repository: Path) -> dict[str, Any]:
    operator = CheckpointBackupOperator(
        task_id="b", checkpoint=str(checkpoint), repository=str(repository), restorable_batches=2
    )
    return operator.execute({})


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "restored" / "orders"


def _restore(backup: dict[str, Any], target: Path, context: dict[str, Any], **fields: Any) -> dict[str, Any]:
    fields = {"query_is_stopped": True, "quiet_for": 0, **fields}
    operator = CheckpointRestoreOperator(task_id="r", repository=backup["repository"], target=str(target), **fields)
    return operator.execute(context)


def _files(place: Path) -> dict[str, bytes]:
    """All that Spark sees."""
    found = (f for f in place.rglob("*") if f.is_file() and not f.name.startswith("."))
    return {str(file.relative_to(place)): file.read_bytes() for file in found}


def test_plan_is_the_default_and_changes_nothing(backup: dict[str, Any], target: Path, run: Run) -> None:
    result = _restore(backup, target, run())
    assert json.loads(json.dumps(result)) == result
    assert (result["mode"], result["outcome"]) == ("plan", None)
    plan = result["plan"]
    assert (plan["backup_id"], plan["batch_id"], plan["target"]) == (backup["backup_id"], NEWEST, str(target))
    assert result["markdown"].startswith(f"### Restore, plan {plan['plan_id']}\n")
    assert not target.exists()
    assert not list(Path(backup["repository"]).glob("audit/*"))


def test_apply(backup: dict[str, Any], target: Path, run: Run) -> None:
    result = _restore(backup, target, run(), mode="apply", reason="drill")
    assert json.loads(json.dumps(result)) == result
    assert result["outcome"] == {
        "plan_id": result["plan"]["plan_id"],
        "backup_id": backup["backup_id"],
        "target": str(target),
        "batch_id": NEWEST,
        "files": result["plan"]["files"],
        "bytes": result["plan"]["bytes"],
        "seconds": result["outcome"]["seconds"],
        "kept": None,
        "unchanged": 0,
        "already_done": False,
    }
    assert Checkpoint.at(open_place(str(target))).resume_point().batch_id == NEWEST + 1
    record = Repository.open(open_place(backup["repository"])).audit("dag/manual__1/task/-1")
    assert record is not None
    assert (record["reason"], record["plan_id"]) == ("drill", result["plan"]["plan_id"])


@pytest.mark.parametrize("batch", [NEWEST - 1, str(NEWEST - 1)])
def test_batch(backup: dict[str, Any], target: Path, run: Run, batch: int | str) -> None:
    _restore(backup, target, run(), mode="apply", batch=batch)
    assert Checkpoint.at(open_place(str(target))).resume_point().batch_id == NEWEST


def test_replace(backup: dict[str, Any], checkpoint: Path, run: Run) -> None:
    """In its own place: what was there is kept first."""
    (checkpoint / "commits" / str(NEWEST)).unlink()
    result = _restore(backup, checkpoint, run(), mode="apply", replace="True")
    assert result["outcome"]["kept"] is not None
    assert Checkpoint.at(open_place(str(checkpoint))).resume_point().batch_id == NEWEST + 1


def test_latest_is_never_a_safety_backup(backup: dict[str, Any], checkpoint: Path, target: Path, run: Run) -> None:
    """Nobody needs to give a name because of the backups that restores take of what they replace."""
    (checkpoint / "commits" / str(NEWEST)).unlink()
    _restore(backup, checkpoint, run(), mode="apply", replace=True)
    assert _restore(backup, target, run())["plan"]["backup_id"] == backup["backup_id"]


def test_retry_of_a_finished_restore_changes_nothing(
    backup: dict[str, Any], target: Path, checkpoint: Path, run: Run
) -> None:
    """The worker was lost when all was done; before the retry the stream has continued."""
    first = _restore(backup, target, run(), mode="apply", replace=True)
    (target / "offsets" / str(NEWEST + 1)).write_bytes((checkpoint / "offsets" / str(NEWEST)).read_bytes())
    gone_on = _files(target)
    second = _restore(backup, target, run(try_number=2), mode="apply", replace=True)
    assert second["outcome"] == {**first["outcome"], "seconds": 0.0, "already_done": True}
    assert second["plan"] == first["plan"]
    assert _files(target) == gone_on


@pytest.mark.parametrize("writes", [1, 2, 3, 4])
def test_retry_goes_on_where_the_attempt_before_was_stopped(
    backup: dict[str, Any], checkpoint: Path, run: Run, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """The disk goes away after the seal and some files: the checkpoint is not what the shown plan was made for by then."""
    (checkpoint / "commits" / str(NEWEST)).unlink()
    fields = {"mode": "apply", "replace": True, "name": "orders"}
    shown = _restore(backup, checkpoint, run(), replace=True)["plan"]["fingerprint"]
    original, done = LocalStore._write_temporary, 0

    def write(store: LocalStore, path: str, data: bytes) -> str:
        nonlocal done
        if path.startswith(str(checkpoint)):
            if done == writes:
                raise StorageError("the disk is gone")
            done += 1
        return original(store, path, data)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "_write_temporary", write)
        with pytest.raises(StorageError, match="the disk is gone"):
            _restore(backup, checkpoint, run(), fingerprint=shown, workers=1, **fields)
    assert Checkpoint.at(open_place(str(checkpoint))).progress().seal is not None

    result = _restore(backup, checkpoint, run(try_number=2), fingerprint=shown, **fields)
    assert result["outcome"]["already_done"] is False
    assert result["outcome"]["kept"] is not None
    elsewhere = checkpoint.parent / "elsewhere"
    _restore(backup, elsewhere, run(run_id="other"), mode="apply", name="orders")
    assert _files(checkpoint) == _files(elsewhere)


def test_the_plan_that_was_shown_is_the_one_that_is_applied(backup: dict[str, Any], checkpoint: Path, run: Run) -> None:
    (checkpoint / "commits" / str(NEWEST)).unlink()
    shown = _restore(backup, checkpoint, run(), replace=True)["plan"]["fingerprint"]
    (checkpoint / "commits" / str(NEWEST - 1)).unlink()
    moved = _files(checkpoint)
    with pytest.raises(AirflowFailException) as e:
        _restore(backup, checkpoint, run(), mode="apply", replace=True, fingerprint=shown)
    now = _restore(backup, checkpoint, run(), replace=True)["plan"]["fingerprint"]
    assert str(e.value) == (
        f"the plan that was shown ({shown}) is not the one that would be carried out now ({now}): {checkpoint} or "
        "its sink have changed since; nothing was changed\nHINT: make a new plan, and apply that"
    )
    assert _files(checkpoint) == moved
    _restore(backup, checkpoint, run(), mode="apply", replace=True, fingerprint=now)


def test_damaged_backup_is_refused_before_anything_is_changed(backup: dict[str, Any], target: Path, run: Run) -> None:
    repository = Path(backup["repository"])
    manifest = Repository.open(open_place(str(repository))).manifest()
    entry = next(e for e in manifest.files if e.path == "metadata")
    spoil(open_place(str(repository)), entry)
    with pytest.raises(AirflowFailException, match="is damaged: metadata: its object"):
        _restore(backup, target, run(), mode="apply")
    assert not target.exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mode": "Apply"}, "mode is 'Apply'\nHINT: give one of: plan, apply"),
        ({"batch": "newest"}, "batch is 'newest'\nHINT: give a whole number from 0 up, or leave it out"),
        ({"batch": 1}, f"backup {{backup_id}} cannot restore batch 1\nHINT: it can restore: {NEWEST - 1}, {NEWEST}"),
        ({"replace": "perhaps"}, "replace is 'perhaps'\nHINT: give true or false"),
        (
            {"name": "payments"},
            "{repository} holds no backup of payments\nHINT: `airflow-ckpt backups REPOSITORY` lists what there is",
        ),
    ],
)
def test_refused(backup: dict[str, Any], target: Path, run: Run, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(AirflowFailException) as e:
        _restore(backup, target, run(), **fields)
    assert str(e.value) == message.format(**backup)


def test_target_that_is_not_empty(backup: dict[str, Any], checkpoint: Path, run: Run) -> None:
    shutil.rmtree(checkpoint / "commits")
    before = _files(checkpoint)
    with pytest.raises(AirflowFailException, match="is not empty: it holds a checkpoint"):
        _restore(backup, checkpoint, run(), mode="apply")
    assert _files(checkpoint) == before
