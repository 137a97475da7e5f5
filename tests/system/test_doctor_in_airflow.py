"""The doctor as tasks of a real Airflow: a plan, then the repair with the fingerprint of that plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TriggerRule

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.operators.doctor import CheckpointDoctorOperator
from airflow_ckpt_provider.places import open_place
from tests.support.airflow_runs import RunDag, result, states
from tests.support.one_checkpoint import NEWEST

pytestmark = pytest.mark.airflow


def _damage(checkpoint: Path) -> str:
    (file, *_) = sorted(checkpoint.glob("state/0/0/*.changelog"))
    file.unlink()
    return str(file.relative_to(checkpoint))


def test_planned_then_repaired_from_a_backup(run_dag: RunDag, checkpoint: Path, repository: Path) -> None:
    place = Checkpoint.at(open_place(str(checkpoint)))
    create_backup(place, Repository.open_or_create(open_place(str(repository))), name="orders")
    lost = _damage(checkpoint)
    with DAG("doctor", schedule=None, default_args={"retries": 1}) as dag:
        # [START howto_doctor_repair]
        plan = CheckpointDoctorOperator(
            task_id="plan",
            checkpoint=str(checkpoint),
            repository=str(repository),
            name="orders",
            repair=True,
        )
        repair = CheckpointDoctorOperator(
            task_id="repair",
            checkpoint=str(checkpoint),
            repository=str(repository),
            name="orders",
            repair=True,
            query_is_stopped=True,
            mode="apply",
            fingerprint=plan.output["plan"]["fingerprint"],
            reason="CANNOT_LOAD_STATE_STORE since 03:12",
        )
        # [END howto_doctor_repair]
        repair.quiet_for = 0.1
    run = run_dag(dag)
    assert run.state == "success"
    planned: dict[str, Any] = result(run, "plan")
    assert [finding["code"] for finding in planned["findings"]] == ["STATE-INCOMPLETE"]
    assert [fetch["path"] for fetch in planned["plan"]["fetches"]] == [lost]
    assert planned["outcome"] is None
    done = result(run, "repair")
    assert (done["outcome"]["batch_id"], done["outcome"]["replayed"], done["outcome"]["fetched"]) == (NEWEST, 0, 1)
    assert place.diagnose() == ()


@pytest.mark.parametrize("damaged", [False, True])
def test_what_runs_after_a_doctor_that_found_something(
    run_dag: RunDag, checkpoint: Path, repository: Path, damaged: bool
) -> None:
    place = Checkpoint.at(open_place(str(checkpoint)))
    create_backup(place, Repository.open_or_create(open_place(str(repository))), name="orders")
    if damaged:
        _damage(checkpoint)
    with DAG("examined_start", schedule=None) as dag:
        # [START howto_doctor_rules]
        examine = CheckpointDoctorOperator(task_id="examine", checkpoint=str(checkpoint))
        start_stream = EmptyOperator(task_id="start_stream")  # only where nothing was found
        plan_repair = CheckpointDoctorOperator(
            task_id="plan_repair",
            checkpoint=str(checkpoint),
            repository=str(repository),
            repair=True,
            trigger_rule=TriggerRule.ONE_FAILED,  # only where something was found
        )
        report = BashOperator(
            task_id="report",
            bash_command='echo "$FINDINGS"',
            env={"FINDINGS": "{{ ti.xcom_pull(task_ids='examine', key='findings') }}"},
            trigger_rule=TriggerRule.ALL_DONE,  # in any case
        )
        examine >> [start_stream, plan_repair, report]
        # [END howto_doctor_rules]
    run = run_dag(dag)
    found, other = ("failed", "upstream_failed") if damaged else ("success", "success")
    assert states(run) == {
        "examine": found,
        "start_stream": other,
        "plan_repair": "success" if damaged else "skipped",
        "report": "success",
    }
    # A leaf that ran in any case does not hide the failure of another leaf.
    assert run.state == ("failed" if damaged else "success")
    if damaged:
        assert "STATE-INCOMPLETE" in result(run, "report")


def test_a_finding_fails_the_task_and_can_be_read_all_the_same(run_dag: RunDag, checkpoint: Path) -> None:
    lost = _damage(checkpoint)
    with DAG("nightly_checkup", schedule=None, default_args={"retries": 2}) as dag:
        # [START howto_doctor]
        CheckpointDoctorOperator(task_id="examine", checkpoint=str(checkpoint), fail_on="error")
        # [END howto_doctor]
    run = run_dag(dag)
    assert states(run) == {"examine": "failed"}
    (task,) = run.get_task_instances()
    assert task.try_number == 1  # not tried again: the answer would be the same
    assert lost in task.xcom_pull(task_ids="examine", key="findings")[0]["message"]
