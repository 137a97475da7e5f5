"""The report of a rewind: a run that leaves the stream down is a failed one, also where no task has failed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.sealing import seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.operators.rewind_report import RewindReportOperator
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.one_checkpoint import NEWEST
from tests.support.operator_runs import Run
from tests.support.stopped import ACCEPTED, STOPPED

SINK = Sink(kind="foreachBatch")


@pytest.fixture
def orders(checkpoint: Path) -> Location:
    return open_location(str(checkpoint))


@pytest.fixture
def kept(repository: Path) -> Repository:
    return Repository.open_or_create(open_location(str(repository)))


def report(orders: Location, kept: Repository, run: Run, states: dict[str, str]) -> dict[str, Any]:
    """What it returns; or what it leaves behind where it fails, as ``failure``."""
    context = run("report")
    ti = context["ti"]
    ti.get_task_states = lambda dag_id, run_ids: {ti.run_id: states}
    context["dag_run"] = SimpleNamespace(start_date=datetime(2020, 1, 1, tzinfo=UTC))
    task = RewindReportOperator(task_id="report", checkpoint=orders.uri, repository=kept.location.uri)
    try:
        return task.execute(context)
    except AirflowFailException:
        found: dict[str, Any] = context["pushed"]["report"]
        return {**found, "failure": True}


def plan(orders: Location) -> Any:
    return plan_rewind(
        Checkpoint.at(orders), Specifier("to_batch", str(NEWEST - 1)), sink=SINK, sink_exit=SinkPolicy.ACCEPT, guards=()
    )


def test_nothing_was_begun(orders: Location, kept: Repository, run: Run) -> None:
    found = report(orders, kept, run, {"plan": "success", "approve": "skipped", "rewind": "skipped"})
    assert (found["kind"], "failure" in found) == ("untouched", False)


@pytest.mark.parametrize("start", ["skipped", "success"])
def test_rewound(orders: Location, kept: Repository, run: Run, start: str) -> None:
    apply_rewind(plan(orders), Checkpoint.at(orders), kept, sink=SINK, rest=STOPPED, accept=ACCEPTED)
    found = report(orders, kept, run, {"rewind": "success", "start_stream": start})
    assert (found["kind"], "failure" in found) == ("rewound", start == "skipped")
    assert found["markdown"].startswith("# Stopped in start_stream" if start == "skipped" else "# Ended")


def test_sealed_half_way(orders: Location, kept: Repository, run: Run) -> None:
    """The task was marked as successful, and its worker was gone."""
    made = plan(orders)
    kept.keep_plan(made.plan_id, made.document())
    seal(Checkpoint.at(orders), reason="rewind", plan_id=made.plan_id)
    found = report(orders, kept, run, {"rewind": "success", "start_stream": "success"})
    assert (found["kind"], "failure" in found) == ("under_way", True)
    assert found["markdown"].startswith("# Half-way")
