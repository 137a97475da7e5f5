"""``KafkaTimeToLossTrigger``: its own deadline. Against a real broker: tests/component/operators."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from airflow_ckpt_provider.errors import SourceError
from airflow_ckpt_provider.triggers import kafka_time_to_loss
from airflow_ckpt_provider.triggers.kafka_time_to_loss import KafkaTimeToLossTrigger


def test_it_polls_once_more_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gave up at once where less than an interval was left: nobody watched until the deadline."""
    polls: list[float] = []

    def unreachable(*_: Any) -> Any:
        polls.append(time.time())
        raise SourceError("no broker")

    monkeypatch.setattr(kafka_time_to_loss, "look", unreachable)
    made = KafkaTimeToLossTrigger(
        checkpoint="/checkpoints/orders",
        checkpoint_conn_id=None,
        kafka_config_id="kafka",
        source=None,
        threshold=60.0,
        poll_interval=3600.0,
        end_time=time.time() + 0.3,
    )

    async def first() -> Any:
        return (await anext(made.run())).payload  # type: ignore[call-overload]

    assert asyncio.run(asyncio.wait_for(first(), 60)) == {"status": "timeout", "unknown": "no broker"}
    assert polls[-1] >= made.end_time
    assert len(polls) >= 2
