"""PipelineRewindOperator: three updates, and every reason why the workspace refuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.lakeflow.rewind_refusals import REFUSALS
from airflow_ckpt_provider.operators.pipeline_rewind import PipelineRewindOperator
from airflow_ckpt_provider.sensors.pipeline_update import PipelineUpdateSensor
from tests.fake_databricks import FakeWorkspace, samples
from tests.fake_databricks.pipelines import Pipeline
from tests.support.attempts import Killed, Task

TABLE = "main.customers.customers"
ALL = sorted([*(f"c{n:03d}" for n in range(8)), *(f"old{n}" for n in range(3))])


def rewind(pipeline: Pipeline, **fields: Any) -> PipelineRewindOperator:
    to = pipeline.points.points[0].time + timedelta(minutes=1)
    about: dict[str, Any] = {"pipeline_id": pipeline.pipeline_id, "to": to.isoformat(), "mode": "apply"}
    return PipelineRewindOperator(task_id="rewind", **{**about, "poll_interval": 0.001, **fields})


@pytest.fixture
def pipeline(workspace: FakeWorkspace) -> Pipeline:
    """A first update five hours ago, a second one now, which read two more files."""
    workspace.clock.advance(hours=-5)
    found = samples.customers(workspace, channel="PREVIEW", configuration={"pipelines.rewind.betaEnabled": "true"})
    workspace.clock.advance(hours=5)
    samples.land(workspace.sources["/landing/customers"], 2)
    found.start({})
    found.advance()
    return found


def ids(workspace: FakeWorkspace) -> list[str]:
    return sorted(str(row["id"]) for row in workspace.rows(TABLE))


@pytest.mark.parametrize("deferrable", [False, True], ids=["waiting", "deferred"])
def test_dry_run_then_rewind_then_replay(workspace: FakeWorkspace, pipeline: Pipeline, deferrable: bool) -> None:
    rows_when_rewound: list[list[str]] = []
    begin = pipeline._begin

    def seen(update: Any) -> Any:
        rows_when_rewound.append(ids(workspace))
        return begin(update)

    pipeline._begin = seen  # type: ignore[method-assign]
    result = Task(lambda: rewind(pipeline, deferrable=deferrable)).attempt()
    asked = [update.body.get("rewind_spec", {}).get("dry_run") for update in pipeline.updates[2:]]
    assert asked == [True, False, None]
    assert [len(rows) for rows in rows_when_rewound] == [11, 11, 9]
    assert ids(workspace) == ALL
    assert list(result["updates"]) == ["dry_run", "rewind", "replay"]
    assert {step["state"] for step in result["updates"].values()} == {"COMPLETED"}
    assert result["update_id"] == pipeline.updates[-1].update_id


def test_without_replay(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    result = Task(lambda: rewind(pipeline, replay=False)).attempt()
    assert list(result["updates"]) == ["dry_run", "rewind"]
    assert len(ids(workspace)) == 9
    assert "a rewind does not start the replay" in result["markdown"]


def test_a_plan_sends_nothing_but_get(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    workspace.requests.clear()
    datasets = ["customers", {"identifier": "main.customers.other", "cascade": False, "reset_checkpoints": False}]
    result = Task(lambda: rewind(pipeline, mode="plan", datasets=datasets)).attempt()
    assert {request.method for request in workspace.requests} == {"GET"}
    assert result["plan"]["verdict"] == "SAFE"
    bodies = [call["body"] for call in result["plan"]["calls"]]
    assert [body.get("rewind_spec", {}).get("dry_run") for body in bodies] == [True, False, None]
    assert bodies[0]["rewind_spec"]["datasets"] == [
        {"identifier": "customers", "cascade": True, "reset_checkpoints": True},
        {"identifier": "main.customers.other", "cascade": False, "reset_checkpoints": False},
    ]
    assert bodies[0]["rewind_spec"]["rewind_timestamp"].endswith("Z")
    assert "without reset_checkpoints its flows read on where they stand: a gap" in result["markdown"]


def test_preconditions(workspace: FakeWorkspace) -> None:
    pipeline = workspace.add_pipeline("new", configuration={"pipelines.realTimeMode": "true"})
    old = (datetime.now(UTC) - timedelta(days=9)).isoformat()
    made = {"pipeline_id": pipeline.pipeline_id, "mode": "plan"}
    plan = Task(lambda: PipelineRewindOperator(task_id="t", to=old, **made)).attempt()["plan"]
    assert plan["verdict"] == "WILL_FAIL"
    reasons = " ".join(plan["reasons"])
    for words in (
        "channel is CURRENT: rewinding needs PREVIEW",
        "has not pipelines.rewind.betaEnabled=true",
        "more than 7 days ago",
        "no update was completed yet",
        "real-time mode, which cannot be rewound",
    ):
        assert words in reasons
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    plan = Task(lambda: PipelineRewindOperator(task_id="t", to=later, **made)).attempt()["plan"]
    assert "lies in the future" in " ".join(plan["reasons"])
    with pytest.raises(AirflowFailException, match="the verdict is WILL_FAIL"):
        Task(lambda: PipelineRewindOperator(task_id="t", to=later, **{**made, "mode": "apply"})).attempt()


def test_before_the_first_update(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    early = (pipeline.points.points[0].time - timedelta(hours=2)).isoformat()
    with pytest.raises(AirflowFailException, match="the verdict is UNKNOWN: the oldest completed update"):
        Task(lambda: rewind(pipeline, to=early)).attempt()
    with pytest.raises(AirflowFailException, match="There is no rewind point at or before"):
        Task(lambda: rewind(pipeline, to=early, accept="UNKNOWN"), run_id="2").attempt()
    assert len(ids(workspace)) == 11  # the dry run said so before anything was changed


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if i % 4 == 0 else pytest.mark.slow) for i, name in enumerate(REFUSALS)]
)
def test_every_refusal_is_explained(workspace: FakeWorkspace, pipeline: Pipeline, name: str) -> None:
    pipeline.points.refuse = name
    with pytest.raises(AirflowFailException) as failed:
        Task(lambda: rewind(pipeline)).attempt()
    assert f"{name}: {REFUSALS[name].cause}\nHINT: {REFUSALS[name].way_out}" in str(failed.value)
    assert len(pipeline.updates) == 3
    assert len(ids(workspace)) == 11
    last = pipeline.updates[-1].update_id
    waits = {"pipeline_id": pipeline.pipeline_id, "update_id": last, "poll_interval": 0.001}
    with pytest.raises(AirflowFailException) as seen:
        Task(lambda: PipelineUpdateSensor(task_id="wait", **waits)).attempt()
    assert f"{name}: {REFUSALS[name].cause}\nHINT: {REFUSALS[name].way_out}" in str(seen.value)


def test_killed_anywhere(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    task = Task(lambda: rewind(pipeline))
    assert task.store
    left = [0]

    def kill() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    task.store.after = kill
    deaths = 0
    while True:
        left[0] = deaths
        try:
            task.attempt()
        except Killed:
            deaths += 1
        else:
            break
    assert deaths > 5
    assert len(pipeline.updates) == 5
    assert ids(workspace) == ALL


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"to": "yesterday"}, "to is 'yesterday'"),
        ({"to": ""}, "to is empty"),
        ({"to": "2026-08-21T12:00:00"}, "not said in which time zone"),
        ({"to": "2026-08-21T12:00:00", "timezone": "Mars"}, "which is no time zone"),
        ({"datasets": [{"cascade": True}]}, "which names none"),
    ],
)
def test_bad_input(workspace: FakeWorkspace, pipeline: Pipeline, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(AirflowFailException, match=words):
        Task(lambda: rewind(pipeline, **fields)).attempt()
    assert len(pipeline.updates) == 2
