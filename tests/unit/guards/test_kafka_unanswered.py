"""What a guard asks of Kafka and does not get: UNKNOWN, or asked again, and never fine."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_ckpt_provider.checkpoint.offsets import SourceOffset
from airflow_ckpt_provider.checkpoint.source_offsets import parse_offset
from airflow_ckpt_provider.errors import SourceError
from airflow_ckpt_provider.guards.kafka import KafkaGuard, record
from airflow_ckpt_provider.guards.kafka_answers import topic_config
from airflow_ckpt_provider.guards.kafka_backups import judge_backups
from airflow_ckpt_provider.guards.kafka_client import KafkaClient
from airflow_ckpt_provider.guards.kafka_identity import KnownTopics
from airflow_ckpt_provider.guards.registry import GuardedSource, GuardSettings
from airflow_ckpt_provider.verdict import Usefulness, Verdict
from tests.support.kafka_logs import WEEK, KafkaLogs, ask

ORDERS = ("orders", 0)
AT_5 = {"orders": {"0": 5}}
DAY = 86_400.0
FOREVER = replace(WEEK, retention_ms=None, append_time=False)


def reported(*, without: str = "", **values: str) -> Any:
    """Settings as a broker reports them, but for one."""
    told = {"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1", **values}
    told["delete.retention.ms"] = "86400000"
    return topic_config({k: SimpleNamespace(value=v, source=5) for k, v in told.items() if k != without}, None)


def test_an_offset_that_the_log_does_not_have_is_no_end_of_the_log() -> None:
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    servers = ",".join(f"{b.host}:{b.port}" for b in producer.list_topics(timeout=10).brokers.values())
    producer.produce("orders", b"x", partition=0)
    producer.flush(10)
    client = KafkaClient({"bootstrap.servers": servers})
    assert client.read({ORDERS: (999, 999)}) == {ORDERS: None}
    assert client.read({ORDERS: (1, 1)}) == {ORDERS: ()}


def test_contents_of_a_partition_that_does_not_answer() -> None:
    """They were empty: a mirror without syncs."""
    with pytest.raises(SourceError, match="orders-0 did not answer"):
        KafkaLogs({}).contents(ORDERS)


def test_contents_that_are_deleted_while_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were taken for all that the partition has."""
    cluster = KafkaLogs({ORDERS: [1.0] * 9})
    monkeypatch.setattr(cluster, "_read", lambda ranges, _keep: dict.fromkeys(ranges))
    with pytest.raises(SourceError, match="cannot read all of orders-0: its first records were deleted"):
        cluster.contents(ORDERS)


class TestALogThatIsTrimmedBetweenTwoQuestions:
    def test_is_asked_again(self) -> None:
        """It was SAFE: the log does not have offset 5 any more, and that was read as the end of the log."""
        cluster = KafkaLogs({ORDERS: [1.0] * 10})
        cluster.after["configs"] = lambda: cluster.trim(ORDERS, 7)
        found = ask(cluster, AT_5)
        assert (found.verdict, found.lost) == (Verdict.WILL_FAIL, 2)

    def test_each_time_is_unknown(self) -> None:
        cluster = KafkaLogs({ORDERS: [1.0] * 10})
        cluster.after["topics"] = lambda: cluster.trim(ORDERS, 0)
        cluster.after["ends"] = lambda: cluster.trim(ORDERS, 7)
        found = ask(cluster, AT_5)
        assert found.verdict is Verdict.UNKNOWN
        assert "topic orders: the next record of partition 0 could not be read" in found.reasons[0]

    def test_a_record_that_is_not_read_in_time(self) -> None:
        cluster = KafkaLogs({ORDERS: [1.0] * 10, ("orders", 1): [1.0] * 10})
        cluster.slow = {ORDERS}
        found = ask(cluster, {"orders": {"0": 5, "1": 5}})
        assert found.verdict is Verdict.UNKNOWN
        assert "run the guard again, with more time" in found.reasons[0]


