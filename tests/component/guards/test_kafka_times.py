"""What a time means in a topic, asked of a real broker: the positions of pipelines go by it."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from airflow_ckpt_provider.errors import SourceError
from airflow_ckpt_provider.guards.kafka_client import KafkaClient
from airflow_ckpt_provider.lakeflow.kafka_state import asking
from tests.support.kafka_broker import KafkaBroker

#: Recent, so that retention by time leaves the records alone.
BEGIN = int(time.time() - 3600) * 1000


def test_offsets_at_a_time(kafka_broker: KafkaBroker) -> None:
    topic = kafka_broker.create(partitions=2)
    kafka_broker.put(topic, {0: 5}, start_ms=BEGIN, step_ms=1000)
    kafka_broker.delete_before(topic, {0: 2})
    state = asking(KafkaClient(kafka_broker.config))([topic])
    assert (state.earliest, state.latest) == ({topic: {0: 2, 1: 0}}, {topic: {0: 5, 1: 0}})
    assert state.append_time is False
    for seconds, offset in ((0, 2), (3, 3), (3.5, 4), (4, 4), (5, 5)):
        found = state.at(datetime.fromtimestamp(BEGIN / 1000 + seconds, UTC))
        assert found == {topic: {0: offset, 1: 0}}, seconds


def test_times_of_the_broker_and_no_topic(kafka_broker: KafkaBroker) -> None:
    topic = kafka_broker.create(**{"message.timestamp.type": "LogAppendTime"})
    assert asking(KafkaClient(kafka_broker.config))([topic]).append_time
    with pytest.raises(SourceError, match="topic no-such-topic does not exist"):
        asking(KafkaClient(kafka_broker.config))([topic, "no-such-topic"])
