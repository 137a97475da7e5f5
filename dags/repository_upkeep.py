"""Every night: let old backups go, free what they needed, see that the rest is whole, and copy it to a second place.

Where comes from Airflow Variables, which are read when a task runs: ``ckpt_repository`` and ``ckpt_second_repository``, with
``ckpt_repository_conn_id`` and ``ckpt_second_repository_conn_id``. The backups are taken by ``scheduled_backup.py``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from airflow_ckpt_provider.dag_factory.run_types import no_backfill
from airflow_ckpt_provider.operators.expire import CheckpointExpireOperator
from airflow_ckpt_provider.operators.repository import CheckpointCopyOperator, CheckpointRepositoryCheckOperator


def setting(name: str) -> str:
    """Return the template for the Variable ``ckpt_<name>``."""
    return f"{{{{ var.value.get('ckpt_{name}', '') }}}}"


with DAG(
    dag_id="repository_upkeep",
    schedule="30 3 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    **no_backfill(),
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
    tags=["checkpoint"],
    doc_md=__doc__,
) as dag:
    # [START howto_expire]
    expire = CheckpointExpireOperator(
        task_id="expire",
        repository=setting("repository"),
        repository_conn_id=setting("repository_conn_id"),
        keep={"hourly": 48, "daily": 30, "monthly": 12, "tag": ["kind=release"]},
        prune=True,
        max_unused="5%",
        mode="apply",
        reason="nightly",
    )
    # [END howto_expire]

    check = CheckpointRepositoryCheckOperator(
        task_id="check",
        repository=setting("repository"),
        repository_conn_id=setting("repository_conn_id"),
    )

    # [START howto_copy]
    copy = CheckpointCopyOperator(
        task_id="copy",
        repository=setting("repository"),
        repository_conn_id=setting("repository_conn_id"),
        target=setting("second_repository"),
        target_conn_id=setting("second_repository_conn_id"),
        backup_id="all",
    )
    # [END howto_copy]

    # What the check finds in one backup does not keep the whole ones from the second place.
    expire >> [check, copy]
