"""dags/kafka_retention_watch.py, and retention raised for a downtime and put back, run by Airflow on a real broker."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from airflow.sdk import DAG, task

from airflow_ckpt_provider.operators.kafka_retention_guard import (
    KafkaRetentionGuardOperator,
    KafkaRetentionRestoreOperator,
)
from tests.support.airflow_runs import RunDag, result, states
from tests.support.kafka_broker import KafkaBroker

pytestmark = pytest.mark.airflow

_HOUR = 3_600_000
_META = '{"batchWatermarkMs":0,"batchTimestampMs":1795000000000,"conf":{}}'


@pytest.fixture
def topic(kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> str:
    """A topic that keeps records for 40 hours; the first unread one is an hour old."""
    extra = json.dumps({"conn_type": "kafka", "extra": kafka_broker.config})
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_CK", extra)
    monkeypatch.setenv("AIRFLOW_VAR_CKPT_KAFKA_CONFIG_ID", "kafka_ck")
    name = kafka_broker.create(retention_ms=40 * _HOUR)
    kafka_broker.put(name, [10], start_ms=int(time.time() * 1000) - _HOUR)
    return name


@pytest.fixture
def stream(tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint that has read 5 records of it."""
    root = tmp_path / "checkpoints" / "orders"
    for name in ("offsets", "commits"):
        (root / name).mkdir(parents=True)
    (root / "metadata").write_text('{"id":"4f0bd2c5-0e5d-4b3c-8b1c-1f6d4a1f8f0a"}')
    for batch, end in enumerate((3, 5)):
        (root / "offsets" / str(batch)).write_text(f'v1\n{_META}\n{{"{topic}":{{"0":{end}}}}}')
        (root / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    monkeypatch.setenv("AIRFLOW_VAR_CKPT_CHECKPOINT", str(root))
    return root


def test_watch(
    example_dags: dict[str, DAG], run_dag: RunDag, stream: Path, topic: str, kafka_broker: KafkaBroker
) -> None:
    """Time enough: no alarm. Too little: the alarm. Too late: the guard fails and says how much is lost."""
    dag = example_dags["kafka_retention_watch"]
    dag.get_task("watch").timeout = 1
    dag.get_task("watch").poke_interval = 0.2
    calm = run_dag(dag)
    assert states(calm) == {"guard": "success", "watch": "skipped", "alarm": "skipped"}
    assert result(calm, "guard")["verdict"] == "SAFE"
    assert 38 * 3600 < result(calm, "guard", "seconds_left") < 39 * 3600
    alarmed = run_dag(dag, run_conf={"threshold": "39h"})
    assert states(alarmed) == {"guard": "success", "watch": "success", "alarm": "failed"}
    kafka_broker.delete_before(topic, {0: 7})
    late = run_dag(dag)
    assert states(late)["guard"] == "failed"
    assert result(late, "guard", "report")["lost"] == 2
    assert late.get_task_instance("guard").try_number == 1, "a verdict is not tried again"


def test_retention_for_a_downtime(run_dag: RunDag, stream: Path, topic: str, kafka_broker: KafkaBroker) -> None:
    """Put back also when the work in between fails."""
    seen = []

    with DAG("downtime", schedule=None) as dag:
        checkpoint = str(stream)

        @task
        def downtime() -> None:
            seen.append(_retention(kafka_broker, topic))
            raise RuntimeError("the deployment failed")

        # [START howto_kafka_raise]
        guard = KafkaRetentionGuardOperator(
            task_id="guard",
            checkpoint=checkpoint,
            kafka_config_id="kafka_ck",
            max_downtime="3d",
            raise_retention=True,
            raise_retention_to_at_most="7d",
        )
        restore = KafkaRetentionRestoreOperator(
            task_id="restore_retention", raised=guard.output["raised"], kafka_config_id="kafka_ck"
        )
        guard >> downtime() >> restore.as_teardown(setups=guard)
        # [END howto_kafka_raise]

    run = run_dag(dag)
    assert states(run) == {"guard": "success", "downtime": "failed", "restore_retention": "success"}
    assert seen == [(3 * 24 + 3) * _HOUR], "an hour of age, three days, an hour in hand, and the next whole hour"
    assert _retention(kafka_broker, topic) == 40 * _HOUR
    assert [done["outcome"] for done in result(run, "restore_retention")] == ["restored"]


def _retention(broker: KafkaBroker, topic: str) -> int | None:
    from airflow_ckpt_provider.guards.kafka_client import KafkaClient

    return KafkaClient(broker.config).configs([topic])[topic].retention_ms
