"""``KafkaRetentionGuardOperator`` raises retention while others set it too. Against a real broker: tests/component/operators."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ckpt_provider.errors import ChangeRunningError
from airflow_ckpt_provider.operators import kafka_connection
from airflow_ckpt_provider.operators.kafka_retention_guard import KafkaRetentionGuardOperator
from tests.support.attempts import Store
from tests.support.kafka_logs import HOUR, WEEK, KafkaLogs


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> KafkaLogs:
    logs = {(topic, 0): [20.5, 0.1] for topic in ("clicks", "orders")}
    made = KafkaLogs(logs, replace(WEEK, retention_ms=24 * HOUR), default=24 * HOUR)
    monkeypatch.setattr(kafka_connection, "open_kafka", lambda *_, **__: made)
    return made


def guard(store: Store, *topics: str) -> dict[str, Any]:
    task = KafkaRetentionGuardOperator(
        task_id="guard",
        offsets={topic: {"0": 0} for topic in topics or ("orders",)},
        max_downtime="30h",
        raise_retention=True,
        raise_retention_to_at_most="7d",
    )
    ti = SimpleNamespace(
        dag_id="dag", run_id="run", task_id="guard", map_index=-1, try_number=1, max_tries=0, xcom_push=lambda **_: None
    )
    return task.execute({"ti": ti, "task_state_store": store})  # type: ignore[typeddict-item, no-any-return]


def once(act: Callable[[], object]) -> Callable[[], None]:
    left = [act]
    return lambda: left.pop()() and None if left else None


def test_raised(cluster: KafkaLogs) -> None:
    report = guard(Store())
    assert (report["verdict"], report["reasons"]) == ("SAFE", [])
    assert [(c["old_retention_ms"], c["inherited"]) for c in report["raised"]] == [(24 * HOUR, True)]
    assert cluster.settings["orders"].retention_ms == 52 * HOUR


def test_set_by_somebody_else_right_before_the_raise(cluster: KafkaLogs) -> None:
    """While the guard kept what it was about to change: it lowered 720 h to 52 h."""
    store = Store()
    store.before = once(lambda: cluster.set_retention("orders", 720 * HOUR))
    report = guard(store)
    assert (report["verdict"], report["raised"]) == ("SAFE", [])
    assert report["reasons"][0].startswith("topic orders: its own retention.ms=2592000000 (30 d) is enough")
    assert cluster.settings["orders"].retention_ms == 720 * HOUR
    assert store.get("ckpt_raised_retention")["raised"] == []


def test_an_attempt_that_another_one_took_over_from_puts_nothing_back(cluster: KafkaLogs) -> None:
    """What it has set is the other attempt's to put back."""
    store, other = Store(), {"attempt": "other", "life": 0, "max_tries": 0, "raised": []}
    store.after = once(lambda: store.kept.update(ckpt_raised_retention=json.dumps(other)))
    with pytest.raises(ChangeRunningError):
        guard(store, "clicks", "orders")
    assert [config.retention_ms for config in cluster.settings.values()] == [52 * HOUR, 24 * HOUR]
