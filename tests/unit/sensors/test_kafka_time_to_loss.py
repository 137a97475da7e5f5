"""``KafkaTimeToLossSensor``: what it hands over to its trigger, and when it is time.

Against a real broker: tests/component/operators.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import PokeReturnValue
from airflow.sdk.exceptions import TaskDeferred

from airflow_ckpt_provider.guards.kafka_log import TopicConfig
from airflow_ckpt_provider.sensors.kafka_time_to_loss import KafkaTimeToLossSensor
from airflow_ckpt_provider.triggers.kafka_time_to_loss import is_due, not_known
from airflow_ckpt_provider.verdict import Verdict
from tests.support.kafka_logs import HOUR, WEEK, KafkaLogs, ask


@pytest.mark.parametrize(
    "given", [{"poll_interval": 90}, {"poll_interval": timedelta(seconds=90)}, {"poke_interval": timedelta(seconds=90)}]
)
def test_the_trigger_polls_as_often_as_the_sensor(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaTimeToLossSensor, "poke", lambda *_: PokeReturnValue(is_done=False))
    sensor = KafkaTimeToLossSensor(task_id="watch", checkpoint="/checkpoints/orders", deferrable=True, **given)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})  # type: ignore[typeddict-item]
    assert deferred.value.trigger.serialize()[1]["poll_interval"] == 90.0


BUSY = [i / HOUR for i in range(600_000, 0, -100)]  # 6,000 records in ten minutes
BY_SIZE = replace(WEEK, retention_ms=None)


def test_an_estimate_is_not_hidden_by_the_bound_of_another_topic() -> None:
    """26 s are left of one topic, which has no bound, and a week of the other: it was not due."""
    cluster = KafkaLogs({("slow", 0): [0.1] * 10, ("busy", 0): BUSY})
    cluster.settings["busy"] = replace(WEEK, retention_bytes=700_000)
    report = ask(cluster, {"busy": {"0": 10}, "slow": {"0": 9}})
    assert report.verdict is Verdict.SAFE
    assert is_due(report, 3600)
    assert not is_due(report, 10)
    assert not_known(report) is None


def test_time_that_cannot_be_determined_is_not_enough_time() -> None:
    """Not due, and known: with `soft_fail` the task was skipped."""
    report = ask(KafkaLogs({("orders", 0): [0.1] * 10}, replace(BY_SIZE, retention_bytes=1000)), {"orders": {"0": 3}})
    assert not is_due(report, 3600)
    assert not_known(report) == (
        "for how long Kafka keeps what is unread of orders-0 is not known: retention.bytes is 1,000: size and throughput are "
        "not known"
    )


@pytest.mark.parametrize("config", [BY_SIZE, replace(BY_SIZE, retention_bytes=1000)], ids=["no limit", "all is read"])
def test_nothing_can_be_lost(config: TopicConfig) -> None:
    report = ask(KafkaLogs({("orders", 0): [0.1] * 10}, config), {"orders": {"0": 10}})
    assert (is_due(report, 3600), not_known(report)) == (False, None)
