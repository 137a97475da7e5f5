"""Go back and replay: "yesterday's deployment wrote wrong rows since 14:05".

Fill in the form; read the plan; approve. The stream is stopped, its checkpoint, its state and its table go back together, it is
started again, and the replay is proven. Whatever fails on the way leaves a situation that its error names, with the
command that goes on from it; until the rewind has been applied nothing has been changed, and afterwards
`airflow-ckpt undo` takes it back as long as the stream has not run.

How the stream is stopped and started is yours: put the commands into `CKPT_STREAM_STOP` and `CKPT_STREAM_START` of the
environment of Airflow, or replace the two tasks by your own (spark-submit, Kubernetes, Databricks jobs). The fixed code
has to be deployed before the approval.
"""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param, task

from airflow_ckpt_provider.operators.rewind import CheckpointRewindOperator, ReplayProofOperator
from airflow_ckpt_provider.recovery.specifiers import KINDS
from airflow_ckpt_provider.sensors.commit_gap import CommitGapSensor

OPTIONAL = ["null", "string"]
NOT_YET = "echo 'no command is set: stop and start the stream by hand'"


@task.branch
def what_next(params: dict[str, object] | None = None) -> str | None:
    """Stop here when only a plan was asked for."""
    return "approve" if (params or {})["mode"] == "apply" else None


WHERE = {
    "checkpoint": "{{ params.checkpoint }}",
    "checkpoint_conn_id": "{{ params.checkpoint_conn_id }}",
    "sink": "{{ params.sink }}",
    "sink_conn_id": "{{ params.sink_conn_id }}",
}

with DAG(
    dag_id="rewind_replay",
    schedule=None,
    max_active_runs=1,
    tags=["checkpoint"],
    doc_md=__doc__,
    params={
        "mode": Param("plan", enum=["plan", "apply"], title="Mode", description="plan changes nothing"),
        "checkpoint": Param("s3://bucket/checkpoints/orders", type="string", minLength=1, title="Checkpoint"),
        "checkpoint_conn_id": Param(None, type=OPTIONAL, title="Connection for the checkpoint"),
        "to": Param("to_datetime", enum=list(KINDS), title="Where to"),
        "value": Param(
            None,
            type=OPTIONAL,
            title="Value",
            description="a batch, a number of batches, a time with its zone, a duration such as PT2H, offsets, a table version",
        ),
        "sink": Param(
            None, type=OPTIONAL, title="Sink", description="directory of the table, or foreachBatch, foreach, kafka"
        ),
        "sink_conn_id": Param(None, type=OPTIONAL, title="Connection for the sink"),
        "sink_exit": Param(
            "rollback",
            enum=["rollback", "forward", "accept"],
            title="What becomes of the sink",
            description="rollback: it goes back too; forward: the checkpoint goes to it; accept: what the plan says will happen",
        ),
        "repository": Param(
            None, type=OPTIONAL, title="Repository", description="empty: beside the checkpoint, in <checkpoint>.rewinds"
        ),
        "repository_conn_id": Param(None, type=OPTIONAL, title="Connection for the repository"),
        "accept_source_loss": Param(False, type="boolean", title="Accept that sources have lost data"),
        "accept_foreign_loss": Param(False, type="boolean", title="Accept that rows of others leave the table"),
        "reason": Param("", type="string", title="Reason", description="kept in the repository's audit record"),
    },
) as dag:
    ASKED = {
        **WHERE,
        "to": "{{ params.to }}",
        "value": "{{ params.value }}",
        "sink_exit": "{{ params.sink_exit }}",
        "repository": "{{ params.repository }}",
        "repository_conn_id": "{{ params.repository_conn_id }}",
    }

    # [START howto_rewind_plan]
    plan = CheckpointRewindOperator(task_id="plan", mode="plan", **ASKED)
    # [END howto_rewind_plan]

    approve = ApprovalOperator(
        task_id="approve",
        subject="Rewind {{ params.checkpoint }}?",
        body="{{ ti.xcom_pull(task_ids='plan')['markdown'] }}",
        defaults="Reject",
        response_timeout=timedelta(hours=4),
    )
    stop_stream = BashOperator(task_id="stop_stream", bash_command=os.environ.get("CKPT_STREAM_STOP", NOT_YET))
    # [START howto_rewind_apply]
    # By the batch that the plan found, not by a time or a number that means another one by now. It seals the checkpoint first
    # and waits until nothing is written any more: a stream that was drained, that died in a batch, or that still runs.
    rewind = CheckpointRewindOperator(
        task_id="rewind",
        mode="apply",
        **{**ASKED, "to": "to_batch", "value": "{{ ti.xcom_pull(task_ids='plan')['plan']['batch_id'] }}"},
        stop_running=True,
        accept_source_loss="{{ params.accept_source_loss }}",
        accept_foreign_loss="{{ params.accept_foreign_loss }}",
        reason="{{ params.reason }}",
        retries=3,
        retry_delay=timedelta(seconds=30),
    )
    # [END howto_rewind_apply]

    start_stream = BashOperator(task_id="start_stream", bash_command=os.environ.get("CKPT_STREAM_START", NOT_YET))
    replayed = CommitGapSensor(
        task_id="replayed",
        checkpoint="{{ params.checkpoint }}",
        checkpoint_conn_id="{{ params.checkpoint_conn_id }}",
        condition="committed_batch",
        # All that had been logged before has been run again.
        value="{{ ti.xcom_pull(task_ids='plan')['plan']['newest'] }}",
        poke_interval=2,
        timeout=6 * 3600,
    )

    # [START howto_replay_proof]
    proof = ReplayProofOperator(
        task_id="proof", batch_id="{{ ti.xcom_pull(task_ids='plan')['plan']['batch_id'] }}", **WHERE
    )
    # [END howto_replay_proof]

    plan >> what_next() >> approve >> stop_stream >> rewind >> start_stream >> replayed >> proof
