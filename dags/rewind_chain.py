"""Rewind a chain of streams: "bronze wrote wrong rows since 14:05, and silver and gold have read them".

Fill in the form, with one stream in each line; read the plan; approve. All streams are stopped, their checkpoints, their
states and their tables are rewound together to one boundary, and they are started again. Until the rewind has been applied
nothing has been changed. Afterwards `airflow-ckpt chain undo` takes all of it back, as long as none of the streams has run.

How the streams are stopped and started is yours: put the commands into `CKPT_CHAIN_STOP` and `CKPT_CHAIN_START` of the
environment of Airflow, or replace the two tasks by your own (spark-submit, Kubernetes, Databricks jobs). The fixed code has to
be deployed before the approval.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param, task

from airflow_ckpt_provider.operators.chain import CHAIN_KINDS, ChainRewindOperator

OPTIONAL = ["null", "string"]
NOT_YET = "echo 'no command is set: stop and start the streams by hand'"
STOP, START = os.environ.get("CKPT_CHAIN_STOP"), os.environ.get("CKPT_CHAIN_START")


@task.branch
def what_next(params: dict[str, object] | None = None) -> str | None:
    """Stop here when only a plan was asked for."""
    return "approve" if (params or {})["mode"] == "apply" else None


@task
def stopped() -> str:
    """Note when the streams were stopped: a batch that is committed later means that somebody has started it."""
    return datetime.now(UTC).isoformat()


with DAG(
    dag_id="rewind_chain",
    schedule=None,
    max_active_runs=1,
    tags=["checkpoint"],
    doc_md=__doc__,
    params={
        "mode": Param("plan", type="string", enum=["plan", "apply"], title="Mode", description="plan changes nothing"),
        "streams": Param(
            "",
            type="string",
            format="multiline",
            minLength=1,
            title="Streams",
            description="every stream of the chain, one in each line: bronze=s3://bucket/checkpoints/bronze,sink=s3://bucket/tables/bronze",
        ),
        "to": Param("to_datetime", type="string", enum=list(CHAIN_KINDS), title="Where to"),
        "value": Param(
            None,
            type=OPTIONAL,
            title="Value",
            description="a time with its zone, a duration such as PT2H, a batch, a number of batches",
        ),
        "begins_with": Param(
            None,
            type=OPTIONAL,
            title="Begins with",
            description="name of the stream that the wrong rows come from; empty: those that read no other of the streams",
        ),
        "checkpoint_conn_id": Param(None, type=OPTIONAL, title="Connection for the checkpoints"),
        "sink_conn_id": Param(None, type=OPTIONAL, title="Connection for the sinks"),
        "repository": Param(
            None,
            type=OPTIONAL,
            title="Repository",
            description="empty: beside each checkpoint, in <checkpoint>.rewinds",
        ),
        "repository_conn_id": Param(None, type=OPTIONAL, title="Connection for the repository"),
        "kafka_config_id": Param(
            None,
            type=OPTIONAL,
            title="Connection for Kafka",
            description="to check whether the brokers still have the data",
        ),
        "accept": Param(
            None,
            type=OPTIONAL,
            title="Accepted risks",
            description="the words that the plan prints, such as source_unknown; with commas between",
        ),
        "query_is_stopped": Param(
            bool(STOP),
            type="boolean",
            title="The streams are stopped",
            description="by the task stop_streams, or by hand before you approve; the audit records name the run",
        ),
        "reason": Param(None, type=OPTIONAL, title="Reason", description="kept in the audit records"),
    },
) as dag:
    ASKED = {
        "streams": "{{ params.streams.splitlines() }}",
        "to": "{{ params.to }}",
        "value": "{{ params.value }}",
        "begins_with": "{{ params.begins_with }}",
        "checkpoint_conn_id": "{{ params.checkpoint_conn_id }}",
        "sink_conn_id": "{{ params.sink_conn_id }}",
        "repository": "{{ params.repository }}",
        "repository_conn_id": "{{ params.repository_conn_id }}",
        "kafka_config_id": "{{ params.kafka_config_id }}",
        "accept": "{{ params.accept or '' }}",
    }

    # [START howto_rewind_chain_plan]
    applies = "{{ params.mode == 'apply' }}"  # what has to be accepted is then known before the streams are stopped
    plan = ChainRewindOperator(task_id="plan", mode="plan", must_be_accepted=applies, **ASKED)
    # [END howto_rewind_chain_plan]

    approve = ApprovalOperator(
        task_id="approve",
        subject="Rewind {{ params.streams.splitlines() | length }} streams?",
        body="{{ ti.xcom_pull(task_ids='plan')['markdown'] }}",
        defaults="Reject",
        response_timeout=timedelta(hours=4),
    )
    # The blank: Airflow takes a command that ends in `.sh` or `.bash` for the file of a template.
    stop_streams = BashOperator(task_id="stop_streams", bash_command=f"{STOP or NOT_YET} ")
    # [START howto_rewind_chain_apply]
    # To the batches that the plan has found, not to a time or a number that means others by now. It seals all checkpoints first
    # and waits until nothing is written any more, so that a stream which was started again meanwhile stops at its batch.
    rewind = ChainRewindOperator(
        task_id="rewind",
        mode="apply",
        **ASKED,
        batches="{{ ti.xcom_pull(task_ids='plan')['plan']['batches'] }}",
        approval="{{ ti.xcom_pull(task_ids='plan')['approval'] | tojson }}",
        stop_running=True,
        query_is_stopped="{{ params.query_is_stopped }}",
        stopped_since="{{ ti.xcom_pull(task_ids='stopped') }}",
        reason="{{ params.reason }}",
        retries=3,
        retry_delay=timedelta(seconds=30),
    )
    # [END howto_rewind_chain_apply]
    start_streams = BashOperator(task_id="start_streams", bash_command=f"{START or NOT_YET} ")

    plan >> what_next() >> approve >> stop_streams >> stopped() >> rewind >> start_streams
