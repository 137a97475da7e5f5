"""What one look at an update concludes, and the same over asynchronous calls."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_ckpt_provider.lakeflow.following import (
    Answer,
    Memory,
    Progress,
    Wait,
    a_look,
    look,
    looking,
)

NOW = datetime(2026, 8, 21, 12, 0, tzinfo=UTC)


class Workspace:
    """Answers by path; ``updates`` oldest first: (id, state, cause)."""

    def __init__(self, *updates: tuple[str, str, str], state: str = "RUNNING", **spec: Any) -> None:
        self.updates = {name: {"update_id": name, "state": s, "cause": cause} for name, s, cause in updates}
        self.pipeline = {"state": state, "spec": spec, "latest_updates": [*reversed(self.updates.values())]}
        self.asked: list[str] = []

    def ask(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        return {"update": self.updates[path.removeprefix("updates/")]} if path else self.pipeline

    async def a_ask(self, path: str) -> dict[str, Any]:
        return self.ask(path)

    def look(self, wait: Wait, memory: Memory | None = None, now: datetime = NOW) -> Answer:
        memory = memory or Memory()
        answer = look(self.ask, looking(wait, memory, now))
        assert asyncio.run(a_look(self.a_ask, looking(wait, memory, now))) == answer
        return answer


@pytest.mark.parametrize("wait_for", ["COMPLETED", "RUNNING"])
@pytest.mark.parametrize(
    "state",
    [
        "CREATED",
        "QUEUED",
        "INITIALIZING",
        "RESETTING",
        "SETTING_UP_TABLES",
        "RUNNING",
        "STOPPING",
        "NEW_WORD",
        "COMPLETED",
    ],
)
def test_states(state: str, wait_for: str) -> None:
    answer = Workspace(("u", state, "API_CALL")).look(Wait("u", wait_for))
    done = state == "COMPLETED" or (state, wait_for) == ("RUNNING", "RUNNING")
    assert answer.progress is (Progress.DONE if done else Progress.WAITING)
    assert answer.state == state
    assert f"update u is {state}" in answer.message


def test_a_failure_is_final_when_no_retry_came_in_time() -> None:
    workspace = Workspace(("u", "FAILED", "API_CALL"))
    first = workspace.look(Wait("u"))
    assert (first.progress, first.message) == (Progress.WAITING, "update u is FAILED; an automatic retry may follow")
    later = workspace.look(Wait("u"), first.memory, NOW + timedelta(seconds=59))
    assert later.progress is Progress.WAITING
    assert workspace.look(Wait("u"), later.memory, NOW + timedelta(seconds=60)).progress is Progress.FAILED


def test_a_pipeline_that_recovers_is_waited_for() -> None:
    workspace = Workspace(("u", "FAILED", "API_CALL"), state="RECOVERING")
    first = workspace.look(Wait("u"))
    assert workspace.look(Wait("u"), first.memory, NOW + timedelta(hours=1)).progress is Progress.WAITING


@pytest.mark.parametrize(
    "spec", [{"development": True}, {"configuration": {"pipelines.numUpdateRetryAttempts": "0"}}], ids=repr
)
def test_no_retry_is_waited_for_where_none_can_come(spec: dict[str, Any]) -> None:
    assert Workspace(("u", "FAILED", "API_CALL"), **spec).look(Wait("u")).progress is Progress.FAILED


@pytest.mark.parametrize(
    "cause", ["RETRY_ON_FAILURE", "SCHEMA_CHANGE", "INFRASTRUCTURE_MAINTENANCE", "SERVICE_UPGRADE"]
)
def test_updates_in_its_place_are_followed(cause: str) -> None:
    chain = (
        ("a", "COMPLETED", "API_CALL"),
        ("u", "FAILED", "API_CALL"),
        ("v", "FAILED", cause),
        ("w", "RUNNING", cause),
    )
    answer = Workspace(*chain).look(Wait("u"))
    assert answer.progress is Progress.WAITING
    assert answer.memory.update_ids == ("u", "v", "w")
    assert answer.message == f"update w is RUNNING ({cause}), waiting for COMPLETED"
    ended = Workspace(*chain[:3], ("w", "COMPLETED", cause))
    again = ended.look(Wait("u"), answer.memory)
    assert again.progress is Progress.DONE
    assert [state.state for state in again.memory.states] == ["FAILED", "FAILED", "RUNNING", "COMPLETED"]
    assert "updates/u" not in ended.asked


def test_somebody_elses_update_ends_the_hope_for_a_retry() -> None:
    workspace = Workspace(("u", "FAILED", "API_CALL"), ("v", "RUNNING", "USER_ACTION"))
    assert workspace.look(Wait("u")).progress is Progress.FAILED


def test_canceled() -> None:
    assert Workspace(("u", "CANCELED", "API_CALL")).look(Wait("u")).progress is Progress.CANCELED
    moved = Workspace(("u", "CANCELED", "API_CALL"), ("v", "RUNNING", "SERVICE_UPGRADE"), continuous=True)
    assert moved.look(Wait("u", "RUNNING")).progress is Progress.DONE


def test_an_update_too_old_to_be_listed() -> None:
    workspace = Workspace(("u", "CANCELED", "API_CALL"), ("v", "COMPLETED", "RETRY_ON_FAILURE"))
    workspace.pipeline["latest_updates"] = [{"update_id": "v", "state": "COMPLETED"}]
    assert workspace.look(Wait("u")).progress is Progress.CANCELED


@pytest.mark.parametrize(
    ("state", "active", "progress"),
    [
        ("IDLE", False, Progress.DONE),
        ("FAILED", False, Progress.DONE),
        ("STOPPING", True, Progress.WAITING),
        ("RUNNING", True, Progress.WAITING),
        ("RECOVERING", False, Progress.WAITING),
        ("IDLE", True, Progress.WAITING),
        ("DELETED", False, Progress.FAILED),
    ],
)
def test_idle(state: str, active: bool, progress: Progress) -> None:
    workspace = Workspace(("u", "STOPPING" if active else "CANCELED", "API_CALL"), state=state)
    assert workspace.look(Wait()).progress is progress


def test_memory_and_wait_outlive_the_process() -> None:
    answer = Workspace(("u", "RUNNING", "API_CALL")).look(Wait("u"))
    assert Memory.from_json(answer.memory.to_json()) == answer.memory
    assert Memory.from_json(None) == Memory()
    wait = Wait("u", "RUNNING", 5.0)
    assert Wait.from_json(wait.to_json()) == wait
    assert answer.memory.to_json()[0]["time"] == NOW.isoformat()
