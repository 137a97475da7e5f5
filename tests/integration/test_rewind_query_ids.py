"""A stream on real Spark whose query id was changed: a rewind past the change is row-exact; by the newest id alone it doubles."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.recovery.rewind.replay_proof import prove_replay
from airflow_ckpt_provider.sinks.delta_history import read_table_history
from airflow_ckpt_provider.sinks.delta_rollback import TableTarget, roll_back_table
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.rewinding import Story, difference
from tests.support.stopped import STOPPED, wait_until_quiet
from tests.support.streams.spark_host import SparkHost

pytestmark = pytest.mark.spark


@pytest.fixture
def story(spark_host: SparkHost, tmp_path: Path) -> Story:
    """Three right batches and a wrong one under the first id; wrong ones under the next."""
    story = Story(spark_host, tmp_path, "dedup_to_delta")
    story.run(3)
    story.right = story.newest  # type: ignore[attr-defined]
    story.run(1, faulty=True)
    new_query_id(story)
    story.run(2, faulty=True)
    return story


def new_query_id(story: Story) -> None:
    wait_until_quiet(story.place, quiet_for=1.0, at_most=60)  # Spark's maintenance may still be at work
    plan = plan_reset(story.place, ResetWay.NEW_QUERY_ID, sink=story.sink)
    assert plan.verdict is Verdict.SAFE
    apply_reset(plan, story.place, story.repository, rest=STOPPED)


@pytest.mark.slow
def test_past_one_change_and_past_two(story: Story) -> None:
    right: int = story.right  # type: ignore[attr-defined]
    assert story.plan("to_batch", right, sink_exit=None).sink.verdict is Verdict.WILL_SKIP
    story.rewind("to_batch", right)
    story.go_on()
    assert prove_replay(story.ckpt, right, sink=story.sink).ok
    assert difference(story.reference(), story.rows()) == (0, 0)
    new_query_id(story)
    story.run(1, faulty=True)
    plan = story.plan("to_batch", right)
    assert len(plan.sink.query_ids) == 3
    story.rewind("to_batch", right)
    story.go_on()
    assert prove_replay(story.ckpt, right, sink=story.sink).ok
    assert difference(story.reference(), story.rows()) == (0, 0)


@pytest.mark.slow
def test_to_a_backup_of_the_older_id(spark_host: SparkHost, tmp_path: Path) -> None:
    story = Story(spark_host, tmp_path, "dedup_to_delta")
    story.run(3)
    backup = create_backup(story.ckpt, story.repository)
    new_query_id(story)
    story.run(2, faulty=True)
    plan = story.plan("to_batch", backup.batch_id, sink_exit=None, backup=backup.backup_id)
    assert plan.sink.verdict is Verdict.WILL_DUPLICATE
    story.rewind("to_batch", backup.batch_id, backup=backup.backup_id)
    story.run(1)
    assert difference(story.reference(), story.rows()) == (0, 0)


@pytest.mark.slow
def test_control_by_the_newest_id_alone(story: Story) -> None:
    """Without the records the rewind is refused. What it did before: the table cuts back to the newest id's first batch."""
    right: int = story.right  # type: ignore[attr-defined]
    empty = Repository.open_or_create(open_location(str(story.root / "empty"))).location
    with pytest.raises(RefusedError, match="no known id of the query explains"):
        story.plan("to_batch", right, repository=empty)
    story.rewind("to_batch", right, sink_exit="accept")
    newest = story.ckpt.progress().query_id
    assert newest
    place = story.sink.place
    assert place
    history = read_table_history(place)
    first = next(c.version for c in history.commits if newest in c.txns)
    target = TableTarget(place, first - 1, newest, right, "by-hand", {})
    roll_back_table(target, expected=history.newest)
    story.go_on()
    older = [b for c in history.commits[:first] for b in c.txns.values() if b > right]
    assert older
    proof = prove_replay(story.ckpt, right, sink=story.sink)
    assert proof.findings == tuple(f"the table has 2 commits of batch {b}: its rows are doubled" for b in older)
    _, wrong = difference(story.reference(), story.rows())
    assert wrong > 0
