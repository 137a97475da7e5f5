"""A worker is suspended, its task's retry does all of it, and the worker wakes an hour later: nothing is done a second time."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.errors import ChangeRunningError
from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook
from airflow_ckpt_provider.operators.pipeline_refresh import PipelineRefreshOperator
from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from tests.fake_databricks import FakeWorkspace, samples
from tests.fake_databricks.pipelines import Pipeline
from tests.support.attempts import Task

FLOW, TABLE = samples.INCREMENTAL, "main.customers.customers"


def task_of(pipeline: Pipeline, kind: str, **more: Any) -> Task:
    about = {"task_id": "t", "pipeline_id": pipeline.pipeline_id, "mode": "apply", "poll_interval": 0.001, **more}
    if kind == "reset":
        return Task(lambda: ResetCheckpointOperator(**about, accept="UNKNOWN", flows=[FLOW]))
    guard = {"verdict": "SAFE", "reasons": []}
    return Task(lambda: PipelineRefreshOperator(**about, guard_report=guard, full_refresh_selection=["customers"]))


def begun(pipeline: Pipeline) -> list[str]:
    return [
        u.state for u in pipeline.updates if u.body.keys() & {"reset_checkpoint_selection", "full_refresh_selection"}
    ]


class Replaced(dict[str, str]):
    """What Airflow answers the id of an attempt after which another one has begun: that nothing is kept."""

    def __contains__(self, key: object) -> bool:
        return False


@pytest.mark.parametrize("kind", ["reset", "refresh"])
@pytest.mark.parametrize("when", ["in the plan", "before the note", "after the note", "after the note, and replaced"])
def test_it_sends_nothing(workspace: FakeWorkspace, monkeypatch: pytest.MonkeyPatch, kind: str, when: str) -> None:
    pipeline = samples.customers(workspace)
    task = task_of(pipeline, kind)
    store = task.store
    assert store

    where = "ask" if when == "in the plan" else "iter_updates"
    read, slept = getattr(DatabricksPipelinesHook, where), []

    def suspended() -> None:
        noted = "sent" in store.kept.get("pipeline_update", "")
        if not slept and noted == when.startswith("after the note"):
            slept.append(True)
            assert task.attempt()["state"] == "COMPLETED"
            workspace.clock.advance(hours=1)
            if when == "after the note, and replaced":
                store.kept = Replaced(store.kept)

    def reading(hook: DatabricksPipelinesHook, *args: Any, **more: Any) -> Any:
        suspended()
        return read(hook, *args, **more)

    if when.startswith("after the note"):
        store.after = suspended
    else:
        monkeypatch.setattr(DatabricksPipelinesHook, where, reading)
    with pytest.raises(ChangeRunningError, match="took over"):
        task.attempt()
    assert begun(pipeline) == ["COMPLETED"]
    store.kept = dict(store.kept)
    assert task.attempt()["found"] == "answer", "what the retry has noted is still there"
    assert begun(pipeline) == ["COMPLETED"]


@pytest.mark.parametrize("kind", ["reset", "refresh"])
@pytest.mark.parametrize("more", [{}, {"deferrable": True}], ids=repr)
def test_what_it_has_sent_is_stopped(
    workspace: FakeWorkspace, monkeypatch: pytest.MonkeyPatch, kind: str, more: dict[str, Any]
) -> None:
    pipeline = samples.customers(workspace, files=3)
    task = task_of(pipeline, kind, **more)
    send, slept = DatabricksPipelinesHook.start_update, []

    def suspended(hook: DatabricksPipelinesHook, pipeline_id: str, body: Any) -> str:
        if not slept:
            slept.append(True)
            assert task.attempt()["state"] == "COMPLETED"
            workspace.clock.advance(hours=1)
        return send(hook, pipeline_id, body)

    monkeypatch.setattr(DatabricksPipelinesHook, "start_update", suspended)
    before = len(workspace.rows(TABLE))
    with pytest.raises(
        AirflowFailException, match="which was stopped: another attempt of this run may have started it"
    ):
        task.attempt()
    pipeline.advance()
    assert begun(pipeline) == ["COMPLETED", "CANCELED"]
    again = 3 if kind == "reset" else 0
    assert len(workspace.rows(TABLE)) == before + again
