"""Controls of the matrix of failures: what the one POST of the vendor's notebook does to the rows, and a parameter to Python."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from airflow.providers.databricks.hooks.databricks import DatabricksHook

from tests.fake_databricks import FakeWorkspace
from tests.fake_databricks.failures import (
    FAILURES,
    FLOW,
    KINDS,
    LANGUAGES,
    LOST,
    MODES,
    OPERATOR,
    RECREATED,
    Broken,
    broken,
)
from tests.fake_databricks.sources import Kind
from tests.support.every_run import of_these

MATRIX = list(itertools.product(FAILURES, KINDS, LANGUAGES, MODES))
EVERY_RUN = (
    (RECREATED, "delta", "python", "continuous"),
    (OPERATOR, "files", "sql", "continuous"),
    (OPERATOR, "delta", "sql", "triggered"),
    (LOST, "kafka", "python", "triggered"),
)
#: What a reader without a position does: Kafka's begins at the end, the others read all that there is.
ALL_AGAIN, FROM_THE_END = (12, []), (0, ["n0", "n1", "n2"])
every_case = pytest.mark.parametrize(("failure", "kind", "language", "mode"), of_these(MATRIX, *EVERY_RUN))


def post(case: Broken, **body: Any) -> tuple[int, list[str]]:
    """The start that the vendor's notebook sends; rows too many and lost ids."""
    DatabricksHook()._do_api_call(
        ("POST", "2.0/pipelines/sales/updates"), {"reset_checkpoint_selection": [FLOW], **body}
    )
    case.pipeline.advance()
    if case.pipeline.active:
        case.pipeline.step()
    assert case.pipeline.flows["orders"].resets == 1
    assert case.pipeline.state in ("IDLE", "RUNNING")
    return case.counted()


@every_case
def test_without_a_position(workspace: FakeWorkspace, failure: str, kind: Kind, language: Any, mode: str) -> None:
    case = broken(workspace, failure, kind, language, mode)
    assert post(case) == (FROM_THE_END if kind == "kafka" else ALL_AGAIN)


@every_case
def test_a_parameter(workspace: FakeWorkspace, failure: str, kind: Kind, language: Any, mode: str) -> None:
    """The right position, as a parameter of the update: it reaches SQL, and Python does as without it."""
    case = broken(workspace, failure, kind, language, mode)
    without = FROM_THE_END if kind == "kafka" else ALL_AGAIN
    assert post(case, parameters={case.key: case.position}) == ((0, []) if language == "sql" else without)


@pytest.mark.parametrize("kind", of_these(KINDS, "kafka"))
def test_another_flow_of_the_table_is_not_touched(workspace: FakeWorkspace, kind: Kind) -> None:
    case = broken(workspace, LOST, kind, several=True)
    assert post(case) == (FROM_THE_END if kind == "kafka" else ALL_AGAIN)
    assert case.pipeline.flows["returns"].resets == 0


@pytest.mark.parametrize("each_listing", [True, False])
def test_a_parameter_of_one_update_is_gone_in_the_next(workspace: FakeWorkspace, each_listing: bool) -> None:
    """SQL reads the right position, and files that it left out may come back: so the plan is ``UNKNOWN``."""
    case = broken(workspace, LOST, "files", "sql")
    case.source.filters_each_listing = each_listing
    assert post(case, parameters={case.key: case.position}) == (0, [])
    case.pipeline.start({})
    case.pipeline.advance()
    assert case.counted() == (ALL_AGAIN if each_listing else (0, []))
