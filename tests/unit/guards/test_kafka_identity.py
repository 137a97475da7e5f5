"""What a backup recorded of the topics of a source, read back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_ckpt_provider.errors import DamagedBackupError
from airflow_ckpt_provider.guards.kafka_identity import Fingerprint, KnownTopics

AT = datetime(2026, 11, 20, 8, 30, tzinfo=UTC)
KNOWN = KnownTopics(
    at=AT,
    ids={"orders": "a1", "returns": "b2"},
    fingerprints={("orders", 0): Fingerprint(1, 9, 8, 1_700_000_000_000), ("returns", 1): Fingerprint(0, 0)},
    others={"returns": ("c3", AT)},
)


def test_there_and_back() -> None:
    assert KnownTopics.from_json(KNOWN.to_json()) == KNOWN
    assert KnownTopics.from_json({}) == KnownTopics.from_json({"kind": "delta", "topics": 5}) == KnownTopics()


@pytest.mark.parametrize(
    "wrong",
    [
        {"at": "2026-11-20T08:30:00"},
        {"at": [1]},
        {"topics": []},
        {"topics": {"orders": None}},
        {"topics": {"orders": {"partitions": {"x": [1, 2, 3, 4]}}}},
        {"topics": {"orders": {"partitions": {"0": [1]}}}},
        {"topics": {"orders": {"partitions": {"0": [1, "2", 3, 4]}}}},
        {"topics": {"orders": {"partitions": {"0": [1, 2, True, 4]}}}},
        {"topics": {"orders": {"other": {"topic_id": "c3", "since": "2026-11-20T08:30:00"}}}},
    ],
    ids=str,
)
def test_what_no_backup_writes_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DamagedBackupError, match="recorded of a Kafka source cannot be read, or is forged"):
        KnownTopics.from_json({**KNOWN.to_json(), **wrong})
