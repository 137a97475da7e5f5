"""Watch a stream: wait until it is drained, gate a deployment on its health, and start by itself when it is in trouble.

Two DAGs, each usable on its own:

* ``watch_stream``: measure the stream's pace, let it drain, then wait for new batches and compare their pace. Your own task that
  stops, deploys and starts the stream goes between `drained` and `healthy`.
* ``stream_incident``: started by Airflow itself, without a schedule and without a sensor that holds a worker, when the
  stream is stuck, falls behind, or has its history rewritten. Only there where ``CKPT_WATCHED_CHECKPOINT`` is set.

The checkpoint comes from the form, and where that is left empty from the Airflow Variables ``ckpt_checkpoint`` and
``ckpt_checkpoint_conn_id``. A watched asset is known before any run, so its checkpoint comes from the environment of the
DAG processor: ``CKPT_WATCHED_CHECKPOINT`` and ``CKPT_WATCHED_CONN_ID``.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, Param, get_current_context, task

from airflow_ckpt_provider.sensors.commit_gap import CommitGapSensor
from airflow_ckpt_provider.sensors.stream_health import StreamHealthSensor, stream_baseline
from airflow_ckpt_provider.triggers.stream_event import StreamEventTrigger, incidents_of

OPTIONAL = ["null", "string"]
CHECKPOINT = "{{ params.checkpoint or var.value.get('ckpt_checkpoint', '') }}"
CONN_ID = "{{ params.checkpoint_conn_id or var.value.get('ckpt_checkpoint_conn_id', '') }}"
DEFERRABLE = os.environ.get("CKPT_DEFERRABLE", "true").lower() == "true"


@task
def baseline(checkpoint: str, checkpoint_conn_id: str) -> dict[str, Any]:
    """Measure how long the newest batches took and how much they read."""
    return stream_baseline(checkpoint, checkpoint_conn_id, batches=20)


with DAG(
    dag_id="watch_stream",
    schedule=None,
    max_active_runs=1,
    tags=["checkpoint"],
    doc_md=__doc__,
    params={
        "checkpoint": Param(None, type=OPTIONAL, title="Checkpoint", description="e.g. s3://bucket/checkpoints/orders"),
        "checkpoint_conn_id": Param(None, type=OPTIONAL, title="Connection for the checkpoint"),
        "new_batches": Param(10, type="integer", minimum=1, title="Batches to compare"),
    },
) as dag:
    before = baseline(CHECKPOINT, CONN_ID)

    # [START howto_commit_gap]
    drained = CommitGapSensor(
        task_id="drained",
        checkpoint=CHECKPOINT,
        checkpoint_conn_id=CONN_ID,
        condition="drained",
        quiet_for=timedelta(seconds=int(os.environ.get("CKPT_QUIET_SECONDS", "60"))),
        stuck_after=timedelta(minutes=30),
        timeout=timedelta(hours=2),
        poll_interval=float(os.environ.get("CKPT_POLL_SECONDS", "30")),
        deferrable=DEFERRABLE,
        retries=3,
    )
    # [END howto_commit_gap]

    # [START howto_stream_health]
    healthy = StreamHealthSensor(
        task_id="healthy",
        checkpoint=CHECKPOINT,
        checkpoint_conn_id=CONN_ID,
        baseline="{{ ti.xcom_pull(task_ids='baseline') | tojson }}",
        new_batches="{{ params.new_batches }}",
        warm_up=1,
        duration_within=100.0,
        input_within=50.0,
        timeout=timedelta(hours=1),
        poll_interval=float(os.environ.get("CKPT_POLL_SECONDS", "30")),
        deferrable=DEFERRABLE,
        retries=3,
    )
    # [END howto_stream_health]

    before >> drained >> healthy


if watched := os.environ.get("CKPT_WATCHED_CHECKPOINT"):
    # [START howto_stream_event]
    incidents = Asset(
        "stream_incidents",
        watchers=[
            AssetWatcher(
                name="stream_incidents",
                trigger=StreamEventTrigger(
                    checkpoint=watched,
                    checkpoint_conn_id=os.environ.get("CKPT_WATCHED_CONN_ID"),
                    stuck_after=float(os.environ.get("CKPT_STUCK_SECONDS", "1800")),
                    behind_after=float(os.environ.get("CKPT_BEHIND_SECONDS", "600")),
                    poll_interval=float(os.environ.get("CKPT_POLL_SECONDS", "30")),
                ),
            )
        ],
    )

    @task
    def tell() -> list[dict[str, Any]]:
        """Log what is the matter; here you would open a ticket, or start the DAG that restores."""
        payloads = incidents_of(get_current_context()["triggering_asset_events"][incidents])
        for payload in payloads:
            print(f"{payload['incident']}: {payload['message']}\nHINT: {payload['hint']}")
        return payloads

    with DAG(dag_id="stream_incident", schedule=[incidents], tags=["checkpoint"], doc_md=__doc__):
        tell()
    # [END howto_stream_event]
