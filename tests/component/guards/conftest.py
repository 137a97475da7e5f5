"""A real broker for the guards, and one question to put to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_ckpt_provider.guards.kafka import KafkaGuard
from airflow_ckpt_provider.guards.query import from_kafka_offsets, guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.guards.report import SourceReport
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_guards import Ask as Ask


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
