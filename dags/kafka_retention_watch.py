"""Watch whether Kafka will still have what a stream has to read, and raise the alarm in time.

Every 30 minutes ``guard`` checks each offset of the resume point. It fails when records are lost already, and when the stream
could not be down for ``max_downtime`` (and a margin of an hour) without losing some. Then ``watch`` waits, without holding a
worker, until less than ``threshold`` is left; only then is there an ``alarm``.

What is watched comes from the form, and where a field of it is left empty from Airflow Variables, which are read when a
task runs (each can also be set as ``AIRFLOW_VAR_<NAME>`` in the environment):

* ``ckpt_checkpoint``, ``ckpt_checkpoint_conn_id``: the checkpoint of the stream;
* ``ckpt_repository``, ``ckpt_repository_conn_id``: backups of it, by which a topic that was recreated is noticed; may be empty;
* ``ckpt_kafka_config_id``: the connection to the brokers, by default ``kafka_default``.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_ckpt_provider.dag_factory.run_types import no_backfill
from airflow_ckpt_provider.operators.kafka_retention_guard import KafkaRetentionGuardOperator
from airflow_ckpt_provider.sensors.kafka_time_to_loss import KafkaTimeToLossSensor

OPTIONAL = ["null", "string"]
EVERY = timedelta(minutes=int(os.environ.get("CKPT_WATCH_EVERY_MINUTES", "30")))


def setting(field: str, default: str = "") -> str:
    """Return the template for a field of the form that falls back to the Variable ``ckpt_<field>``."""
    return f"{{{{ params.{field} or var.value.get('ckpt_{field}', '{default}') }}}}"


with DAG(
    dag_id="kafka_retention_watch",
    schedule=EVERY,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    **no_backfill(),
    default_args={"retries": 3, "retry_delay": timedelta(minutes=2)},
    tags=["checkpoint", "kafka"],
    doc_md=__doc__,
    params={
        "checkpoint": Param(None, type=OPTIONAL, title="Checkpoint", description="e.g. s3://bucket/checkpoints/orders"),
        "checkpoint_conn_id": Param(None, type=OPTIONAL, title="Connection for the checkpoint"),
        "repository": Param(None, type=OPTIONAL, title="Repository with backups of the stream"),
        "repository_conn_id": Param(None, type=OPTIONAL, title="Connection for the repository"),
        "kafka_config_id": Param(None, type=OPTIONAL, title="Connection to Kafka"),
        "max_downtime": Param("24h", type="string", title="Downtime that has to be survived"),
        "threshold": Param("6h", type="string", title="Alarm when less than this is left"),
    },
) as dag:
    # [START howto_kafka_guard]
    guard = KafkaRetentionGuardOperator(
        task_id="guard",
        checkpoint=setting("checkpoint"),
        checkpoint_conn_id=setting("checkpoint_conn_id"),
        repository=setting("repository"),
        repository_conn_id=setting("repository_conn_id"),
        kafka_config_id=setting("kafka_config_id", "kafka_default"),
        max_downtime="{{ params.max_downtime }}",
    )
    # [END howto_kafka_guard]

    # [START howto_kafka_watch]
    watch = KafkaTimeToLossSensor(
        task_id="watch",
        checkpoint=setting("checkpoint"),
        checkpoint_conn_id=setting("checkpoint_conn_id"),
        kafka_config_id=setting("kafka_config_id", "kafka_default"),
        threshold="{{ params.threshold }}",
        timeout=(EVERY * 0.9).total_seconds(),
        soft_fail=True,
        deferrable=True,
    )
    # [END howto_kafka_watch]

    @task(retries=0)
    def alarm(report: dict[str, Any]) -> None:
        """Put your pager here. It fails, so that nobody overlooks it."""
        known = [source.get(key) for source in report["sources"] for key in ("seconds_left", "seconds_left_estimate")]
        left = min((seconds for seconds in known if seconds is not None), default=None)
        said = "nobody knows for how long" if left is None else f"{left:g} s left"
        raise RuntimeError(f"{report['verdict']}: {said}. {'; '.join(report['reasons'])}")

    guard >> watch >> alarm(watch.output)
