"""Rewind and replay: "yesterday's deployment wrote wrong rows since 14:05".

Fill in the form; read the plan; approve. The stream is stopped, its checkpoint, its state and its table are rewound
together, it is started again, its pace is compared with the one before, and the replay is proven. Whatever fails on the
way, the task `report` reports the status of the checkpoint then, and the command that continues from there; until the
rewind has been applied nothing has been changed, and afterwards `airflow-ckpt undo` undoes it as long as the stream has
not run.

How the stream is stopped and started is yours: put the commands into `CKPT_STREAM_STOP` and `CKPT_STREAM_START` of the
environment of Airflow, or replace the two tasks by your own (spark-submit, Kubernetes, Databricks jobs). The fixed code
has to be deployed before the approval.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param, task

from airflow_ckpt_provider.operators.preflight import RecoveryPreflightOperator
from airflow_ckpt_provider.operators.replay_proof import ReplayProofOperator
from airflow_ckpt_provider.operators.rewind import CheckpointRewindOperator
from airflow_ckpt_provider.operators.rewind_report import RewindReportOperator
from airflow_ckpt_provider.recovery.rewind.specifier import KINDS
from airflow_ckpt_provider.sensors.commit_gap import CommitGapSensor
from airflow_ckpt_provider.sensors.stream_health import StreamHealthSensor, stream_baseline

OPTIONAL = ["null", "string"]
NOT_YET = "echo 'no command is set: stop and start the stream by hand'"
STOP, START = os.environ.get("CKPT_STREAM_STOP"), os.environ.get("CKPT_STREAM_START")


@task.branch
def what_next(params: dict[str, object] | None = None) -> str | None:
    """Stop here when only a plan was asked for."""
    return "approve" if (params or {})["mode"] == "apply" else None


@task
def pace_before(params: dict[str, Any], ti: Any) -> dict[str, Any]:
    """Measure the stream before it is rewound; what comes after the batch that is rewound to is compared with it."""
    plan = ti.xcom_pull(task_ids="plan", key="plan")
    before = stream_baseline(params["checkpoint"], params["checkpoint_conn_id"])
    # Where Spark rolls the table back the query gets a new id.
    return {**before, "batch_id": plan["batch_id"], "query_id": plan["new_query_id"] or before["query_id"]}


@task
def stopped() -> str:
    """Note when the stream was stopped: a batch that is committed later means that somebody has started it."""
    return datetime.now(UTC).isoformat()


CHECKPOINT = {"checkpoint": "{{ params.checkpoint }}", "checkpoint_conn_id": "{{ params.checkpoint_conn_id }}"}
REPOSITORY = {"repository": "{{ params.repository }}", "repository_conn_id": "{{ params.repository_conn_id }}"}
WHERE = {
    **CHECKPOINT,
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
        "mode": Param("plan", type="string", enum=["plan", "apply"], title="Mode", description="plan changes nothing"),
        "checkpoint": Param(
            "", type="string", minLength=1, title="Checkpoint", description="e.g. s3://bucket/checkpoints/orders"
        ),
        "checkpoint_conn_id": Param(None, type=OPTIONAL, title="Connection for the checkpoint"),
        "to": Param("to_datetime", type="string", enum=list(KINDS), title="Where to"),
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
        "sink_policy": Param(
            "rollback",
            type="string",
            enum=["rollback", "forward", "keep"],
            title="What happens to the sink",
            description="rollback: it is rolled back too; forward: the checkpoint goes to it; keep: it stays, see accepted risks",
        ),
        "repository": Param(
            None, type=OPTIONAL, title="Repository", description="empty: beside the checkpoint, in <checkpoint>.rewinds"
        ),
        "repository_conn_id": Param(None, type=OPTIONAL, title="Connection for the repository"),
        "spark_conn_id": Param(
            None,
            type=OPTIONAL,
            title="Connection for Spark",
            description="for tables with features that deltalake cannot restore",
        ),
        "kafka_config_id": Param(
            None,
            type=OPTIONAL,
            title="Connection for Kafka",
            description="to check whether the brokers still have the data",
        ),
        "healthy_batches": Param(
            2, type="integer", minimum=1, title="Batches to compare", description="after the replay's first one"
        ),
        "accept": Param(
            None,
            type=OPTIONAL,
            title="Accepted risks",
            description="the words that the plan prints, such as source_loss; with commas between",
        ),
        "query_is_stopped": Param(
            bool(STOP),
            type="boolean",
            title="The stream is stopped",
            description="by the task stop_stream, or by hand before you approve; the audit record names the run",
        ),
        "reason": Param(None, type=OPTIONAL, title="Reason", description="kept in the repository's audit record"),
    },
) as dag:
    ASKED = {
        **WHERE,
        "to": "{{ params.to }}",
        "value": "{{ params.value }}",
        "sink_policy": "{{ params.sink_policy }}",
        "kafka_config_id": "{{ params.kafka_config_id }}",
        "spark_conn_id": "{{ params.spark_conn_id }}",
        **REPOSITORY,
        "accept": "{{ params.accept or '' }}",
    }

    # What a start would do as things are: shown, and no reason to stop, for that is why somebody wants to rewind.
    preflight = RecoveryPreflightOperator(
        task_id="preflight", kafka_config_id="{{ params.kafka_config_id }}", on_finding="warn", **CHECKPOINT
    )

    # [START howto_rewind_plan]
    applies = "{{ params.mode == 'apply' }}"  # what has to be accepted is then known before the stream is stopped
    plan = CheckpointRewindOperator(task_id="plan", mode="plan", must_be_accepted=applies, **ASKED)
    # [END howto_rewind_plan]

    approve = ApprovalOperator(
        task_id="approve",
        subject="Rewind {{ params.checkpoint }}?",
        body="{{ ti.xcom_pull(task_ids='plan')['markdown'] }}",
        defaults="Reject",
        response_timeout=timedelta(hours=4),
    )
    # The blank: Airflow takes a command that ends in `.sh` or `.bash` for the file of a template.
    stop_stream = BashOperator(task_id="stop_stream", bash_command=f"{STOP or NOT_YET} ")
    # Drained, or dead: a batch that was begun and left is dropped by the rewind.
    at_rest = CommitGapSensor(
        task_id="at_rest",
        condition="drained",
        stuck_after=120,
        on_stuck="pass",
        poll_interval=5,
        timeout=1800,
        **CHECKPOINT,
    )
    # [START howto_rewind_apply]
    # By the batch that the plan found, not by a time or a number that means another one by now. It seals the checkpoint first
    # and waits until nothing is written any more, so that a stream which was started again meanwhile stops at its batch.
    rewind = CheckpointRewindOperator(
        task_id="rewind",
        mode="apply",
        **{**ASKED, "to": "to_batch", "value": "{{ ti.xcom_pull(task_ids='plan')['plan']['batch_id'] }}"},
        approval="{{ ti.xcom_pull(task_ids='plan')['approval'] | tojson }}",
        stop_running=True,
        query_is_stopped="{{ params.query_is_stopped }}",
        stopped_since="{{ ti.xcom_pull(task_ids='stopped') }}",
        reason="{{ params.reason }}",
        retries=3,
        retry_delay=timedelta(seconds=30),
    )
    # [END howto_rewind_apply]

    start_stream = BashOperator(task_id="start_stream", bash_command=f"{START or NOT_YET} ")
    replayed = CommitGapSensor(
        task_id="replayed",
        **CHECKPOINT,
        condition="committed_batch",
        # All that had been logged before has been run again.
        value="{{ ti.xcom_pull(task_ids='plan')['plan']['newest'] }}",
        poke_interval=2,
        timeout=6 * 3600,
    )

    healthy = StreamHealthSensor(
        task_id="healthy",
        **CHECKPOINT,
        baseline="{{ ti.xcom_pull(task_ids='pace_before') | tojson }}",
        new_batches="{{ params.healthy_batches }}",
        duration_within=200,
        input_within=None,  # the replay reads what it has read before
        poll_interval=5,
        timeout=6 * 3600,
    )
    # [START howto_replay_proof]
    proof = ReplayProofOperator(
        task_id="proof", batch_id="{{ ti.xcom_pull(task_ids='plan')['plan']['batch_id'] }}", **WHERE
    )
    # [END howto_replay_proof]

    report = RewindReportOperator(task_id="report", **CHECKPOINT, **REPOSITORY)

    preflight >> plan >> what_next() >> approve >> pace_before() >> stop_stream >> stopped() >> at_rest >> rewind
    rewind >> start_stream >> replayed >> healthy >> proof >> report
