"""What one poll at an update concludes, and the same over asynchronous calls."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl

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


class Continuous(Workspace):
    """An update that never ends, of one flow; its events come in pages, newest first."""

    def __init__(self, page: int = 250) -> None:
        super().__init__(("u1", "RUNNING", "API_CALL"), continuous=True)
        self.events: list[dict[str, Any]] = []
        self.page = page

    def add(self, status: str, seconds: float, flow: str = "orders") -> None:
        progress = {"flow_progress": {"status": status}} if status else {}
        event = {"event_type": "flow_progress" if status else "maintenance", "details": progress}
        origin = {"update_id": "u1", "flow_name": flow}
        self.events.append({**event, "timestamp": (NOW + timedelta(seconds=seconds)).isoformat(), "origin": origin})

    def ask(self, path: str) -> dict[str, Any]:
        if not path.startswith("events"):
            return super().ask(path)
        query = dict(parse_qsl(path.partition("?")[2]))
        start = int(query.get("page_token", 0))
        newest = sorted(self.events, key=lambda event: str(event["timestamp"]), reverse=True)
        more = {"next_page_token": str(start + self.page)} if start + self.page < len(newest) else {}
        return {"events": newest[start : start + self.page], **more}


RUN = Wait("u1", "RUNNING", 60.0, ("orders",), 60.0)


def looked_at(workspace: Continuous, memory: Memory | None, seconds: float) -> Answer:
    kept = Memory.from_json(json.loads(json.dumps(memory.to_json()))) if memory else None
    return workspace.look(RUN, kept, NOW + timedelta(seconds=seconds))


@pytest.mark.parametrize("page", [250, 2])
def test_a_flow_that_fails_between_two_looks_does_not_run_without_a_failure(page: int) -> None:
    """It is running again whenever somebody looks."""
    workspace = Continuous(page)
    workspace.add("RUNNING", 0)
    answer = looked_at(workspace, None, 0)
    for seconds in (30, 60, 90, 120):
        workspace.add("FAILED", seconds - 20)
        workspace.add("STARTING", seconds - 10)
        workspace.add("RUNNING", seconds - 5)
        for second in range(3):
            workspace.add("", seconds - 4 + second, "another")
        answer = looked_at(workspace, answer.memory, seconds)
        assert (answer.progress, "and began again" in answer.message) == (Progress.WAITING, True)
    assert looked_at(workspace, answer.memory, 179).progress is Progress.WAITING
    assert looked_at(workspace, answer.memory, 180).progress is Progress.DONE


def test_a_flow_that_failed_before_it_ran_has_run_since() -> None:
    workspace = Continuous(2)
    for status, seconds in (("FAILED", -20), ("STARTING", -10), ("RUNNING", -5)):
        workspace.add(status, seconds)
    answer = looked_at(workspace, None, 0)
    for seconds in (30, 60):
        workspace.add("RUNNING", seconds - 1)
        answer = looked_at(workspace, answer.memory, seconds)
    assert answer.progress is Progress.DONE


def test_more_events_than_are_read_may_hide_a_failure() -> None:
    workspace = Continuous(1)
    workspace.add("RUNNING", 0)
    answer = looked_at(workspace, None, 0)
    workspace.add("FAILED", 1)
    for number in range(9):
        workspace.add("RUNNING", 2 + number)
    answer = looked_at(workspace, answer.memory, 60)
    assert (answer.progress, "more events came than are read" in answer.message) == (Progress.WAITING, True)
    assert looked_at(workspace, answer.memory, 120).progress is Progress.DONE
