"""Kafka's part of a position: what its logs hold, and which offsets a time means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TypeVar

from airflow_ckpt_provider.errors import SourceError
from airflow_ckpt_provider.guards.kafka_client import KafkaClient
from airflow_ckpt_provider.lakeflow.evidence import KafkaState
from airflow_ckpt_provider.lakeflow.gathering import AskKafka

_Value = TypeVar("_Value")


def asking(client: KafkaClient) -> AskKafka:
    """Make the question about topics.

    :param client: of the brokers.
    """

    def ask(topics: Sequence[str]) -> KafkaState:
        client.again()
        found = client.topics(topics)
        missing = sorted(set(topics) - set(found))
        if missing:
            raise SourceError(f"topic {missing[0]} does not exist on {client.servers}")
        partitions = [(name, number) for name, topic in found.items() for number in topic.partitions]
        ends = client.ends(partitions)
        settings = client.configs(topics)

        def at(time: datetime) -> dict[str, dict[int, int]]:
            return _nested(client.again().offsets_at(partitions, int(time.timestamp() * 1000)).items())

        return KafkaState(
            _nested((p, each.earliest) for p, each in ends.items()),
            _nested((p, each.latest) for p, each in ends.items()),
            bool(settings) and all(each.append_time for each in settings.values()),
            at,
        )

    return ask


def _nested(flat: Iterable[tuple[tuple[str, int], _Value]]) -> dict[str, dict[int, _Value]]:
    found: dict[str, dict[int, _Value]] = {}
    for (topic, partition), value in flat:
        found.setdefault(topic, {})[partition] = value
    return found
