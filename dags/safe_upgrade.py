"""Upgrade a stateful stream: back it up, compare, ask, stop, deploy, start, watch; and put everything back where it goes wrong.

Fill in the form, read the plan, approve. Until the task `stop` nothing is changed, and `begin` refuses what could not be
undone. From there to `start` the checkpoint is sealed: no cluster manager and no colleague starts the stream. Whatever fails or
is skipped from then on is rolled back: the new code is stopped, checkpoint, state and table become what they were, the old
code runs again, and the run is a failed one whose task `report` says what happened. Every task can be cleared, and the run
continues from there, forward or, once `take_back` has run, back.

What is done to your stream is yours: put the commands into the environment of Airflow, or replace the tasks by your own
(spark-submit, Kubernetes, Databricks jobs). They find what was entered as the version in `$VERSION`, and may be run again.

| variable | command |
|---|---|
| `CKPT_STREAM_STOP` | stop the stream and wait until it has ended |
| `CKPT_STREAM_DEPLOY` | put the new version in place |
| `CKPT_STREAM_START` | start what is in place; return once the driver runs |
| `CKPT_STREAM_ROLL_BACK` | put the version before in place, whether or not the new one was |
| `CKPT_STREAM_CHECK` | check the new rows, and fail where they are wrong (left out if it is not set) |
| `CKPT_STREAM_DESCRIPTION` | URI of the description of the new code, with `{{ params.version }}` in it (likewise) |
| `CKPT_STREAM_PROGRESS`, `CKPT_STREAM_LOG` | URIs of the progress lines and of the log of the driver (likewise) |
"""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, BaseOperator, Param

from airflow_ckpt_provider.task_groups.safe_upgrade import safe_upgrade

OPTIONAL = ["null", "string"]
QUIET_FOR = float(os.environ.get("CKPT_QUIET_SECONDS", "15"))
POLL_INTERVAL = float(os.environ.get("CKPT_POLL_SECONDS", "10"))
#: Longer than the longest batch.
STUCK_AFTER = float(os.environ.get("CKPT_STUCK_SECONDS", "1800"))
#: Percent by which a batch may take longer or shorter.
DURATION_WITHIN = float(os.environ.get("CKPT_DURATION_WITHIN", "100"))


# [START howto_upgrade_own_tasks]
def stop(task_id: str) -> BaseOperator:
    """Stop the stream: the old code, or the new code on the way back."""
    return _run(task_id, "CKPT_STREAM_STOP")


def deploy(task_id: str) -> BaseOperator:
    """Put the new code in place."""
    return _run(task_id, "CKPT_STREAM_DEPLOY")


def start(task_id: str) -> BaseOperator:
    """Start the code that is in place."""
    return _run(task_id, "CKPT_STREAM_START")


def roll_back_code(task_id: str) -> BaseOperator:
    """Put the old code in place."""
    return _run(task_id, "CKPT_STREAM_ROLL_BACK")


def checks(task_id: str) -> BaseOperator:
    """Check the new rows."""
    return _run(task_id, "CKPT_STREAM_CHECK")


def _run(task_id: str, variable: str) -> BaseOperator:
    # One that is not set fails: a stream that is stopped by hand is not stopped when the task says so.
    command = os.environ.get(variable, f"echo '{variable} is not set' >&2; exit 1")
    # The blank: Airflow takes a command that ends in `.sh` or `.bash` for the file of a template.
    return BashOperator(
        task_id=task_id, bash_command=f"{command} ", env={"VERSION": "{{ params.version }}"}, append_env=True
    )


# [END howto_upgrade_own_tasks]

with DAG(
    dag_id="safe_upgrade",
    schedule=None,
    max_active_runs=1,
    tags=["checkpoint"],
    doc_md=__doc__,
    params={
        "version": Param("", type="string", minLength=1, title="Version", description="what is deployed"),
        "checkpoint": Param(
            "", type="string", minLength=1, title="Checkpoint", description="e.g. s3://bucket/checkpoints/orders"
        ),
        "checkpoint_conn_id": Param(None, type=OPTIONAL, title="Connection for the checkpoint"),
        "repository": Param("", type="string", minLength=1, title="Repository", description="e.g. s3://bucket/backups"),
        "repository_conn_id": Param(None, type=OPTIONAL, title="Connection for the repository"),
        "name": Param(
            None,
            type=OPTIONAL,
            title="Name of the stream",
            description="in the repository; empty: the one that the checkpoint has there",
        ),
        "sink": Param(
            None, type=OPTIONAL, title="Sink", description="directory of the table, or foreachBatch, foreach, kafka"
        ),
        "sink_conn_id": Param(None, type=OPTIONAL, title="Connection for the sink"),
        "sink_policy": Param(
            "rollback",
            type="string",
            enum=["rollback", "keep"],
            title="What becomes of the rows of the new code, on the way back",
            description="rollback: they leave the sink too; keep: they stay",
        ),
        "accept": Param(
            [],
            type="array",
            examples=["no_way_back", "foreign_loss", "sink_unknown"],
            title="Accept an obstacle on the way back",
            description="the words that the task `begin` prints where it refuses",
        ),
        "kafka_config_id": Param(None, type=OPTIONAL, title="Connection for Kafka"),
        "planned_downtime": Param(
            "30m", type="string", title="Planned downtime", description="less than the sources keep their data"
        ),
        "preflight": Param(
            "fail",
            type="string",
            enum=["fail", "warn"],
            title="Where the sources do not keep it as long, or that is not known",
        ),
        "new_batches": Param(5, type="integer", minimum=1, title="Batches to compare with those before"),
        "warm_up": Param(2, type="integer", minimum=0, title="Batches before these, which catch up"),
        "reason": Param(None, type=OPTIONAL, title="Reason", description="kept in the repository's audit record"),
    },
) as dag:
    # [START howto_safe_upgrade]
    safe_upgrade(
        "upgrade",
        checkpoint="{{ params.checkpoint }}",
        checkpoint_conn_id="{{ params.checkpoint_conn_id }}",
        repository="{{ params.repository }}",
        repository_conn_id="{{ params.repository_conn_id }}",
        name="{{ params.name }}",
        version="{{ params.version }}",
        reason="{{ params.reason }}",
        stop=stop,
        deploy=deploy,
        start=start,
        roll_back_code=roll_back_code,
        sink="{{ params.sink }}",
        sink_conn_id="{{ params.sink_conn_id }}",
        sink_policy="{{ params.sink_policy }}",
        accept="{{ params.accept }}",
        kafka_config_id="{{ params.kafka_config_id }}",
        planned_downtime="{{ params.planned_downtime }}",
        preflight="{{ params.preflight }}",
        description=os.environ.get("CKPT_STREAM_DESCRIPTION"),
        approval_timeout=timedelta(hours=4),
        checks=checks if "CKPT_STREAM_CHECK" in os.environ else None,
        health={
            "new_batches": "{{ params.new_batches }}",
            "warm_up": "{{ params.warm_up }}",
            "progress_log": os.environ.get("CKPT_STREAM_PROGRESS"),
            "error_log": os.environ.get("CKPT_STREAM_LOG"),
            "duration_within": DURATION_WITHIN,
            "stuck_after": STUCK_AFTER,
            "poll_interval": POLL_INTERVAL,
            "timeout": 3600.0,
        },
        quiet_for=QUIET_FOR,
    )
    # [END howto_safe_upgrade]
