"""A real broker for the guards, and one question to put to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from airflow_ckpt_provider.guards.kafka import KafkaGuard, record
from airflow_ckpt_provider.guards.kafka_client import KafkaClient
from airflow_ckpt_provider.guards.query import from_kafka_offsets, guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.guards.report import SourceReport
from tests.support.kafka_broker import KafkaBroker, kafka_broker

__all__ = ["kafka_broker"]

Ask = Callable[..., SourceReport]


@pytest.fixture
def ask(kafka_broker: KafkaBroker) -> Ask:
    """Have offsets of one topic judged."""

    def judge(
        topic: str,
        offsets: Mapping[int, int],
        *,
        known: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        timeout: float = 10.0,
        isolation_level: str = "read_uncommitted",
        **settings: Any,
    ) -> SourceReport:
        options = {"config": config or kafka_broker.config, "timeout": timeout, "isolation_level": isolation_level}
        query = from_kafka_offsets({topic: {str(p): o for p, o in offsets.items()}}, known=known)
        told = GuardSettings(**settings, options={"kafka": options})
        return guard_query(query, told, guards=[KafkaGuard(told)]).sources[0]

    return judge


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