class TestSettingsThatAreNotReported:
    @pytest.mark.parametrize("name", ["retention.ms", "retention.bytes"])
    def test_are_unknown_where_a_downtime_is_planned(self, name: str) -> None:
        """They were taken for no limit at all."""
        cluster = KafkaLogs({ORDERS: [1.0] * 10}, reported(without=name))
        assert ask(cluster, AT_5).verdict is Verdict.SAFE
        found = ask(cluster, AT_5, max_downtime=DAY)
        assert found.verdict is Verdict.UNKNOWN
        assert f"the broker does not report {name} of the topic" in found.reasons[0]
        facts = found.sources[0].facts["topics"]["orders"]
        assert facts[name.replace(".", "_")] is None

    def test_all_are_reported(self) -> None:
        assert ask(KafkaLogs({ORDERS: [1.0] * 10}, reported()), AT_5, max_downtime=DAY).verdict is Verdict.SAFE

    def test_how_long_deletions_are_kept(self) -> None:
        compacted = {"cleanup.policy": "compact"}
        cluster = KafkaLogs({ORDERS: [1.0] * 10}, reported(without="delete.retention.ms", **compacted))
        found = ask(cluster, AT_5, max_downtime=3600.0)
        assert found.verdict is Verdict.UNKNOWN
        assert "the broker does not report delete.retention.ms" in found.reasons[0]
        cluster = KafkaLogs({ORDERS: [1.0] * 10}, reported(**compacted))
        assert ask(cluster, AT_5, max_downtime=3600.0).verdict is Verdict.SAFE

    @pytest.mark.parametrize("earliest", [0, 3])
    def test_none_at_all(self, earliest: int) -> None:
        """It was SAFE, and with a log that was trimmed an error that named only the topic."""
        cluster = KafkaLogs({ORDERS: [1.0] * 10}, None)
        cluster.trim(ORDERS, earliest)
        assert ask(cluster, AT_5).verdict is Verdict.SAFE
        found = ask(cluster, AT_5, max_downtime=DAY)
        assert found.verdict is Verdict.UNKNOWN
        assert "topic orders: the broker did not report the settings of the topic" in found.reasons[0]

    @pytest.mark.parametrize("question", ["topics", "ends"])
    def test_of_a_topic_that_is_deleted_between_two_questions(self, question: str) -> None:
        cluster = KafkaLogs({ORDERS: [1.0] * 10})
        cluster.after[question] = lambda: cluster.delete("orders")
        found = ask(cluster, AT_5, max_downtime=DAY)
        assert found.reasons == ("topic orders does not exist any more: the query fails at its start",)


class TestAComparisonThatIsNotAnswered:
    """A topic of a broker without ids; -1 as its retention leaves no question after those for records."""

    @pytest.fixture
    def cluster(self) -> KafkaLogs:
        return KafkaLogs({ORDERS: [1.0] * 10}, FOREVER)

    @pytest.fixture
    def known(self, cluster: KafkaLogs) -> dict[str, Any]:
        return record(cluster, parse_offset(json.dumps(AT_5))).to_json()

    @pytest.fixture
    def slow(self, cluster: KafkaLogs, known: dict[str, Any]) -> KafkaLogs:
        cluster.slow = {ORDERS}
        return cluster

    def test_is_unknown(self, slow: KafkaLogs, known: dict[str, Any]) -> None:
        """It was SAFE: the topic may be another one."""
        found = ask(slow, {"orders": {"0": 10}}, {"sources": {"0": known}})
        assert found.verdict is Verdict.UNKNOWN
        assert found.reasons[0].startswith(
            "topic orders: record 4 of partition 0, which a backup recorded, could not be read: whether it is the topic that "
            "the checkpoint has read is not known"
        )

    def test_leaves_the_next_backup_what_the_last_one_recorded(self, slow: KafkaLogs, known: dict[str, Any]) -> None:
        before = KnownTopics.from_json(known)
        now = record(slow, parse_offset('{"orders":{"0":9}}'), before=before)
        assert now.fingerprints == before.fingerprints

    def test_leaves_a_backup_unknown(self, slow: KafkaLogs, known: dict[str, Any]) -> None:
        facts = {"sources": {"0": known}, "end_offsets": [{"index": 0, "offset": AT_5}]}
        assert [found.usefulness for found in judge_backups(slow, [facts])] == [Usefulness.UNKNOWN]


def test_a_recreated_topic_does_not_hide_another_one() -> None:
    """Of the second one only the time of a record shows it: it was added to the query after the backup."""
    cluster = KafkaLogs({("a", 0): [0.1] * 3, ("b", 0): [0.1] * 10}, ids={"a": "A2", "b": "B2"})
    known = {"kind": "kafka", "topics": {"a": {"topic_id": "A1", "partitions": {"0": [0, 9, 4, 1]}}}}
    source = GuardedSource(
        SourceOffset("0", parse_offset('{"a":{"0":5},"b":{"0":5}}')),
        known=known,
        logged_at=datetime.now(UTC) - timedelta(hours=3),
    )
    found = KafkaGuard(GuardSettings(), cluster).judge(source)
    assert found.verdict is Verdict.WILL_LOSE
    assert [reason.split(":")[0] for reason in found.reasons] == [f"topic {t} was deleted and recreated" for t in "ba"]
