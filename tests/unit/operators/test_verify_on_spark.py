"""CheckpointVerifyOperator(engine=…): who reads, with what, and what comes back. A real Spark is in tests/integration."""

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
from airflow_ckpt_provider.operators.verify import APPLICATION, CheckpointVerifyOperator
from airflow_ckpt_provider.places import open_place
from tests.support.spark_submit import plant_spark_submit
from tests.support.spoiled import spoil

Run = Callable[..., dict[str, Any]]

#: In the place of spark-submit: notes what it was called with, and does what the application does, in this one process.
SUBMIT = f"""#!{sys.executable}
import json, os, pathlib, sys
pathlib.Path(os.environ["NOTED"]).write_text(json.dumps(sys.argv[1:]))
if os.environ.get("FAILS"):
    sys.exit(3)
from airflow_ckpt_provider.backup.read_engine import ThreadReads
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.jobs.verify_contents import _parser, verified
from airflow_ckpt_provider.storage.opening import open_location
args = _parser().parse_args(sys.argv[sys.argv.index({APPLICATION!r}) + 1 :])
if not os.environ.get("IDLE"):
    sys.exit(verified(Repository.open(open_location(args.repository)), ThreadReads(), args))
"""


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in notes what it was called with; missing as long as nobody called it."""
    plant_spark_submit(monkeypatch, tmp_path, SUBMIT, NOTED=str(tmp_path / "noted.json"))
    return tmp_path / "noted.json"


@pytest.fixture
def backup(checkpoint: Path, repository: Path) -> dict[str, Any]:
    return CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), repository=str(repository)).execute({})


def _verify(backup: dict[str, Any], context: Any, **fields: Any) -> dict[str, Any]:
    given = {"read_data": "all", **fields}
    return CheckpointVerifyOperator(task_id="v", repository=backup["repository"], **given).execute(context)


def _rot(backup: dict[str, Any]) -> str:
    """Change an object; return its path."""
    place = Path(backup["repository"])
    manifest = Repository.open(open_place(str(place))).manifest()
    entry = next(e for e in manifest.files if e.path == "metadata")
    spoil(open_place(str(place)), entry)
    return entry.object


@pytest.mark.parametrize("backup_id", ["latest", "all"])
def test_on_spark(backup: dict[str, Any], run: Run, noted: Path, backup_id: str) -> None:
    """The result is that of this task, and nothing is left of how it came here."""
    spark = {"engine": "spark", "spark_settings": {"num_executors": 8}, "spark_arguments": ["--workers=3"]}
    by_spark = _verify(backup, run(), backup_id=backup_id, **spark)
    words = json.loads(noted.read_text())
    assert words[words.index("--num-executors") :][:2] == ["--num-executors", "8"]
    assert words[-1] == "--workers=3"
    assert f"--repository-id={Repository.open(open_place(backup['repository'])).repository_id}" in words
    assert by_spark == _verify(backup, run(), backup_id=backup_id)
    assert by_spark["ok"] is True
    place = open_place(backup["repository"])
    assert place.list("verified").files == ()
    assert list(place.walk("read"))


@pytest.mark.parametrize("backup_id", ["latest", "all"])
def test_damaged(backup: dict[str, Any], run: Run, noted: Path, backup_id: str) -> None:
    damaged = _rot(backup)
    said, reports = [], []
    for engine in ("spark", "local"):
        context = run()
        with pytest.raises(AirflowFailException) as e:
            _verify(backup, context, backup_id=backup_id, engine=engine)
        said.append(str(e.value))
        reports.append(context["pushed"]["return_value"])
    assert said[0] == said[1]
    assert reports[0] == reports[1]
    assert f"its object {damaged} has another content than was backed up" in said[0]
    assert list(open_place(backup["repository"]).walk("damaged"))


@pytest.mark.parametrize("backup_id", ["latest", "all"])
@pytest.mark.parametrize(
    ("limits", "on_spark"),
    [({}, False), ({"spark_from_files": "3"}, True), ({"spark_from_bytes": 100}, True)],
    ids=str,
)
def test_auto(
    backup: dict[str, Any], run: Run, noted: Path, limits: dict[str, Any], on_spark: bool, backup_id: str
) -> None:
    result = _verify(backup, run(), backup_id=backup_id, engine="auto", **limits)
    assert noted.exists() is on_spark
    assert result == _verify(backup, run(), backup_id=backup_id)


def test_nothing_to_read_is_not_for_spark(backup: dict[str, Any], run: Run, noted: Path) -> None:
    assert _verify(backup, run(), engine="spark", read_data=None)["read_files"] == 0
    assert not noted.exists()


def test_spark_fails(backup: dict[str, Any], run: Run, noted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(StorageError, match="Spark failed"):
        _verify(backup, run(), engine="spark")


def test_spark_verifies_elsewhere(
    backup: dict[str, Any], run: Run, noted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IDLE", "1")
    with pytest.raises(StorageError, match="has no report of its verify"):
        _verify(backup, run(), engine="spark")


def test_an_unknown_engine(backup: dict[str, Any], run: Run) -> None:
    with pytest.raises(AirflowFailException, match="give one of: local, spark, auto"):
        _verify(backup, run(), engine="flink")
