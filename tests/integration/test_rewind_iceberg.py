"""A rewind on real Spark and real Iceberg: in the end the table has every row once, and without the rollback it has not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.rewind.replay_proof import prove_replay
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.verdict import Verdict
from tests.support.every_run import of_these
from tests.support.iceberg_story import IcebergStory
from tests.support.rest_catalog import running_rest_catalog
from tests.support.stopped import STOPPED

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(params=of_these(["hadoop", "sql"], "sql"))
def story(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[IcebergStory]:
    with IcebergStory(tmp_path, request.param) as found:
        yield found


@pytest.mark.stores
def test_row_exact_by_a_rest_catalog(tmp_path: Path) -> None:
    with running_rest_catalog(tmp_path) as uri, IcebergStory(tmp_path, "rest", uri) as story:
        test_row_exact_after_a_bug(story)


def test_row_exact_after_a_bug(story: IcebergStory) -> None:
    """Four right batches, two wrong ones; back by two, taken back, back again; all five files left come in one batch."""
    story.run(4)
    before = story.run(2, faulty=True)
    first = story.query_id
    plan = story.rewind("shift_by", -2)
    assert plan.sink.verdict is Verdict.WILL_SKIP
    assert plan.sink_verdict is Verdict.SAFE
    assert plan.undo
    assert plan.undo["possible"]
    undo(story.place, story.repository, sink=story.sink, rest=STOPPED)
    assert story.spark() == before
    story.rewind("shift_by", -2)
    assert story.query_id == first
    rows = story.run(3, at_once=100)
    assert len(rows) == 90
    assert rows == story.right
    proof = prove_replay(Checkpoint.at(story.place), 3, sink=story.sink)
    assert proof.ok, proof.findings
    assert proof.rows == {4: 50}


@pytest.mark.slow
def test_the_control_loses_thirty_rows(story: IcebergStory) -> None:
    """The checkpoint rewound, and the table left as it is: what the plan foretold."""
    story.run(6)
    plan = story.rewind("shift_by", -2, policy=SinkPolicy.ACCEPT)
    assert plan.sink_verdict is Verdict.WILL_SKIP
    assert len(story.run(3, at_once=100)) == 60


@pytest.mark.slow
@pytest.mark.parametrize("story", ["hadoop"], indirect=True)
def test_over_a_compaction_and_after_expiry(story: IcebergStory) -> None:
    """Compacted: the rewind is row-exact. Expired besides: refused when it is planned, and nothing was changed."""
    story.run(4)
    story.spark(
        sql="CALL lake.system.rewrite_data_files(table => 'sales.orders', options => map('rewrite-all','true'))"
    )
    story.run(2, faulty=True)
    story.rewind("to_batch", 3)
    before = story.run(1)
    assert before == story.right
    story.spark(sql="CALL lake.system.expire_snapshots(table => 'sales.orders', older_than => now(), retain_last => 1)")
    with pytest.raises(RefusedError, match="older snapshots of the table have expired"):
        story.plan("shift_by", -2)
    assert story.spark() == before
