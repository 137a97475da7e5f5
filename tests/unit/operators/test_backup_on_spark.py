"""CheckpointBackupOperator(engine=…): who is asked, with what, and what comes back. A real Spark is in tests/integration."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.spark_backup import APPLICATION
from airflow_ckpt_provider.places import open_place
from tests.support.spark_submit import plant_spark_submit

Run = Callable[..., dict[str, Any]]

#: In the place of spark-submit: notes what it was called with, and takes the backup in this one process.
SUBMIT = f"""#!{sys.executable}
import json, os, pathlib, sys
pathlib.Path(os.environ["NOTED"]).write_text(json.dumps(sys.argv[1:]))
if os.environ.get("FAILS"):
    sys.exit(3)
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.jobs.build_function import settings_of
from airflow_ckpt_provider.jobs.copy_closure import _parser
from airflow_ckpt_provider.storage.opening import open_location
args = _parser().parse_args(sys.argv[sys.argv.index({APPLICATION!r}) + 1 :])
source = Checkpoint.at(open_location(args.checkpoint))
if not os.environ.get("IDLE"):
    create_backup(source, Repository.open(open_location(args.repository)), name=args.name, reason=args.reason,
                  new_life=args.new_life, tags=settings_of(args.tag), made_by=args.made_by,
                  restorable_batches=args.restorable_batches)
"""


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in notes what it was called with; missing as long as nobody called it."""
    plant_spark_submit(monkeypatch, tmp_path, SUBMIT, NOTED=str(tmp_path / "noted.json"))
    return tmp_path / "noted.json"


def _operator(checkpoint: Any, repository: Any, **fields: Any) -> CheckpointBackupOperator:
    return CheckpointBackupOperator(task_id="back_up", checkpoint=str(checkpoint), repository=str(repository), **fields)


def test_on_spark(checkpoint: Path, repository: Path, run: Run, noted: Path) -> None:
    about = {"tags": {"release": 27}, "reason": "before 2.7", "restorable_batches": "2", "name": "shop"}
    operator = _operator(
        checkpoint,
        repository,
        engine="spark",
        spark_settings={"num_executors": 8},
        spark_arguments=["--workers=3"],
        **about,
    )
    result = operator.execute(run())
    assert json.loads(json.dumps(result)) == result
    (manifest,) = Repository.open(open_place(str(repository))).backups()
    assert result == {
        **manifest.summary(),
        "repository": str(repository),
        "manifest": manifest.path,
        "uri": f"{repository}/{manifest.path}",
        **dict.fromkeys(("copied_files", "copied_bytes", "seconds")),
        "already_done": False,
        "unchanged": False,
        "immutable_until": None,
        "copied_by_store": None,
    }
    assert (manifest.made_by, manifest.tags, manifest.reason) == (
        "dag/manual__1/task/-1",
        {"release": "27"},
        "before 2.7",
    )
    assert len(manifest.restorable) == 2
    words = json.loads(noted.read_text())
    assert f"--repository-id={Repository.open(open_place(str(repository))).repository_id}" in words
    assert words[words.index("--num-executors") :][:2] == ["--num-executors", "8"]
    assert words[-1] == "--workers=3"


def test_a_retry_finds_what_spark_has_done(checkpoint: Path, repository: Path, run: Run, noted: Path) -> None:
    first = _operator(checkpoint, repository, engine="spark").execute(run())
    noted.unlink()
    second = _operator(checkpoint, repository, engine="spark").execute(run(try_number=2))
    assert (second["backup_id"], second["already_done"]) == (first["backup_id"], True)
    assert not noted.exists()


@pytest.mark.parametrize(
    ("limits", "on_spark"),
    [
        ({}, False),
        ({"spark_from_files": "3"}, True),
        ({"spark_from_bytes": 100}, True),
        ({"spark_from_files": 10**6}, False),
    ],
    ids=str,
)
def test_auto(
    checkpoint: Path, repository: Path, run: Run, noted: Path, limits: dict[str, Any], on_spark: bool
) -> None:
    result = _operator(checkpoint, repository, engine="auto", **limits).execute(run())
    assert noted.exists() is on_spark
    assert (result["copied_files"] is None) is on_spark
    assert len(Repository.open(open_place(str(repository))).backups()) == 1
    # Where nothing is new, no limit is too low for this task.
    noted.unlink(missing_ok=True)
    again = _operator(checkpoint, repository, engine="auto", **limits).execute(run(run_id="manual__2"))
    assert not noted.exists()
    assert again["copied_files"] == 0


def test_spark_fails(
    checkpoint: Path, repository: Path, run: Run, noted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(StorageError, match=f"Spark did not back {checkpoint} up: (?s:.*)the next attempt continues"):
        _operator(checkpoint, repository, engine="spark").execute(run())


def test_spark_writes_elsewhere(
    checkpoint: Path, repository: Path, run: Run, noted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IDLE", "1")
    with pytest.raises(StorageError, match="has no new backup of orders"):
        _operator(checkpoint, repository, engine="spark").execute(run())


def test_an_unknown_engine(checkpoint: Path, repository: Path, run: Run) -> None:
    with pytest.raises(AirflowFailException, match="give one of: local, spark, auto"):
        _operator(checkpoint, repository, engine="flink").execute(run())
