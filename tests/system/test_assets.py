"""Airflow's scheduler starts a DAG by the asset of a stream's backups, and by that of a checkpoint that was changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, AssetAlias

from airflow_ckpt_provider.assets import BACKUPS, CHANGES, backup_asset, checkpoint_asset
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import Streams
from tests.support.airflow_runs import RunDag, result
from tests.support.one_checkpoint import NEWEST

pytestmark = pytest.mark.airflow


def scheduled(dag_ids: set[str]) -> dict[str, list[dict[str, Any]]]:
    """Have the scheduler make the runs that are due; return what the events say that each of these DAGs was started by."""
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.sqlalchemy import prohibit_commit
    from sqlalchemy import select

    with create_session() as session, prohibit_commit(session) as guard:
        SchedulerJobRunner(Job())._create_dagruns_for_dags(guard, session)
        runs = session.scalars(select(DagRun).where(DagRun.dag_id.in_(dag_ids))).all()
        return {run.dag_id: [dict(event.extra) for event in run.consumed_asset_events] for run in runs}


def unpause(dag_ids: set[str]) -> None:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id.in_(dag_ids)).values(is_paused=False))


@pytest.fixture
def no_events(metadata_database: None) -> None:
    """Forget the backups of other tests: a DAG that is new takes every event that an asset ever had."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        session.execute(delete(AssetEvent))


@pytest.mark.usefixtures("no_events")
def test_dags_are_started_by_backups_and_changes(
    run_dag: RunDag, known: Callable[[DAG], None], checkpoint: Path, repository: Path
) -> None:
    declared = Streams([Stream("orders", checkpoint=str(checkpoint), repository=f"file://{repository}/")])
    followers = {
        "asset_backup": backup_asset(stream="orders", streams_file=declared),
        "asset_other_backup": backup_asset(str(repository), "clicks"),
        "asset_change": checkpoint_asset(f"file://{checkpoint}"),
        "asset_other_change": checkpoint_asset("/elsewhere"),
        "asset_any_backup": AssetAlias(BACKUPS.name),
        "asset_any_change": AssetAlias(CHANGES.name),
    }
    for dag_id, asset in followers.items():
        known(DAG(dag_id, schedule=[asset]))
    unpause(set(followers))
    place = {"repository": str(repository)}
    there = {"target": str(checkpoint), "replace": True, **place}
    with DAG("asset_backup_run", schedule=None) as dag:
        back_up = CheckpointBackupOperator(task_id="back_up", checkpoint=str(checkpoint), **place)
        back_up >> CheckpointRestoreOperator(task_id="plan", **there)
    run = run_dag(dag)
    started = scheduled(set(followers))
    assert set(started) == {"asset_backup", "asset_any_backup"}, "a plan changes nothing"
    for (event,) in started.values():
        assert (event["backup_id"], event["batch_id"]) == (result(run, "back_up")["backup_id"], NEWEST)
    with DAG("asset_restore_run", schedule=None) as dag:
        CheckpointRestoreOperator(task_id="restore", mode="apply", query_is_stopped=True, quiet_for=0, **there)
    run = run_dag(dag)
    started = scheduled({dag_id for dag_id in followers if "change" in dag_id})
    assert set(started) == {"asset_change", "asset_any_change"}
    for (event,) in started.values():
        assert (event["kind"], event["batch_id"]) == ("restore", NEWEST)
        assert event["plan_id"] == result(run, "restore")["plan"]["plan_id"]
        assert event["made_by"] == f"asset_restore_run/{run.run_id}/restore/-1"
    assert run_dag(dag).state == "success"
    again = scheduled({"asset_change", "asset_any_change"})
    assert again == started, "all is as the plan wants it: nothing was changed"
