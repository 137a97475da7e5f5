"""What only a run in Airflow can show: retries, mapped tasks, setup and teardown, a DAG's way through the database."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from airflow.sdk import DAG, task

from airflow_ckpt_provider.assets import backup_asset
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator
from airflow_ckpt_provider.operators.seal import CheckpointSealOperator, CheckpointUnsealOperator
from airflow_ckpt_provider.places import open_place
from tests.support.airflow_runs import DAGS, RunDag, event_of, load_dags, result, states
from tests.support.one_checkpoint import NEWEST, unpack

pytestmark = pytest.mark.airflow

AT_ONCE: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(0)}


class _LostWorker:
    """Mixed into an operator: the first attempt does all of its work and dies before Airflow hears of it."""

    attempts: ClassVar[list[dict[str, Any]]]

    def execute(self, context: Any) -> Any:
        done = super().execute(context)  # type: ignore[misc]
        self.attempts.append(done)
        if len(self.attempts) == 1:
            raise RuntimeError("the worker was lost")
        return done


class _LostBackup(_LostWorker, CheckpointBackupOperator):
    attempts: ClassVar[list[dict[str, Any]]] = []


class _LostRestore(_LostWorker, CheckpointRestoreOperator):
    attempts: ClassVar[list[dict[str, Any]]] = []


class _LostSeal(_LostWorker, CheckpointSealOperator):
    attempts: ClassVar[list[dict[str, Any]]] = []


@pytest.fixture(autouse=True)
def no_attempts_yet() -> None:
    for operator in (_LostBackup, _LostRestore, _LostSeal):
        operator.attempts.clear()


def _seal_of(checkpoint: Path) -> Any:
    return Checkpoint.at(open_place(str(checkpoint))).progress().seal


def test_backup_whose_worker_was_lost_after_the_manifest(run_dag: RunDag, checkpoint: Path, repository: Path) -> None:
    with DAG("lost_backup", schedule=None) as dag:
        _LostBackup(task_id="back_up", checkpoint=str(checkpoint), repository=str(repository), **AT_ONCE)
    run = run_dag(dag)
    assert run.state == "success"
    first, second = _LostBackup.attempts
    (manifest,) = Repository.open(open_place(str(repository))).backups()
    assert first["backup_id"] == second["backup_id"] == manifest.backup_id
    assert (first["already_done"], second["already_done"]) == (False, True)
    assert result(run, "back_up") == second


def test_restore_whose_worker_was_lost_at_its_end(
    run_dag: RunDag, checkpoint: Path, repository: Path, tmp_path: Path
) -> None:
    """The stream continued in the meantime: restoring again would throw its batches away."""
    target = tmp_path / "restored"

    class StreamGoesOn(_LostRestore):
        def execute(self, context: Any) -> Any:
            try:
                return super().execute(context)
            finally:
                newest = (checkpoint / "offsets" / str(NEWEST)).read_bytes()
                (target / "offsets" / str(NEWEST + 1)).write_bytes(newest)

    with DAG("lost_restore", schedule=None) as dag:
        back_up = CheckpointBackupOperator(task_id="back_up", checkpoint=str(checkpoint), repository=str(repository))
        restore = StreamGoesOn(
            task_id="restore",
            repository=str(repository),
            target=str(target),
            backup_id=back_up.output["backup_id"],
            mode="apply",
            replace=True,
            **AT_ONCE,
        )
        back_up >> restore
    run = run_dag(dag)
    assert run.state == "success"
    first, second = (attempt["outcome"] for attempt in _LostRestore.attempts)
    assert (first["already_done"], second["already_done"]) == (False, True)
    assert first["plan_id"] == second["plan_id"]
    assert (target / "offsets" / str(NEWEST + 1)).exists()
    assert len(list(Repository.open(open_place(str(repository))).records())) == 1


def test_seal_is_lifted_by_its_teardown_though_the_work_failed(run_dag: RunDag, checkpoint: Path) -> None:
    seen = []

    @task
    def work() -> None:
        seen.append(_seal_of(checkpoint))
        raise RuntimeError("the work failed")

    with DAG("sealed_work", schedule=None) as dag:
        # [START howto_seal]
        seal = CheckpointSealOperator(task_id="seal", checkpoint=str(checkpoint), reason="moving the table")
        unseal = CheckpointUnsealOperator(task_id="unseal", checkpoint=str(checkpoint), plan_id=seal.output["plan_id"])
        seal >> work() >> unseal.as_teardown(setups=seal)
        # [END howto_seal]
    run = run_dag(dag)
    assert states(run) == {"seal": "success", "work": "failed", "unseal": "success"}
    assert run.state == "failed", "the teardown does not hide the failure"
    assert seen[0].reason == "moving the table"
    # Key by key, the look into the database would take an id of digits alone for a number; tasks do not.
    assert seen[0].plan_id == result(run, "seal")["plan_id"]
    assert _seal_of(checkpoint) is None


def test_seal_whose_worker_was_lost(run_dag: RunDag, checkpoint: Path) -> None:
    with DAG("lost_seal", schedule=None) as dag:
        seal = _LostSeal(task_id="seal", checkpoint=str(checkpoint), reason="moving the table", **AT_ONCE)
        unseal = CheckpointUnsealOperator(task_id="unseal", checkpoint=str(checkpoint), plan_id=seal.output["plan_id"])
        seal >> unseal.as_teardown(setups=seal.as_setup())
    run = run_dag(dag)
    assert run.state == "success"
    first, second = _LostSeal.attempts
    assert first == second
    assert _seal_of(checkpoint) is None


def test_teardown_leaves_the_seal_of_somebody_else(run_dag: RunDag, checkpoint: Path) -> None:
    theirs = CheckpointSealOperator(task_id="s", checkpoint=str(checkpoint), reason="an audit").execute({})
    with DAG("sealed_already", schedule=None) as dag:
        seal = CheckpointSealOperator(task_id="seal", checkpoint=str(checkpoint), reason="mine")
        unseal = CheckpointUnsealOperator(task_id="unseal", checkpoint=str(checkpoint), plan_id="mine")
        seal >> unseal
        CheckpointUnsealOperator(task_id="unseal_anyway", checkpoint=str(checkpoint), plan_id="mine")
    run = run_dag(dag)
    assert states(run) == {"seal": "failed", "unseal": "upstream_failed", "unseal_anyway": "failed"}
    assert _seal_of(checkpoint).plan_id == theirs["plan_id"]


def test_one_task_for_many_streams(run_dag: RunDag, repository: Path, tmp_path: Path) -> None:
    streams = [str(unpack(tmp_path / name)) for name in ("orders", "payments", "refunds")]
    with DAG("many_streams", schedule=None) as dag:
        CheckpointBackupOperator.partial(task_id="back_up", repository=str(repository)).expand(checkpoint=streams)
    run = run_dag(dag)
    assert run.state == "success"
    manifests = Repository.open(open_place(str(repository))).backups()
    assert [(m.name, m.made_by) for m in manifests] == [
        (name, f"many_streams/{run.run_id}/back_up/{index}")
        for index, name in enumerate(("orders", "payments", "refunds"))
    ]
    for manifest in manifests:
        event = event_of(backup_asset(str(repository), manifest.name).uri)
        assert event["backup_id"] == manifest.backup_id


def test_examples_survive_the_way_through_the_database() -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    example_dags = load_dags(DAGS)
    assert {file.stem for file in DAGS.glob("*.py")} <= set(example_dags)
    for dag in example_dags.values():
        copy = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
        assert set(copy.task_ids) == set(dag.task_ids)
        for task_id in dag.task_ids:
            assert tuple(copy.get_task(task_id).template_fields) == tuple(dag.get_task(task_id).template_fields)
    serialized = DagSerialization.from_dict(DagSerialization.to_dict(example_dags["scheduled_backup"]))
    back_up = serialized.get_task("back_up")
    assert back_up.operator_extra_link_dict.keys() == {"Backup manifest"}
    assert [alias.name for alias in back_up.outlets] == ["ckpt_backups"]
