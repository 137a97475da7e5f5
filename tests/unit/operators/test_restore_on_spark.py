"""CheckpointRestoreOperator(engine=…): who writes, with what, and what comes back. A real Spark is in tests/integration."""

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
from airflow_ckpt_provider.operators.restore import APPLICATION, CheckpointRestoreOperator
from airflow_ckpt_provider.places import open_place
from tests.support.backups import visible
from tests.support.spark_submit import plant_spark_submit

Run = Callable[..., dict[str, Any]]

#: In the place of spark-submit: notes what it was called with, and does what the application does, in this one process.
SUBMIT = f"""#!{sys.executable}
import json, os, pathlib, sys
pathlib.Path(os.environ["NOTED"]).write_text(json.dumps(sys.argv[1:]))
if os.environ.get("FAILS"):
    sys.exit(3)
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.jobs.restore_contents import _parser, restored
from airflow_ckpt_provider.storage.clocks import Clocks
from airflow_ckpt_provider.storage.opening import open_location
args = _parser().parse_args(sys.argv[sys.argv.index({APPLICATION!r}) + 1 :])
if os.environ.get("STOPS"):
    from tests.support.killing import _die_before, one_after_the_other
    one_after_the_other()
    _die_before(15)
if not os.environ.get("IDLE"):
    restored(Repository.open(open_location(args.repository)), open_location(args.target), None, args, said=Clocks())
"""


