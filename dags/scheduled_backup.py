"""Back up a checkpoint every so often, or by hand before a deployment, and verify a sample of what was written.

What to back up comes from the form, and where a field of it is left empty from Airflow Variables, which are read when a
task runs (each can also be set as ``AIRFLOW_VAR_<NAME>`` in the environment):

* ``ckpt_checkpoint`` and ``ckpt_repository``: URIs; ``ckpt_checkpoint_conn_id`` and ``ckpt_repository_conn_id``;
* ``ckpt_name``: name of the stream, by default the one that the checkpoint has in the repository, else an ending of its path.

After a checkpoint was deleted and started from the beginning, or moved, tick *New life* once.

``CKPT_BACKUP_EVERY_MINUTES`` in the environment of the DAG processor says how often; by default every 60 minutes.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from airflow_ckpt_provider.dag_factory.run_types import no_backfill
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.verify import CheckpointVerifyOperator

OPTIONAL = ["null", "string"]


def setting(field: str) -> str:
    """Return the template for a field of the form that falls back to the Variable ``ckpt_<field>``."""
    return f"{{{{ params.{field} or var.value.get('ckpt_{field}', '') }}}}"


with DAG(
    dag_id="scheduled_backup",
    schedule=timedelta(minutes=int(os.environ.get("CKPT_BACKUP_EVERY_MINUTES", "60"))),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    **no_backfill(),
    default_args={"retries": 3, "retry_delay": timedelta(minutes=2)},
    tags=["checkpoint"],
    doc_md=__doc__,
    params={
        "checkpoint": Param(None, type=OPTIONAL, title="Checkpoint", description="e.g. s3://bucket/checkpoints/orders"),
        "checkpoint_conn_id": Param(None, type=OPTIONAL, title="Connection for the checkpoint"),
        "repository": Param(None, type=OPTIONAL, title="Repository", description="e.g. s3://bucket/backups"),
        "repository_conn_id": Param(None, type=OPTIONAL, title="Connection for the repository"),
        "name": Param(None, type=OPTIONAL, title="Name of the stream"),
        "new_life": Param(
            False,
            type="boolean",
            title="New life",
            description="the checkpoint continues the stream under another query id or at another place",
        ),
        "create": Param(
            False,
            type="boolean",
            title="Make the repository",
            description="once, in an empty place; or airflow-ckpt init",
        ),
        "reason": Param("scheduled", type="string", title="Reason", description="e.g. before deploying 2.7"),
        "restorable_batches": Param(1, type="integer", minimum=1, title="Batches that can be restored"),
        "read_data": Param(
            "10%",
            type=OPTIONAL,
            title="Contents to verify",
            description="all, n/t, x%, or empty for the structure only",
        ),
    },
) as dag:
    # [START howto_backup]
    back_up = CheckpointBackupOperator(
        task_id="back_up",
        checkpoint=setting("checkpoint"),
        checkpoint_conn_id=setting("checkpoint_conn_id"),
        repository=setting("repository"),
        repository_conn_id=setting("repository_conn_id"),
        name=setting("name"),
        new_life="{{ params.new_life }}",
        create="{{ params.create }}",
        reason="{{ params.reason }}",
        tags={"dag": "{{ dag.dag_id }}", "run": "{{ run_id }}"},
        restorable_batches="{{ params.restorable_batches }}",
    )
    # [END howto_backup]

    # [START howto_verify]
    verify = CheckpointVerifyOperator(
        task_id="verify",
        repository=setting("repository"),
        repository_conn_id=setting("repository_conn_id"),
        name="{{ ti.xcom_pull(task_ids='back_up')['name'] }}",
        backup_id="{{ ti.xcom_pull(task_ids='back_up')['backup_id'] }}",
        read_data="{{ params.read_data }}",
    )
    # [END howto_verify]

    back_up >> verify
