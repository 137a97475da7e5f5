"""A topic that is gone: fatal where the query names it, lost data where a pattern does."""

from __future__ import annotations

import pytest

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
