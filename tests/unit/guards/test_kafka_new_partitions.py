"""Partitions and topics that are new to the checkpoint are read from their beginning: that may be deleted soon, too."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_ckpt_provider.guards.kafka import KafkaGuard
from airflow_ckpt_provider.guards.kafka_verdicts import EARLIEST, LATEST
from airflow_ckpt_provider.guards.query import from_kafka_offsets, guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.guards.report import GuardReport
from airflow_ckpt_provider.verdict import Verdict
from tests.support.kafka_logs import HOUR, KafkaLogs

WEEK_H = 7 * 24
#: Five minutes from its end, and young.
ABOUT_TO_GO, YOUNG = [WEEK_H - 1 / 12] * 100, [0.1] * 10
READ = {"orders": {"0": 10}}


def ask(cluster: KafkaLogs, offsets: Any = None, **settings: Any) -> GuardReport:
    told = GuardSettings(**settings, options={"kafka": {"options": {"0": {"subscribePattern": ".*"}}}})
    return guard_query(from_kafka_offsets(offsets or READ), told, guards=[KafkaGuard(told, cluster)])


@pytest.mark.parametrize("new", [("orders", 1), ("returns", 0)], ids=["partition", "topic of a pattern"])
class TestNew:
    def test_has_a_time_to_loss(self, new: tuple[str, int]) -> None:
        """Seven days were left, as of the partition that is read to its end."""
        found = ask(KafkaLogs({("orders", 0): YOUNG, new: ABOUT_TO_GO}))
        assert found.verdict is Verdict.SAFE
        assert found.seconds_left == pytest.approx(300, abs=10)

    def test_is_asked_whether_it_outlives_the_downtime(self, new: tuple[str, int]) -> None:
        found = ask(KafkaLogs({("orders", 0): YOUNG, new: ABOUT_TO_GO}), max_downtime=86_400.0)
        assert found.verdict is Verdict.WILL_FAIL
        needed = found.sources[0].facts["topics"][new[0]]["needed_retention_ms"]
        assert needed == (WEEK_H + 24) * HOUR

    def test_that_has_lost_its_beginning(self, new: tuple[str, int]) -> None:
        cluster = KafkaLogs({("orders", 0): YOUNG, new: ABOUT_TO_GO})
        cluster.trim(new, 3)
        found = ask(cluster)
        assert (found.verdict, found.lost, found.seconds_left) == (Verdict.WILL_FAIL, 3, 0.0)

    def test_that_is_empty(self, new: tuple[str, int]) -> None:
        assert ask(KafkaLogs({("orders", 0): YOUNG, new: []}), max_downtime=86_400.0).verdict is Verdict.SAFE

    def test_that_is_not_read_in_time(self, new: tuple[str, int]) -> None:
        cluster = KafkaLogs({("orders", 0): YOUNG, new: ABOUT_TO_GO})
        cluster.slow = {new}
        assert ask(cluster).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("word", "left"), [(EARLIEST, 300), (LATEST, WEEK_H * 3600)])
def test_sparks_own_words_for_offsets_have_a_time_too(word: int, left: float) -> None:
    found = ask(KafkaLogs({("orders", 0): ABOUT_TO_GO}), {"orders": {"0": word}})
    assert (found.verdict, found.seconds_left) == (Verdict.SAFE, pytest.approx(left, abs=10))
