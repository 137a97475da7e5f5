"""Random histories of Iceberg tables."""

from __future__ import annotations

from collections import Counter

from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.verdict import Verdict
from tests.support.iceberg_history import IcebergHistory
from tests.support.sink_model import rows_after
from tests.support.sink_recovery import expect_true, recover
from tests.support.stopped import STOPPED


def happen(history: IcebergHistory, count: Counter[str]) -> None:
    """Let things happen; in the end recover, or go back without the table and see what the verdict was worth."""
    chance, told = history.chance, history.told
    told.append(f"ran to {history.run(chance.randint(2, 4))[-1]}")
    for _ in range(chance.randint(3, 8)):
        what = chance.choices(["others", "run", "faulty", "recover"], [6, 2, 1, 2])[0]
        if what == "others":
            told.append(history.others())
        elif what == "recover":
            recover(history, count)
        else:
            history.run(chance.randint(1, 2), faulty=what == "faulty")
            told.append(f"{what} to {history.newest}")
        count[told[-1].partition(" (")[0]] += 1
        assert history.held() == rows_after(history.line), f"after {told[-1]}: the model is wrong"
    if chance.random() < 0.4:
        replay_without_the_table(history, count)
    else:
        recover(history, count)


def replay_without_the_table(history: IcebergHistory, count: Counter[str]) -> None:
    """The checkpoint is rewound and the table stays: the verdict is what Spark then does."""
    newest = history.newest
    target = history.chance.randint(max(0, newest - 3), newest)
    held = {event.batch for event in history.line}
    plan = history.plan(target, SinkPolicy.ACCEPT)
    history.told.append(f"without the table to {target}: {plan.sink.verdict.value}")
    accept = [risk.word for risk in plan.risks]
    apply_rewind(plan, history.ckpt, history.repository, sink=history.sink, accept=accept, rest=STOPPED)
    before = history.line
    written = set(history.run(newest - target))
    count[f"replayed: {plan.sink.verdict.value}"] += 1
    if history.by_merge:
        assert plan.sink.verdict is Verdict.UNKNOWN or target == newest
        return
    assert rows_after(history.line) == history.held(), "the model is wrong"
    history.line = before
    replayed = set(range(target + 1, newest + 1))
    expect_true(history, plan.sink, target, replayed - written, written & held & replayed)
