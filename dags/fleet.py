"""Every hour: find the checkpoints below some places, back up each in a task of its own, and report the status of all.

One stream that fails fails only its own task, whose name in the user interface is the stream's; the report comes in any case.

What comes from Airflow Variables, which are read when a task runs: ``ckpt_directories`` (URIs, separated by commas) and
``ckpt_repository``, with ``ckpt_checkpoint_conn_id`` and ``ckpt_repository_conn_id``; ``ckpt_max_age``, the oldest that the last
good backup of a stream may be, by default 2h.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, TriggerRule

from airflow_ckpt_provider.dag_factory.run_types import no_backfill
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.fleet import DiscoverCheckpointsOperator, FleetReportOperator


def setting(name: str, default: str = "") -> str:
    """Return the template for the Variable ``ckpt_<name>``."""
    return f"{{{{ var.value.get('ckpt_{name}', '{default}') }}}}"


with DAG(
    dag_id="fleet",
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    **no_backfill(),
    default_args={"retries": 2, "retry_delay": timedelta(minutes=2)},
    tags=["checkpoint"],
    doc_md=__doc__,
) as dag:
    # [START howto_fleet]
    streams = DiscoverCheckpointsOperator(
        task_id="discover_checkpoints",
        directories=setting("directories"),
        checkpoint_conn_id=setting("checkpoint_conn_id"),
    )

    back_up = CheckpointBackupOperator.partial(
        task_id="back_up",
        repository=setting("repository"),
        repository_conn_id=setting("repository_conn_id"),
        checkpoint_conn_id=setting("checkpoint_conn_id"),
        reason="scheduled",
        skip_if_unchanged=True,
        map_index_template="{{ task.name }}",
        max_active_tis_per_dagrun=16,
    ).expand_kwargs(streams.output)

    report = FleetReportOperator(
        task_id="report",
        trigger_rule=TriggerRule.ALL_DONE,
        repository=setting("repository"),
        repository_conn_id=setting("repository_conn_id"),
        directories=setting("directories"),
        checkpoint_conn_id=setting("checkpoint_conn_id"),
        max_age=setting("max_age", "2h"),
        max_gap=10,
    )
    # [END howto_fleet]

    back_up >> report
