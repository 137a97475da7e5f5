"""Flows of Spark Declarative Pipelines with the real ``spark-pipelines``: reset and rolled back, the table untouched."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.flows.flow import flows_of
from airflow_ckpt_provider.recovery.flows.reset import apply_flow_reset, plan_flow_reset
from airflow_ckpt_provider.recovery.flows.restore import apply_flow_restore, plan_flow_restore
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.samples.spark_versions import python_with
from tests.support.declarative_pipeline import Pipeline
from tests.support.stopped import ACCEPTED, STOPPED

pytestmark = pytest.mark.other_spark


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(python_with("4.2.1", "pipelines"), tmp_path / "pipeline")


def test_reset_and_rolled_back(pipeline: Pipeline, tmp_path: Path) -> None:
    """One story, because each run of a pipeline takes half a minute."""
    pipeline.put(3)
    pipeline.run()
    assert {flow.name: (flow.target, flow.live) for flow in flows_of(pipeline.storage)} == {
        "first": ("spark_catalog.default.first", 0),
        "appended": ("spark_catalog.default.second", 0),
        "third": ("spark_catalog.default.third", 0),
    }
    assert all(flow.progress and flow.progress.latest_committed == 2 for flow in flows_of(pipeline.storage))
    repository = Repository.open_or_create(open_location(str(tmp_path / "backups")))
    backup = create_backup(Checkpoint.at(pipeline.flow("appended").version(0)), repository, name="appended")
    pipeline.put()
    pipeline.run()
    assert [pipeline.rows(table) for table in ("first", "second", "third")] == [[0, 1, 2, 3]] * 3

    # From the start again, with batch numbers that the table's log does not know yet.
    plan = plan_flow_reset(pipeline.flow("first"), sink=pipeline.sink("first"), continue_numbers=True)
    assert (plan.version, plan.verdict, plan.reset.cutover.doubled) == (1, Verdict.WILL_DUPLICATE, {"batches": 4})
    apply_flow_reset(plan, accept=ACCEPTED, rest=STOPPED)
    # From the kept position.
    plan = plan_flow_reset(
        pipeline.flow("appended"), keep_position=True, sink=pipeline.sink("second"), continue_numbers=True
    )
    assert (plan.verdict, plan.reset.start) == (Verdict.SAFE, 3)
    outcome = apply_flow_reset(plan, rest=STOPPED)
    assert plan_flow_reset(
        pipeline.flow("appended"), keep_position=True, sink=pipeline.sink("second"), continue_numbers=True
    ).already_done
    # The control: from the start again as an empty directory would have it.
    plan = plan_flow_reset(pipeline.flow("third"), sink=pipeline.sink("third"))
    assert (plan.verdict, plan.reset.cutover.skipped) == (Verdict.WILL_SKIP, 4)
    apply_flow_reset(plan, accept=ACCEPTED, rest=STOPPED)

    pipeline.put()
    pipeline.run()
    assert pipeline.rows("first") == sorted([0, 1, 2, 3, *range(5)])
    assert pipeline.rows("second") == list(range(5))
    # Batches 0 to 3 of the new checkpoint were skipped silently, only the fifth was written.
    assert pipeline.rows("third") == list(range(5))
    live = pipeline.flow("appended")
    assert live.progress
    assert (live.live, live.progress.query_id, live.progress.latest_committed) == (1, outcome.query_id, 4)
    assert Checkpoint.at(live.version(0)).progress().latest_committed == 3

    # Rolled back: the sink keeps what it has, and the replay continues after it.
    restore = plan_flow_restore(live, repository, backup.manifest, sink=pipeline.sink("second"))
    assert (restore.version, restore.verdict) == (2, Verdict.WILL_SKIP)
    apply_flow_restore(restore, accept=ACCEPTED, rest=STOPPED)
    assert plan_flow_restore(pipeline.flow("appended"), repository, backup.manifest).already_done
    pipeline.put()
    pipeline.run()
    assert pipeline.rows("second") == list(range(6))
    live = pipeline.flow("appended")
    assert live.progress
    assert (live.live, live.progress.latest_committed) == (2, 5)
