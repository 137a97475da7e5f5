"""A worker is suspended, its task's retry does all of it, and the worker wakes an hour later: nothing is done a second time."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_ckpt_provider.errors import ChangeRunningError
from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook
from airflow_ckpt_provider.operators.pipeline_refresh import PipelineRefreshOperator
from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from tests.fake_databricks import FakeWorkspace, samples
from tests.fake_databricks.pace import Pace
from tests.fake_databricks.pipelines import Pipeline
from tests.support.attempts import Replaced, Task
from tests.support.lakeflow_resets import ALL, READ_UP_TO, ids, reset
from tests.support.lakeflow_resets import broken as broken

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


@pytest.mark.parametrize("when", ["after its note", "while it follows", "while it stops another update"])
def test_it_leaves_the_configuration_and_the_update_of_the_live_attempt(
    workspace: FakeWorkspace, broken: Pipeline, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    options: dict[str, Any] = {"configuration_after": "put_back", "accept": "UNKNOWN"}
    task = Task(lambda: reset(broken, **options))
    store, slept = task.store, []
    assert store

    def suspended() -> None:
        if not slept:
            slept.append(True)
            broken.pace = Pace.by_hand()
            options["timeout"] = 0.02
            with pytest.raises(AirflowException, match=r"not within 0.02 s"):
                task.attempt()
            assert broken.configuration["modifiedAfter"] == READ_UP_TO
            workspace.clock.advance(hours=1)
            store.kept = Replaced(store.kept)

    if when == "after its note":
        store.after = lambda: suspended() if "sent" in store.kept.get("pipeline_update", "") else None
    else:
        options["on_active_update"] = "stop"
        ask = DatabricksPipelinesHook.ask

        def asked(hook: DatabricksPipelinesHook, *args: Any) -> dict[str, Any]:
            if store.kept and (when == "while it stops another update" or str(args[-1]).startswith("updates/")):
                suspended()
            return ask(hook, *args)

        monkeypatch.setattr(DatabricksPipelinesHook, "ask", asked)
    with pytest.raises(ChangeRunningError, match="took over"):
        task.attempt()
    assert broken.updates[-1].state == "QUEUED"
    assert broken.configuration["modifiedAfter"] == READ_UP_TO
    store.kept = dict(store.kept)
    broken.pace, options["timeout"] = Pace.by_look(), 60
    assert task.attempt()["state"] == "COMPLETED"
    assert ids(workspace) == ALL
    assert "modifiedAfter" not in broken.configuration
