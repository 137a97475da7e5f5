"""A rewind of a stream that writes two Delta tables in one foreachBatch, on real Spark: both are right in the end, or neither."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.replay_proof import prove_replay
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.rewinding import Story, difference, rows_of
from tests.support.stopped import STOPPED, wait_until_quiet
from tests.support.streams.spark_host import SparkHost

pytestmark = pytest.mark.spark

TABLES = ("all", "even")


class TwoTables(Story):
    """A stream with state, whose code writes all rows into one table and some into another."""

    def sinks(self, *names: str) -> list[Sink]:
        return [Sink(place=open_location(str(self.out / name)), app_id=name) for name in names]

    def plan_back(self, batch: int, *names: str) -> RewindPlan:
        to = Specifier("to_batch", str(batch))
        return plan_rewind(self.ckpt, to, sink=self.sinks(*names), sink_exit=SinkPolicy.ROLLBACK)

    def go_back(self, batch: int, *names: str) -> RewindPlan:
        wait_until_quiet(self.place, quiet_for=1.0, at_most=60)
        plan = self.plan_back(batch, *names)
        apply_rewind(plan, self.ckpt, self.repository, sink=self.sinks(*names), rest=STOPPED)
        return plan

    def tables(self) -> dict[str, Counter[str]]:
        return {name: rows_of(self.out / name) for name in TABLES}

    def right_tables(self) -> dict[str, Counter[str]]:
        out = self.root / "reference" / "out"
        checkpoint = self.root / "reference" / "ck"
        self.host.start(self.kind, source=self.source, checkpoint=checkpoint, out=out, available_now=True).finished()
        return {name: rows_of(out / name) for name in TABLES}


@pytest.fixture
def story(spark_host: SparkHost, tmp_path: Path) -> TwoTables:
    return TwoTables(spark_host, tmp_path, "dedup_to_two_tables")


@pytest.mark.slow
def test_both_are_row_exact_and_one_alone_is_not(story: TwoTables) -> None:
    """Four right batches, two wrong ones, back by two with both tables; undone, and again. Then the control: with one alone."""
    story.run(4)
    right = story.newest
    story.run(2, faulty=True)
    wrong = story.tables()
    plan = story.go_back(right, *TABLES)
    assert [sink.report.verdict for sink in plan.sinks] == [Verdict.WILL_SKIP] * 2
    assert plan.sink_verdict is Verdict.SAFE
    undo(story.place, story.repository, sink=story.sinks(*TABLES), rest=STOPPED)
    assert story.tables() == wrong
    story.go_back(right, *TABLES)
    assert story.newest == right
    story.run(1)
    reference = story.right_tables()
    assert {name: difference(reference[name], rows) for name, rows in story.tables().items()} == dict.fromkeys(
        TABLES, (0, 0)
    )
    proof = prove_replay(story.ckpt, right, sink=story.sinks(*TABLES))
    assert proof.ok, proof.findings

    right = story.newest
    story.run(2, faulty=True)
    control = story.go_back(right, "all")
    assert "Is this all of it?" in control.to_markdown()
    story.go_on()
    reference = story.right_tables()
    found = {name: difference(reference[name], rows) for name, rows in story.tables().items()}
    assert found["all"] == (0, 0)
    lost, wrong_rows = found["even"]
    assert lost or wrong_rows
