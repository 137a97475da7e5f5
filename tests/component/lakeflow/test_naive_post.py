"""Control: the one POST of the vendor's notebook, without the operator. What the operator prevents really happens."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from airflow.providers.databricks.exceptions import DatabricksApiError
from airflow.providers.databricks.hooks.databricks import DatabricksHook

from tests.fake_databricks import FakeWorkspace, Pipeline
from tests.fake_databricks.samples import INCREMENTAL, customers, land, remove_drop_duplicates


@pytest.fixture
def broken(workspace: FakeWorkspace) -> Pipeline:
    pipeline = customers(workspace)
    land(workspace.sources["/landing/customers"], 2)
    remove_drop_duplicates(pipeline)
    pipeline.start({})
    pipeline.advance()
    return pipeline


def post(pipeline: Pipeline, **body: Any) -> None:
    hook = DatabricksHook(retry_limit=2, retry_delay=0.01)
    hook._do_api_call(("POST", f"2.0/pipelines/{pipeline.pipeline_id}/updates"), body)
    pipeline.advance()


def counted(workspace: FakeWorkspace) -> tuple[int, int]:
    """Rows too many, and customers of eleven that are missing."""
    found = Counter(row["id"] for row in workspace.rows("main.customers.customers"))
    return sum(found.values()) - len(found), 11 - len(found)


def test_on_a_running_pipeline_it_is_refused(workspace: FakeWorkspace, broken: Pipeline) -> None:
    broken.start({})
    with pytest.raises(DatabricksApiError, match="An active update") as error:
        post(broken, reset_checkpoint_selection=[INCREMENTAL])
    assert error.value.http_status_code == 409
    assert broken.flows[INCREMENTAL].resets == 0


@pytest.mark.parametrize(("unknown", "state"), [("fail", "FAILED"), ("ignore", "FAILED")])
def test_a_wrong_name_resets_nothing(workspace: FakeWorkspace, broken: Pipeline, unknown: Any, state: str) -> None:
    broken.unknown_flows = unknown
    post(broken, reset_checkpoint_selection=["customers_incremental"])
    assert broken.updates[-1].state == state
    assert broken.flows[INCREMENTAL].resets == 0


@pytest.mark.parametrize(
    ("configuration", "doubled", "lost"),
    [({}, 6, 0), ({"modifiedAfter": "2026-08-20T02:00:00Z"}, 3, 0), ({"modifiedAfter": "2026-08-20T06:30:00Z"}, 0, 1)],
)
def test_where_it_begins_decides_about_the_rows(
    workspace: FakeWorkspace, broken: Pipeline, configuration: dict[str, str], doubled: int, lost: int
) -> None:
    broken.configuration.update(configuration)
    post(broken, reset_checkpoint_selection=[INCREMENTAL])
    assert broken.updates[-1].state == "COMPLETED"
    assert counted(workspace) == (doubled, lost)


def test_a_lost_answer_makes_it_reset_twice(workspace: FakeWorkspace, broken: Pipeline) -> None:
    """Airflow's own hook sends a POST again whose answer was lost; here the first update had time to end."""
    workspace.fault("POST", "/updates$", status=503, took_effect=True, then=broken.advance)
    post(broken, reset_checkpoint_selection=[INCREMENTAL])
    assert broken.flows[INCREMENTAL].resets == 2
    assert counted(workspace) == (14, 0)


def test_a_full_refresh_wipes_what_the_source_no_longer_has(workspace: FakeWorkspace, broken: Pipeline) -> None:
    workspace.sources["/landing/customers"].expire_before(4)
    post(broken, full_refresh_selection=["customers"])
    assert counted(workspace) == (0, 4)
