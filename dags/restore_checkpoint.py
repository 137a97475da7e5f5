"""Restore a checkpoint from a backup: choose in the form, read the plan, then run again with mode *apply*.

With mode *plan*, the default, nothing is changed: the log of the task `plan` shows what would be. With mode *apply* the
same plan is computed again and applied; tick *approval* to be shown it and asked in between.
Stop the stream before, and start it again when the run has succeeded.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param, task

from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator

OPTIONAL = ["null", "string"]
#: What both tasks take from the form.
WHERE = {
    "repository": "{{ params.repository }}",
    "repository_conn_id": "{{ params.repository_conn_id }}",
    "target": "{{ params.target }}",
    "target_conn_id": "{{ params.target_conn_id }}",
    "target_uri": "{{ params.target_uri }}",
    "sink": "{{ params.sink }}",
    "sink_conn_id": "{{ params.sink_conn_id }}",
    "replace": "{{ params.replace }}",
}


@task.branch
def what_next(params: dict[str, object] | None = None) -> str | None:
    """Stop here when only a plan was asked for; ask somebody before it is applied where that is wanted."""
    form = params or {}
    if form["mode"] == "plan":
        return None
    return "approve" if form["approval"] else "apply"


with DAG(
    dag_id="restore_checkpoint",
    schedule=None,
    max_active_runs=1,
    tags=["checkpoint"],
    doc_md=__doc__,
    params={
        "mode": Param("plan", type="string", enum=["plan", "apply"], title="Mode", description="plan changes nothing"),
        "repository": Param(
            "", type="string", minLength=1, title="Repository", description="of the backups, e.g. s3://bucket/backups"
        ),
        "repository_conn_id": Param(None, type=OPTIONAL, title="Connection for the repository"),
        "name": Param(
            None, type=OPTIONAL, title="Name of the stream", description="needed where the repository holds several"
        ),
        "backup_id": Param(
            "latest",
            type="string",
            pattern=r"^(latest|\d{8}T\d{6}Z-b\d{6,})$",
            title="Backup",
            description="latest, or an id as `airflow-ckpt backups` lists them, such as 20261121T083000Z-b000223",
        ),
        "target": Param(
            "",
            type="string",
            minLength=1,
            title="Target",
            description="the checkpoint's own place, or a new one, e.g. s3://bucket/checkpoints/orders",
        ),
        "target_conn_id": Param(None, type=OPTIONAL, title="Connection for the target"),
        "batch": Param(
            None, type=["null", "integer"], minimum=0, title="Batch", description="empty: the newest of the backup"
        ),
        "target_uri": Param(
            None,
            type=OPTIONAL,
            title="Target as Spark names it",
            description="where the plan asks for it: another place",
        ),
        "sink": Param(
            None,
            type=OPTIONAL,
            title="Sink",
            description="what the stream writes to: the plan says what the start will do there. Directory of the table, its "
            "name, or foreachBatch, foreach, kafka",
        ),
        "sink_conn_id": Param(None, type=OPTIONAL, title="Connection for the sink"),
        "replace": Param(False, type="boolean", title="Replace", description="what is at the target; it is kept first"),
        "query_is_stopped": Param(
            False,
            type="boolean",
            title="The stream is stopped",
            description="since before you start this run, which the audit record names; a later batch makes it void",
        ),
        "stop_running": Param(
            False, type="boolean", title="Stop a running stream", description="by sealing its checkpoint"
        ),
        "accept": Param(
            None, type=OPTIONAL, title="Accepted risks", description="words that the plan prints, such as other_query"
        ),
        "approval": Param(False, type="boolean", title="Approval", description="ask before the plan is applied"),
        "reason": Param(None, type=OPTIONAL, title="Reason", description="kept in the repository's audit record"),
    },
) as dag:
    # [START howto_restore_plan]
    plan = CheckpointRestoreOperator(
        task_id="plan",
        name="{{ params.name }}",
        backup_id="{{ params.backup_id }}",
        batch="{{ params.batch }}",
        mode="plan",
        **WHERE,
    )
    # [END howto_restore_plan]

    # [START howto_restore_approve]
    approve = ApprovalOperator(
        task_id="approve",
        subject="Restore {{ params.target }}?",
        body="{{ ti.xcom_pull(task_ids='plan')['markdown'] }}",
        defaults="Reject",
        response_timeout=timedelta(hours=4),
    )
    # [END howto_restore_approve]

    # [START howto_restore_apply]
    apply = CheckpointRestoreOperator(
        task_id="apply",
        # The backup that the plan found, not the latest of a later moment.
        name="{{ ti.xcom_pull(task_ids='plan')['plan']['name'] }}",
        backup_id="{{ ti.xcom_pull(task_ids='plan')['plan']['backup_id'] }}",
        batch="{{ ti.xcom_pull(task_ids='plan')['plan']['batch_id'] }}",
        fingerprint="{{ ti.xcom_pull(task_ids='plan')['plan']['fingerprint'] }}",
        approval="{{ ti.xcom_pull(task_ids='plan')['approval'] | tojson }}",
        query_is_stopped="{{ params.query_is_stopped }}",
        stop_running="{{ params.stop_running }}",
        accept="{{ params.accept or '' }}",
        reason="{{ params.reason }}",
        mode="apply",
        retries=3,
        retry_delay=timedelta(seconds=30),
        trigger_rule="none_failed_min_one_success",
        **WHERE,
    )
    # [END howto_restore_apply]

    choice = what_next()
    plan >> choice >> [approve, apply]
    approve >> apply
