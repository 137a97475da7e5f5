"""Topics that the options of a query's reader name: which are read, which are missing, and options that are none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.report import SourceReport
from airflow_ckpt_provider.verdict import Verdict
from tests.support.kafka_logs import WEEK, KafkaLogs, ask

THREE = [3, 2, 1]
DAY = 86400.0


def judge(cluster: KafkaLogs, *topics: str, **reader: Any) -> SourceReport:
    offsets = {topic: {"0": 2} for topic in topics or ("orders",)}
    return ask(cluster, offsets, options={"kafka": {"options": {"0": reader}}}).sources[0]


def test_spark_finds_the_pattern_anywhere_in_a_name() -> None:
    """``SubscribePatternStrategy``: ``findFirstIn``. The whole name was compared."""
    cluster = KafkaLogs({("orders-eu", 0): THREE, ("orders-us", 0): THREE})
    assert judge(cluster, "orders-eu", "orders-us", subscribePattern="orders").verdict is Verdict.SAFE
    cluster.trim(("orders-us", 0), 2)
    added = judge(cluster, "orders-eu", subscribePattern="orders")
    assert (added.verdict, added.lost) == (Verdict.WILL_FAIL, 2)
    assert judge(cluster, "orders-eu", subscribePattern="^orders-eu$").verdict is Verdict.SAFE


@pytest.mark.parametrize("pattern", ["[a-z&&[^x]]+", "[[a-m]o]rders", r"\p{Lower}+"])
def test_a_pattern_that_is_read_in_another_way_here(pattern: str) -> None:
    report = judge(KafkaLogs({("orders", 0): THREE}), subscribePattern=pattern)
    assert report.verdict is Verdict.UNKNOWN
    assert "is not understood here" in report.reasons[0]


@pytest.mark.parametrize("reader", [{"subscribe": "orders, clicks"}, {"assign": '{"orders": [0], "clicks": [0]}'}])
def test_a_named_topic_that_does_not_exist(reader: dict[str, str]) -> None:
    report = judge(KafkaLogs({("orders", 0): THREE}), **reader)
    assert report.verdict is Verdict.WILL_FAIL
    assert report.reasons == ("topic clicks, which the query names, does not exist: the query fails at its start",)
    assert report.parts[-1].name == "clicks-0"


def test_only_partitions_that_are_assigned_are_read() -> None:
    cluster = KafkaLogs({("orders", 0): THREE, ("orders", 1): THREE, ("clicks", 0): THREE})
    cluster.trim(("orders", 1), 2)
    assert judge(cluster, assign='{"orders": [0]}').verdict is Verdict.SAFE
    cluster.trim(("clicks", 0), 2)
    assert judge(cluster, assign='{"orders": [0], "clicks": [0]}').lost == 2
    moved = judge(cluster, assign='{"orders": [1]}')
    assert {part.name: part.facts["finding"] for part in moved.parts} == {
        "orders-0": "not named",
        "orders-1": "partition added",
    }


@pytest.mark.parametrize(
    ("reader", "why"),
    [
        ({"assign": {"orders": [0]}}, "the option assign of kafka source 0 is"),
        ({"subscribe": ["orders", "clicks"]}, "the option subscribe of kafka source 0 is"),
        ({"assign": "orders"}, "with which Spark does not start"),
        ({"assign": '["orders"]'}, "with which Spark does not start"),
    ],
)
def test_options_of_another_form_are_refused(reader: dict[str, Any], why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        judge(KafkaLogs({("orders", 0): THREE}), **reader)


@pytest.mark.parametrize("value", [None, "", "None"])
def test_a_template_that_renders_to_nothing_names_nothing(value: str | None) -> None:
    assert judge(KafkaLogs({("orders", 0): THREE}), subscribePattern=value, subscribe=value).verdict is Verdict.SAFE


@pytest.mark.parametrize("log", [[1.0, 1.0, 0.5], [1.0, 1.0, 1.0, 1.0]], ids=["one unread", "of one moment"])
def test_a_limit_by_size_whose_time_is_not_known_does_not_outlast_a_downtime(log: list[float]) -> None:
    """It counted as if there were a limit by age alone."""
    cluster = KafkaLogs({("orders", 0): log}, replace(WEEK, retention_bytes=10_000_000))
    report = ask(cluster, {"orders": {"0": 2}}, max_downtime=2 * DAY)
    assert report.verdict is Verdict.UNKNOWN
    assert "size and throughput are not known" in report.reasons[0]
