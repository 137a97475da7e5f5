"""Raising and putting back retention, against a cluster that is a dictionary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.kafka_log import TopicConfig
from airflow_ckpt_provider.guards.kafka_raise import RaisedRetention, plan_raise, raise_retention, restore_retention
from airflow_ckpt_provider.guards.report import GuardReport, SourceReport

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
    raise_retention(cluster, raised)
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
