"""Topics that are gone, or were: fatal where the query names them, lost data where a pattern does."""

from __future__ import annotations

import pytest

from airflow_ckpt_provider.guards.kafka_log import LogEnds, Topic
from airflow_ckpt_provider.guards.kafka_verdicts import Seen, judge_partitions, reasons
from airflow_ckpt_provider.verdict import Verdict

GONE = Seen(now_ms=0, topics={}, ends={})


@pytest.mark.parametrize(
    ("by_pattern", "if_gone", "verdict"),
    [
        (False, Verdict.WILL_FAIL, Verdict.WILL_FAIL),
        (False, Verdict.WILL_LOSE, Verdict.WILL_FAIL),
        (True, Verdict.WILL_FAIL, Verdict.WILL_FAIL),
        (True, Verdict.WILL_LOSE, Verdict.WILL_LOSE),
    ],
)
def test_a_topic_that_is_gone(by_pattern: bool, if_gone: Verdict, verdict: Verdict) -> None:
    found = judge_partitions({("orders", 0): 7}, None, GONE, if_gone=if_gone, by_pattern=by_pattern)
    assert [(p.verdict, p.lost) for p in found] == [(verdict, None)]
    ((_, words),) = reasons(found, GONE, if_gone=if_gone)
    assert ("the query fails at its start" in words) is (verdict is Verdict.WILL_FAIL)


@pytest.mark.parametrize("verdict", [Verdict.WILL_FAIL, Verdict.WILL_DUPLICATE])
def test_a_topic_that_is_back_after_the_next_batch_was_planned_without_it(verdict: Verdict) -> None:
    """It was SAFE. Spark logs what it plans before it sees that a partition is gone, and plans the same again."""
    topics = {name: Topic(name, None, (0,)) for name in ("orders", "clicks")}
    there = Seen(now_ms=0, topics=topics, ends={(name, 0): LogEnds(0, 20, 20) for name in topics})
    if_gone = verdict if verdict is Verdict.WILL_FAIL else Verdict.WILL_LOSE
    start, planned = {("orders", 0): 7, ("clicks", 0): 7}, {("clicks", 0): 9}
    found = judge_partitions(start, planned, there, if_gone=if_gone)
    assert {p.partition: p.verdict for p in found} == {("orders", 0): verdict, ("clicks", 0): Verdict.SAFE}
    ((_, words),) = reasons(found, there, if_gone=if_gone)
    assert "topic orders: the batch to be run again was planned without partition 0" in words
    assert ("Spark stops again" in words) is (verdict is Verdict.WILL_FAIL)


@pytest.mark.parametrize("verdict", [Verdict.WILL_FAIL, Verdict.UNKNOWN])
def test_a_log_that_was_shorter_when_the_next_batch_was_planned(verdict: Verdict) -> None:
    """It was SAFE once the log had grown again."""
    there = Seen(now_ms=0, topics={"orders": Topic("orders", None, (0,))}, ends={("orders", 0): LogEnds(0, 20, 20)})
    if_gone = verdict if verdict is Verdict.WILL_FAIL else Verdict.WILL_LOSE
    (found,) = judge_partitions({("orders", 0): 7}, {("orders", 0): 5}, there, if_gone=if_gone)
    assert found.verdict is verdict
    ((_, words),) = reasons([found], there, if_gone=if_gone)
    assert "ended before the offsets that were read" in words
    (same,) = judge_partitions({("orders", 0): 7}, {("orders", 0): 7}, there, if_gone=if_gone)
    assert same.verdict is Verdict.SAFE
