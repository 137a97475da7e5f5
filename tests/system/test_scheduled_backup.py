"""dags/scheduled_backup.py, run by Airflow on a real checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from airflow.sdk import DAG, AssetAlias

from airflow_ckpt_provider.assets import BACKUPS, backup_asset
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.places import open_place
from tests.support.airflow_runs import RunDag, event_of, result, states
from tests.support.one_checkpoint import NEWEST

pytestmark = pytest.mark.airflow


def _manifests(repository: Path) -> list[str]:
    return [m.backup_id for m in Repository.open(open_place(str(repository))).backups()]


def _queued(dag_ids: set[str]) -> set[str]:
    """DAGs, of those given, that the scheduler will start because of an asset event."""
    from airflow.models.asset import AssetDagRunQueue
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import delete, select

    with create_session() as session:
        for model in session.scalars(select(DagModel).where(DagModel.dag_id.in_(dag_ids))):
            assert not model.is_paused
        found = set(session.scalars(select(AssetDagRunQueue.target_dag_id))) & dag_ids
        session.execute(delete(AssetDagRunQueue))
    return found


def _unpause(*dag_ids: str) -> None:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id.in_(dag_ids)).values(is_paused=False))


@pytest.mark.usefixtures("settings")
def test_backup_then_verify(example_dags: dict[str, DAG], run_dag: RunDag, checkpoint: Path, repository: Path) -> None:
    run = run_dag(example_dags["scheduled_backup"])
    assert run.state == "success"
    backup, report = result(run, "back_up"), result(run, "verify")
    assert (backup["name"], backup["batch_id"], backup["reason"]) == ("orders", NEWEST, "scheduled")
    assert (backup["checkpoint"], backup["repository"]) == (str(checkpoint), str(repository))
    assert backup["tags"] == {"dag": "scheduled_backup", "run": run.run_id}
    assert backup["made_by"] == f"scheduled_backup/{run.run_id}/back_up/-1"
    assert _manifests(repository) == [backup["backup_id"]]
    assert report["backup_id"] == backup["backup_id"]
    assert report["ok"] is True
    assert report["read_files"] == round(backup["files"] / 10)
    assert result(run, "back_up", "backup_id") == backup["backup_id"]
    assert result(run, "back_up", "_link_BackupManifestLink") == ""  # no browser opens a file of a worker


def test_a_backfill_is_refused(example_dags: dict[str, DAG], known: Callable[[DAG], None]) -> None:
    """It would take thirty backups of today, and `last` of a retention would keep these alone."""
    from airflow.models.backfill import DagRunTypeNotAllowed, ReprocessBehavior, _do_dry_run
    from airflow.utils.session import create_session

    known(example_dags["scheduled_backup"])
    days = {"from_date": datetime(2026, 10, 1, tzinfo=UTC), "to_date": datetime(2026, 10, 30, tzinfo=UTC)}
    with create_session() as session, pytest.raises(DagRunTypeNotAllowed, match="does not allow backfill runs"):
        list(
            _do_dry_run(
                dag_id="scheduled_backup",
                reverse=False,
                reprocess_behavior=ReprocessBehavior.NONE,
                session=session,
                **days,
            )
        )


@pytest.mark.usefixtures("settings")
def test_form_before_a_deployment(example_dags: dict[str, DAG], run_dag: RunDag, repository: Path) -> None:
    """What the form says goes before the Variables."""
    form = {"name": "payments", "reason": "before 2.7", "restorable_batches": 2, "read_data": "all"}
    run = run_dag(example_dags["scheduled_backup"], run_conf=form)
    assert run.state == "success"
    backup, report = result(run, "back_up"), result(run, "verify")
    assert (backup["name"], backup["reason"]) == ("payments", "before 2.7")
    assert backup["restorable_batches"] == [NEWEST - 1, NEWEST]
    assert report["read_files"] == backup["files"]


def test_without_settings(example_dags: dict[str, DAG], run_dag: RunDag) -> None:
    run = run_dag(example_dags["scheduled_backup"])
    assert run.state == "failed"
    assert states(run) == {"back_up": "failed", "verify": "upstream_failed"}
    assert run.get_task_instance("back_up").try_number == 1, "a refusal is not tried again"


@pytest.mark.usefixtures("settings")
def test_new_backup_starts_other_dags(
    example_dags: dict[str, DAG], run_dag: RunDag, known: Callable[[DAG], None], repository: Path
) -> None:
    """By the stream's own asset, which the author names without running anything, and by the alias of all streams."""
    orders = backup_asset(str(repository), "orders")
    followers = {
        "after_orders": DAG("after_orders", schedule=[orders]),
        "after_any": DAG("after_any", schedule=[AssetAlias(BACKUPS.name)]),
        "after_payments": DAG("after_payments", schedule=[backup_asset(str(repository), "payments")]),
    }
    for dag in followers.values():
        known(dag)
    _unpause(*followers)
    run = run_dag(example_dags["scheduled_backup"])
    backup = result(run, "back_up")
    event = event_of(orders.uri)
    assert (event["backup_id"], event["batch_id"], event["uri"]) == (backup["backup_id"], NEWEST, backup["uri"])
    assert _queued(set(followers)) == {"after_orders", "after_any"}
