"""Raising and putting back retention, against a cluster that is a dictionary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.kafka_log import TopicConfig
from airflow_ckpt_provider.guards.kafka_raise import (
    RaisedRetention,
    plan_raise,
    raise_retention,
    restore_retention,
    set_by_others,
)
from airflow_ckpt_provider.guards.report import GuardReport, SourceReport
from airflow_ckpt_provider.verdict import Verdict
from tests.support.kafka_logs import HOUR, WEEK, KafkaLogs, ask

_DEFAULT = 604_800_000


class Cluster:
    """Topics and their own ``retention.ms``; the broker's default is a week."""

    def __init__(self, **own: int | None) -> None:
        self.own = own

    def configs(self, topics: list[str]) -> dict[str, TopicConfig]:
        base = TopicConfig(_DEFAULT, True, None, frozenset({"delete"}), 1, 1)
        return {
            t: base if (ms := self.own[t]) is None else replace(base, retention_ms=ms, retention_is_inherited=False)
            for t in topics
            if t in self.own
        }

    def set_retention(self, topic: str, retention_ms: int | None, *, inherit: bool = False) -> None:
        self.own[topic] = None if inherit else retention_ms


def report(**topics: tuple[int, bool, int, bool]) -> GuardReport:
    keys = ("retention_ms", "retention_is_inherited", "needed_retention_ms", "retention_is_short")
    facts = {"topics": {name: dict(zip(keys, values, strict=True)) for name, values in topics.items()}}
    return GuardReport("ck", (SourceReport("0", "kafka", facts=facts),))


def test_only_what_is_short_is_raised() -> None:
    planned = plan_raise(report(a=(100, True, 500, True), b=(100, False, 50, False)), at_most_ms=500)
    assert planned == [RaisedRetention("a", 100, True, 500)]


def test_upper_bound() -> None:
    with pytest.raises(RefusedError) as e:
        plan_raise(report(a=(100, True, 7_200_000, True)), at_most_ms=3_600_000)
    assert str(e.value).startswith("topic a needs retention.ms=7200000 (2 h), and at most 3600000 (1 h) may be set")


@pytest.mark.parametrize("before", [None, 1000])
def test_there_and_back(before: int | None) -> None:
    cluster = Cluster(a=before)
    raised = [RaisedRetention("a", _DEFAULT if before is None else before, before is None, 10**9)]
    assert raise_retention(cluster, raised) == raised
    assert cluster.own == {"a": 10**9}
    again = [RaisedRetention.from_json(change.to_json()) for change in raised]
    assert [done["outcome"] for done in restore_retention(cluster, again)] == ["restored"]
    assert cluster.own == {"a": before}
    assert [done["outcome"] for done in restore_retention(cluster, again)] == ["restored"], "a second time"
    assert cluster.own == {"a": before}


def test_somebody_elses_setting_is_left() -> None:
    cluster = Cluster(a=123)
    raised = [RaisedRetention("a", 1000, False, 10**9), RaisedRetention("gone", 1000, False, 10**9)]
    assert [done["outcome"] for done in restore_retention(cluster, raised)] == ["changed since", "topic is gone"]
    assert cluster.own == {"a": 123}


def test_not_a_raised_retention() -> None:
    with pytest.raises(RefusedError):
        RaisedRetention.from_json({"topic": "a"})


HOURS_30 = 30 * HOUR // 1000


def day() -> KafkaLogs:
    """A topic that inherits a day; its records are up to 60 hours old."""
    return KafkaLogs({("orders", 0): [60, 20.5, 0.1, 0]}, replace(WEEK, retention_ms=24 * HOUR), default=24 * HOUR)


def plan(cluster: KafkaLogs, offset: int) -> list[RaisedRetention]:
    return plan_raise(asked(cluster, offset), at_most_ms=7 * 24 * HOUR)


def asked(cluster: KafkaLogs, offset: int) -> GuardReport:
    return ask(cluster, {"orders": {"0": offset}}, max_downtime=HOURS_30, buffer=3600.0)


def hours(cluster: KafkaLogs) -> tuple[float, bool]:
    config = cluster.settings["orders"]
    assert config.retention_ms is not None
    return config.retention_ms / HOUR, config.retention_is_inherited


class TestSomebodyElseSetsItAtTheSameTime:
    def test_what_was_raised_further_is_not_lowered(self) -> None:
        """A guard that was suspended after its plan set 32 h where an administrator had set 720 h, and then a day."""
        cluster = day()
        planned = plan(cluster, 2)
        cluster.set_retention("orders", 720 * HOUR)
        assert (raise_retention(cluster, planned), hours(cluster)) == ([], (720, False))

    def test_two_guards_of_one_topic(self) -> None:
        """The second one lowered it below what the first one had found SAFE."""
        cluster = day()
        far, near = plan(cluster, 1), plan(cluster, 2)
        assert raise_retention(cluster, far) == far
        assert raise_retention(cluster, near) == []
        assert hours(cluster) == (52, False)
        assert asked(cluster, 1).verdict is Verdict.SAFE
        # The first one may put it back while the stream of the second one is down.
        assert set_by_others(asked(cluster, 1), far) == []
        assert set_by_others(asked(cluster, 2), []) == [
            "topic orders: its own retention.ms=187200000 (2 d 4 h) is enough for the planned downtime, and this guard has not "
            "set it: if another guard has raised it, that one may put it back during the downtime"
        ]

    def test_what_was_lowered_or_set_otherwise_is_what_is_put_back(self) -> None:
        cluster = day()
        planned = plan(cluster, 1)
        cluster.set_retention("orders", 30 * HOUR)
        raised = raise_retention(cluster, planned)
        assert [(change.old_retention_ms, change.inherited) for change in raised] == [(30 * HOUR, False)]

    def test_each_topic_is_read_right_before_it_is_put_back(self) -> None:
        """The second one was set after the first one was put back: it was lowered."""
        cluster = Cluster(a=10**9, b=10**9)
        raised = [RaisedRetention(topic, 1000, False, 10**9) for topic in "ab"]
        put = cluster.set_retention

        def set_retention(topic: str, retention_ms: int | None, *, inherit: bool = False) -> None:
            put(topic, retention_ms, inherit=inherit)
            cluster.own["b"] = 2 * 10**9

        cluster.set_retention = set_retention  # type: ignore[method-assign]
        assert [done["outcome"] for done in restore_retention(cluster, raised)] == ["restored", "changed since"]
        assert cluster.own == {"a": 1000, "b": 2 * 10**9}

    def test_put_back_in_the_reverse_order_nothing_is_left(self) -> None:
        cluster = day()
        near = raise_retention(cluster, plan(cluster, 2))
        far = raise_retention(cluster, plan(cluster, 1))
        # A retry of the first one does not take the value of the second one for that of a person.
        assert raise_retention(cluster, plan(cluster, 2), before=near) == near
        for raised in (far, near):
            restore_retention(cluster, raised)
        assert hours(cluster) == (24, True)


def test_a_retention_that_is_not_reported_is_not_set() -> None:
    cluster = day()
    cluster.settings["orders"] = replace(WEEK, retention_ms=None, unreported=frozenset({"retention.ms"}))
    assert asked(cluster, 1).verdict is Verdict.UNKNOWN
    assert plan(cluster, 1) == []
