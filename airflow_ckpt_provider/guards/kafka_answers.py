"""From the answers of ``confluent-kafka`` to plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ckpt_provider.guards.kafka_log import Record, TopicConfig


def record_of(message: Any) -> Record:
    """A record that was read."""
    kind, ms = message.timestamp()
    size = len(message.key() or b"") + len(message.value() or b"")
    return Record(message.offset(), ms if kind and ms >= 0 else None, size)


def topic_id(described: Any) -> str | None:
    """The id of a topic. A broker before 2.8 has no ids; librdkafka then says zero."""
    text = str(described.topic_id) if described.topic_id is not None else ""
    return text if text.strip("A=") else None


def topic_config(entries: Mapping[str, Any], check_interval_ms: int | None) -> TopicConfig:
    """Settings of a topic."""
    from confluent_kafka.admin import ConfigSource

    reported = {name: entry.value for name, entry in entries.items() if entry.value not in (None, "")}

    def number(name: str, default: int) -> int:
        return int(reported.get(name, default))

    retention = entries.get("retention.ms")
    own = retention is not None and retention.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    ms, size = number("retention.ms", -1), number("retention.bytes", -1)
    text = reported.get("cleanup.policy", "delete")
    kind = reported.get("message.timestamp.type", "CreateTime")
    tiered = reported.get("remote.storage.enable", "false")
    return TopicConfig(
        retention_ms=None if ms < 0 else ms,
        retention_is_inherited=not own,
        retention_bytes=None if size < 0 else size,
        cleanup=frozenset(word.strip() for word in text.split(",") if word.strip()),
        segment_ms=number("segment.ms", 604_800_000),
        segment_bytes=number("segment.bytes", 1 << 30),
        append_time=kind == "LogAppendTime",
        tiered=tiered == "true",
        check_interval_ms=check_interval_ms,
        delete_retention_ms=number("delete.retention.ms", 86_400_000),
        unreported=frozenset({"retention.ms", "retention.bytes", "delete.retention.ms"} - reported.keys()),
    )
