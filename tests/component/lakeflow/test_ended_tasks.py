"""``on_kill``: who has ended the task decides what becomes of its update; a position is never taken from one that may run."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook
from airflow_ckpt_provider.operators.pipeline_refresh import PipelineRefreshOperator
from airflow_ckpt_provider.operators.pipeline_waiting import PipelineOperator
from tests.fake_databricks import WAREHOUSE, FakeWorkspace, samples
from tests.fake_databricks.pace import Pace
from tests.fake_databricks.pipelines import Pipeline
from tests.support.attempts import Killed, Replaced, Task
from tests.support.lakeflow_resets import ALL, READ_UP_TO, TABLE, ids, reset
from tests.support.lakeflow_resets import broken as broken

PUT_BACK: dict[str, Any] = {"configuration_after": "put_back", "accept": "UNKNOWN"}


def follows(broken: Pipeline, **fields: Any) -> Task:
    """A task whose update is QUEUED."""
    broken.pace = Pace.by_hand()
    task = Task(lambda: reset(broken, timeout=0.02, **PUT_BACK, **fields))
    with pytest.raises(AirflowException, match=r"not within 0.02 s"):
        task.attempt()
    return task


@pytest.mark.parametrize("state", ["failed", "success", "restarting"])
def test_it_stops_its_own_update_only(workspace: FakeWorkspace, broken: Pipeline, state: str) -> None:
    task = follows(broken)
    task.state = state
    task.operator.on_kill()
    assert broken.updates[-1].state == "STOPPING"
    assert broken.configuration["modifiedAfter"] == READ_UP_TO, "it has not ended yet"
    broken.advance()
    other = broken.start({})
    task.operator.on_kill()
    assert other.state == "QUEUED"
    assert "modifiedAfter" not in broken.configuration


def test_an_update_that_is_not_stopped_keeps_its_position(workspace: FakeWorkspace, broken: Pipeline) -> None:
    task = follows(broken)
    task.state = "failed"
    workspace.fault("POST", r"/stop$", status=503, count=None)
    task.operator.on_kill()
    broken.advance()
    assert ids(workspace) == ALL


@pytest.mark.parametrize("why", ["evicted or timed out", "replaced", "Airflow does not answer", "an error"])
def test_it_leaves_the_update_to_the_next_attempt(
    workspace: FakeWorkspace, broken: Pipeline, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    task = follows(broken)
    first, held = task.operator, threading.Event()
    if why == "replaced":
        assert task.store
        task.state = "success"  # of the other attempt
        task.store.kept = Replaced(task.store.kept)
    if why == "Airflow does not answer":
        monkeypatch.setattr(PipelineOperator, "ended_within", 0.01)
        first._ti.get_task_states = lambda **_: held.wait(10)
    if why == "an error":
        del first._ti.get_task_states
    first.on_kill()
    held.set()
    assert broken.updates[-1].state == "QUEUED"
    assert broken.configuration["modifiedAfter"] == READ_UP_TO


@pytest.mark.parametrize("when", ["before the request", "within the request", "before its answer"])
def test_ended_around_the_start(
    workspace: FakeWorkspace, broken: Pipeline, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Airflow's handler of the signal runs ``on_kill`` and returns: the task continues until it is killed."""
    task = Task(lambda: reset(broken, **PUT_BACK))
    send, listed = DatabricksPipelinesHook.start_update, DatabricksPipelinesHook.iter_updates
    assert task.store

    def end() -> None:
        if task.state == "running":
            task.state = "failed"
            task.operator.on_kill()

    def ending(hook: DatabricksPipelinesHook, pipeline_id: str, body: Any) -> str:
        if when == "within the request":
            end()
        update_id = send(hook, pipeline_id, body)
        with monkeypatch.context() as patch:  # accepted, and not among the updates yet
            patch.setattr(
                DatabricksPipelinesHook,
                "iter_updates",
                lambda *a: (u for u in listed(*a) if u["update_id"] != update_id),
            )
            end()
        return update_id

    if when == "before the request":
        task.store.after = lambda: end() if "sent" in task.store.kept["pipeline_update"] else None
    else:
        monkeypatch.setattr(DatabricksPipelinesHook, "start_update", ending)
    words = (
        "somebody ended this task before it started"
        if when == "before the request"
        else "which somebody ended, stopped it"
    )
    with pytest.raises(AirflowFailException, match=words):
        task.attempt()
    sent = 0 if when == "before the request" else 1
    assert [update.state for update in broken.updates[2:]] == ["CANCELED"] * sent
    assert "modifiedAfter" not in broken.configuration
    assert len(ids(workspace)) == len(ALL) - 2


def test_a_worker_is_evicted_while_a_table_is_empty(workspace: FakeWorkspace, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = samples.customers(workspace)
    before = ids(workspace)
    workspace.sources["/landing/customers"].expire_before(3)
    about: dict[str, Any] = {
        "pipeline_id": pipeline.pipeline_id,
        "mode": "apply",
        "poll_interval": 0.001,
        "backfill": "merge",
    }
    about |= {
        "guard_report": {"verdict": "WILL_LOSE"},
        "accept": "WILL_LOSE",
        "backup": "deep_clone",
        "keys": {TABLE: ["id"]},
    }
    about |= {"full_refresh_selection": ["customers"], "warehouse_id": WAREHOUSE}
    task = Task(lambda: PipelineRefreshOperator(task_id="refresh", **about))
    ask, evicted = DatabricksPipelinesHook.ask, []

    def evicting(hook: DatabricksPipelinesHook, *args: Any) -> dict[str, Any]:
        found = ask(hook, *args)
        if not evicted and (found.get("update") or {}).get("state") == "RUNNING":
            evicted.append(True)
            task.operator.on_kill()  # Airflow's supervisor passes the signal of the pod on
            raise Killed
        return found

    monkeypatch.setattr(DatabricksPipelinesHook, "ask", evicting)
    with suppress(Killed):
        task.attempt()
    assert evicted
    assert task.attempt()["state"] == "COMPLETED"
    assert len(workspace.asked("POST", "/updates")) == 1
    assert ids(workspace) == before
