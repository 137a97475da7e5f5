"""What the guard of Kafka is asked about in tests, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from airflow_ckpt_provider.guards.kafka import record
from airflow_ckpt_provider.guards.kafka_client import KafkaClient
from airflow_ckpt_provider.guards.query import from_kafka_offsets
from airflow_ckpt_provider.guards.report import SourceReport
from tests.support.kafka_broker import KafkaBroker

Ask = Callable[..., SourceReport]


def facts_of(broker: KafkaBroker, topic: str, offsets: Mapping[int, int]) -> dict[str, Any]:
    """What a backup taken now would record, through JSON as in a manifest."""
    query = from_kafka_offsets({topic: {str(p): o for p, o in offsets.items()}})
    known = record(KafkaClient(broker.config), query.sources[0].start.offset)
    facts: dict[str, Any] = json.loads(json.dumps({"sources": {"0": known.to_json()}}))
    return facts


def part(report: SourceReport, partition: int) -> Mapping[str, Any]:
    """What a report says of a partition."""
    (found,) = (p.facts for p in report.parts if p.facts["partition"] == partition)
    return found
