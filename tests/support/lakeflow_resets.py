"""A pipeline that has to be reset, and the operator that does it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from tests.fake_databricks import FakeWorkspace, samples
from tests.fake_databricks.pipelines import Pipeline

FLOW = samples.INCREMENTAL


TABLE = "main.customers.customers"


#: The last of the six files that were read; what landed later is new.
READ_UP_TO = "2026-08-20T05:00:00Z"


POSITION = {FLOW: {"options": {"modifiedAfter": READ_UP_TO}, "carried_by": {"modifiedAfter": "modifiedAfter"}}}


either_way = pytest.mark.parametrize("deferrable", [False, True], ids=["waiting", "deferred"])


def reset(pipeline: Pipeline | str, **fields: Any) -> ResetCheckpointOperator:
    given = {"pipeline_id": pipeline if isinstance(pipeline, str) else pipeline.pipeline_id}
    about: dict[str, Any] = {"flows": [FLOW], "mode": "apply", "poll_interval": 0.001, "starting_positions": POSITION}
    about |= {"sources": {FLOW: ["/landing/customers"]}}
    about |= {"configuration": {"modifiedAfter": READ_UP_TO}, "flows_run_for": 0.0}
    about |= {} if "pipeline_name" in fields else given
    return ResetCheckpointOperator(task_id="reset", **{**about, **fields})


@pytest.fixture
def broken(workspace: FakeWorkspace) -> Pipeline:
    """The vendor's example: ``dropDuplicates`` was taken out, two new files have landed, and the flow fails on its checkpoint."""
    pipeline = samples.customers(workspace)
    samples.remove_drop_duplicates(pipeline)
    samples.land(workspace.sources["/landing/customers"], 2)
    pipeline.start({})
    pipeline.advance()
    assert pipeline.updates[-1].state == "FAILED"
    return pipeline


def ids(workspace: FakeWorkspace) -> list[str]:
    return sorted(str(row["id"]) for row in workspace.rows(TABLE))


ALL = sorted([*(f"c{n:03d}" for n in range(8)), *(f"old{n}" for n in range(3))])
