"""``KafkaTimeToLossSensor``: what it hands over to its trigger. Against a real broker: tests/component/operators."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import PokeReturnValue
from airflow.sdk.exceptions import TaskDeferred

from airflow_ckpt_provider.sensors.kafka_time_to_loss import KafkaTimeToLossSensor


@pytest.mark.parametrize(
    "given", [{"poll_interval": 90}, {"poll_interval": timedelta(seconds=90)}, {"poke_interval": timedelta(seconds=90)}]
)
def test_the_trigger_polls_as_often_as_the_sensor(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaTimeToLossSensor, "poke", lambda *_: PokeReturnValue(is_done=False))
    sensor = KafkaTimeToLossSensor(task_id="watch", checkpoint="/checkpoints/orders", deferrable=True, **given)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})  # type: ignore[typeddict-item]
    assert deferred.value.trigger.serialize()[1]["poll_interval"] == 90.0
