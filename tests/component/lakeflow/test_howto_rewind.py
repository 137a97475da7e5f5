"""The example of docs/howto/lakeflow-rewind.md, and what the rewind is for: wrong rows, the right code, and back."""

from __future__ import annotations

from datetime import timedelta
from zoneinfo import ZoneInfo

from airflow_ckpt_provider.operators.pipeline_rewind import PipelineRewindOperator
from tests.fake_databricks import FakeWorkspace
from tests.fake_databricks.samples import orders
from tests.support.attempts import Task


def test_the_howto(workspace: FakeWorkspace) -> None:
    workspace.clock.advance(hours=-5)
    orders(workspace, pipeline_id="orders", channel="PREVIEW", configuration={"pipelines.rewind.betaEnabled": "true"})
    # A wall clock's time without a date on which the clocks are changed: seconds do not matter.
    when = (workspace.clock.now() + timedelta(minutes=5)).astimezone(ZoneInfo("Asia/Kolkata"))
    deployed = when.strftime("%Y-%m-%dT%H:%M:%S")
    workspace.clock.advance(hours=5)
    for number in range(4):
        workspace.sources["orders-events"].add(workspace.clock.now(), id=f"new{number}", value="1")
    pipeline = workspace.pipelines["orders"]
    pipeline.start({})
    pipeline.advance()
    workspace.tables.execute("UPDATE main.orders.silver SET value = 'wrong' WHERE id LIKE 'new%'")

    def make() -> PipelineRewindOperator:
        # [START howto_lakeflow_rewind]
        rewind = PipelineRewindOperator(
            task_id="rewind",
            pipeline_id="orders",
            to=deployed,
            timezone="Asia/Kolkata",
            datasets=["main.orders.bronze"],  # and, for cascade is the default, what reads it
            mode="apply",
            on_active_update="stop",
        )
        # [END howto_lakeflow_rewind]
        rewind.poll_interval = 0.001
        return rewind

    result = Task(make).attempt()
    assert {step: update["state"] for step, update in result["updates"].items()} == {
        "dry_run": "COMPLETED",
        "rewind": "COMPLETED",
        "replay": "COMPLETED",
    }
    rows = workspace.rows("main.orders.silver")
    assert (len(rows), sum(row["value"] == "wrong" for row in rows)) == (24, 0)