#: Settings with which spark-submit leaves its application alone.
EARLY = (
    ("track_driver_via_k8s_api", {"track_driver_via_k8s_api": True}),
    ("yarn_track_via_rm_api", {"yarn_track_via_rm_api": True}),
    ("spark.yarn.submit.waitAppCompletion", {"conf": {"spark.yarn.submit.waitAppCompletion": "FALSE"}}),
    (
        "spark.kubernetes.submission.waitAppCompletion",
        {"conf": {"spark.kubernetes.submission.waitAppCompletion": False}},
    ),
)


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in notes what it was called with; missing as long as nobody called it."""
    plant_spark_submit(monkeypatch, tmp_path, SUBMIT, NOTED=str(tmp_path / "noted.json"))
    return tmp_path / "noted.json"


@pytest.fixture
def backup(checkpoint: Path, repository: Path) -> dict[str, Any]:
    operator = CheckpointBackupOperator(
        task_id="b", checkpoint=str(checkpoint), repository=str(repository), restorable_batches=2
    )
    return operator.execute({})


def _restore(backup: dict[str, Any], target: Path, context: Any, **fields: Any) -> dict[str, Any]:
    given = {"mode": "apply", "query_is_stopped": True, "quiet_for": 0, "reason": "a drill", **fields}
    operator = CheckpointRestoreOperator(task_id="r", repository=backup["repository"], target=str(target), **given)
    return operator.execute(context)


def test_on_spark(backup: dict[str, Any], run: Run, noted: Path, tmp_path: Path) -> None:
    """The target and the result are those of a restore in this task; it can be undone by the id that is returned."""
    spark = {"engine": "spark", "spark_settings": {"num_executors": 8}, "spark_arguments": ["--workers=3"]}
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    by_task = _restore(backup, mine, run(), batch=backup["batch_id"] - 1)
    by_spark = _restore(backup, theirs, run(), batch=backup["batch_id"] - 1, **spark)
    assert visible(open_place(str(theirs))) == visible(open_place(str(mine)))
    words = json.loads(noted.read_text())
    assert words[words.index("--num-executors") :][:2] == ["--num-executors", "8"]
    assert {f"--batch={backup['batch_id'] - 1}", "--query-is-stopped", "--reason=a drill"} <= set(words)
    assert f"--repository-id={Repository.open(open_place(backup['repository'])).repository_id}" in words
    assert "--replace" not in words
    assert words[-1] == "--workers=3"
    assert by_spark["plan"]["plan_id"] == by_spark["outcome"]["plan_id"]
    assert by_spark["outcome"]["plan_id"] in by_spark["markdown"]
    (record,) = (path for path in open_place(backup["repository"]).walk("audit") if by_spark["plan"]["plan_id"] in path)
    assert json.loads(open_place(backup["repository"]).read(record))["reason"] == "a drill"
    own = ("plan_id", "target", "seconds")
    of_both = [{k: v for k, v in each["outcome"].items() if k not in own} for each in (by_task, by_spark)]
    assert of_both[0] == of_both[1]


def test_a_plan_is_made_here(backup: dict[str, Any], run: Run, noted: Path, tmp_path: Path) -> None:
    assert _restore(backup, tmp_path / "target", run(), engine="spark", mode="plan")["outcome"] is None
    assert not noted.exists()


def test_nothing_to_do_is_not_for_spark(backup: dict[str, Any], run: Run, noted: Path, tmp_path: Path) -> None:
    _restore(backup, tmp_path / "target", run())
    assert _restore(backup, tmp_path / "target", run(), engine="spark")["outcome"]["already_done"] is True
    assert not noted.exists()


@pytest.mark.parametrize(
    ("limits", "on_spark"),
    [({}, False), ({"spark_from_files": "3"}, True), ({"spark_from_bytes": 100}, True)],
    ids=str,
)
def test_auto(
    backup: dict[str, Any], run: Run, noted: Path, tmp_path: Path, limits: dict[str, Any], on_spark: bool
) -> None:
    outcome = _restore(backup, tmp_path / "target", run(), engine="auto", **limits)["outcome"]
    assert noted.exists() is on_spark
    assert outcome["files"] > 0


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"stop_running": True}, "engine is 'spark', and stop_running is true: Spark stops no query"),
        ({"engine": "flink"}, "give one of: local, spark, auto"),
        ({"fingerprint": "other"}, r"the plan that was shown \(other\) is not the one"),
        *(
            ({"spark_settings": settings}, f"{name}: spark-submit would end before the application")
            for name, settings in EARLY
        ),
    ],
    ids=str,
)
def test_refused(
    backup: dict[str, Any], run: Run, noted: Path, tmp_path: Path, fields: dict[str, Any], why: str
) -> None:
    """Before Spark is started."""
    with pytest.raises(AirflowFailException, match=why):
        _restore(backup, tmp_path / "target", run(), **{"engine": "spark", **fields})
    assert not noted.exists()


@pytest.mark.parametrize(("how", "why"), [("FAILS", "Spark failed"), ("IDLE", "has no audit record of the restore of")])
def test_spark_does_not_restore(
    backup: dict[str, Any],
    run: Run,
    noted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    why: str,
) -> None:
    monkeypatch.setenv(how, "1")
    with pytest.raises(StorageError, match=why):
        _restore(backup, tmp_path / "target", run(), engine="spark")


@pytest.mark.parametrize("stopped", [False, True], ids=["at once", "resumed"])
def test_the_plan_that_was_approved(
    backup: dict[str, Any], run: Run, noted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    """The application, which knows no sink, compares the fingerprint too: it is given what the sinks say."""
    about = {"engine": "spark", "backup_id": backup["backup_id"], "batch": backup["batch_id"], "sink": "foreachBatch"}
    about["accept"] = ["sink_duplicates"]
    shown = _restore(backup, tmp_path / "target", run(), **about, mode="plan")["plan"]
    if stopped:
        monkeypatch.setenv("STOPS", "1")
        with pytest.raises(StorageError, match="Spark failed"):
            _restore(backup, tmp_path / "target", run(), **about, fingerprint=shown["fingerprint"])
        monkeypatch.delenv("STOPS")
    done = _restore(backup, tmp_path / "target", run(try_number=2), **about, fingerprint=shown["fingerprint"])
    assert done["outcome"]["batch_id"] == backup["batch_id"]
    kept = open_place(backup["repository"]).read(f"plans/{done['plan']['plan_id']}.json")
    assert json.loads(kept)["fingerprint"] == shown["fingerprint"]
