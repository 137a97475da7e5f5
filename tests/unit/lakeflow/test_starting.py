"""An update is started once: random workspaces that lose answers, and workers that die, without a network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_ckpt_provider.errors import (
    ActiveUpdateError,
    RefusedError,
    UnknownStartError,
    WorkspaceForbiddenError,
)
from airflow_ckpt_provider.lakeflow import starting
from airflow_ckpt_provider.lakeflow.request import StartRequest
from airflow_ckpt_provider.lakeflow.starting import BY_ANSWER, BY_NOTE, BY_SEARCH, RetryPolicy, start_once
from airflow_ckpt_provider.storage.clocks import Clocks

REQUEST = StartRequest.of({"reset_checkpoint_selection": ["f"], "refresh_selection": ["t"]})
PATIENCE = RetryPolicy(settle=2, interval=1, sends=3, sleep=lambda _: None, now=lambda: 1.0)
#: What may become of one start: an answer; lost before or after it took effect; another update is active; refused.
ANSWER, LOST, LOST_BUT_DONE, BUSY, REFUSED, FORBIDDEN, DIES, DIES_AFTER = (
    "answer",
    "lost",
    "done",
    "busy",
    "refused",
    "forbidden",
    "dies",
    "dies-after",
)


class Dead(BaseException):
    """The worker is gone."""


class Memory:
    def __init__(self) -> None:
        self.note: dict[str, Any] | None = None

    def load(self) -> dict[str, Any] | None:
        return self.note

    def save(self, note: dict[str, Any]) -> None:
        self.note = dict(note)

    def clear(self) -> None:
        self.note = None


class Workspace:
    def __init__(self, *fates: str, updates: int = 1) -> None:
        self.fates = list(fates)
        self.updates: list[dict[str, Any]] = []
        self.sent, self.time = 0, 1.0
        for _ in range(updates):
            self.add({"refresh_selection": ["t"]})

    def add(self, body: Mapping[str, Any], cause: str = "API_CALL", *, created: float = 1.0) -> str:
        number = len(self.updates)
        told = {key: value for key, value in body.items() if key != "reset_checkpoint_selection"}
        self.updates.insert(
            0,
            {
                "update_id": f"u{number}",
                "creation_time": int(created * 1000),
                "cause": cause,
                "body": dict(body),
                **told,
            },
        )
        return f"u{number}"

    def iter_updates(self, pipeline_id: str) -> Iterator[dict[str, Any]]:
        yield from self.updates

    def start_update(self, pipeline_id: str, body: Mapping[str, Any]) -> str:
        self.sent += 1
        fate = self.fates.pop(0) if self.fates else ANSWER
        if fate == BUSY:
            raise ActiveUpdateError("busy")
        if fate == REFUSED:
            raise RefusedError("no")
        if fate == FORBIDDEN:
            raise WorkspaceForbiddenError("no")
        if fate == DIES:
            raise Dead
        if fate == LOST:
            raise UnknownStartError("lost")
        update_id = self.add(body, created=self.time)
        if fate == LOST_BUT_DONE:
            raise UnknownStartError("lost")
        if fate == DIES_AFTER:
            raise Dead
        return update_id

    @property
    def resets(self) -> int:
        return sum("reset_checkpoint_selection" in update["body"] for update in self.updates)


def start(workspace: Workspace, memory: Memory, request: StartRequest = REQUEST, *, late: float = 0.0) -> Any:
    workspace.time = 1.0 + late
    return start_once(workspace, "p", request, memory, retry_policy=PATIENCE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fates", "found", "sent"),
    [
        ([ANSWER], BY_ANSWER, 1),
        ([LOST], BY_ANSWER, 2),
        ([LOST_BUT_DONE], BY_SEARCH, 1),
        ([LOST, LOST_BUT_DONE], BY_SEARCH, 2),
    ],
)
def test_one_attempt(fates: list[str], found: str, sent: int) -> None:
    workspace, memory = Workspace(*fates), Memory()
    started = start(workspace, memory)
    assert (started.found, workspace.sent, workspace.resets) == (found, sent, 1)
    again = start(workspace, memory)
    assert (again.update_id, again.found) == (started.update_id, BY_NOTE)
    assert workspace.sent == sent


def test_no_answer_at_all() -> None:
    workspace, memory = Workspace(*[LOST] * 3), Memory()
    with pytest.raises(UnknownStartError, match="UNKNOWN whether an update was started: lost"):
        start(workspace, memory)
    assert memory.note
    assert "update_id" not in memory.note


@pytest.mark.parametrize("fate", [BUSY, REFUSED, FORBIDDEN])
def test_a_refusal_leaves_no_note(fate: str) -> None:
    workspace, memory = Workspace(fate), Memory()
    with pytest.raises((RefusedError, WorkspaceForbiddenError)):
        start(workspace, memory)
    assert memory.note is None
    # Whatever looks like ours by now is not: nothing of ours was ever accepted.
    workspace.add(REQUEST.body)
    assert start(workspace, memory).found == BY_ANSWER


def test_a_conflict_with_ones_own_update() -> None:
    workspace, memory = Workspace(LOST, BUSY), Memory()
    late = workspace.start_update

    def accepted_late(pipeline_id: str, body: Mapping[str, Any]) -> str:
        if workspace.sent == 1:
            workspace.add(body)  # the first request took effect only now
        return late(pipeline_id, body)

    workspace.start_update = accepted_late  # type: ignore[method-assign]
    assert start(workspace, memory).found == BY_SEARCH
    assert workspace.resets == 1


def test_several_can_be_it() -> None:
    workspace, memory = Workspace(DIES_AFTER), Memory()
    with pytest.raises(Dead):
        start(workspace, memory)
    workspace.add(REQUEST.body)
    with pytest.raises(RefusedError, match="UNKNOWN which update is this run's: u2, u1"):
        start(workspace, memory)


def test_an_ordinary_update_of_another_time_is_not_taken_for_ours() -> None:
    """The workspace repeats neither the reset nor the rewind."""
    workspace, memory = Workspace(DIES), Memory()
    with pytest.raises(Dead):
        start(workspace, memory)
    workspace.add({"refresh_selection": ["t"]}, created=3600)
    with pytest.raises(
        RefusedError, match="UNKNOWN which update is this run's: u1 was not created around the time of the"
    ):
        start(workspace, memory)
    assert workspace.resets == 0


def test_an_attempt_that_was_suspended_before_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no note that another attempt could have written: the time that has passed has it search again."""
    workspace, memory = Workspace(), Memory()

    class Suspended(Clocks):
        @property
        def elapsed(self) -> float:
            monkeypatch.undo()
            start(workspace, Memory(), late=3600)
            return 3600.0

    monkeypatch.setattr(starting, "Clocks", Suspended)
    with pytest.raises(RefusedError, match="UNKNOWN which update is this run's: u1 was not created around the time"):
        start(workspace, memory)
    assert workspace.sent == workspace.resets == 1


@pytest.mark.parametrize("more", [{"parameters": {"run": "a"}}, {"full_refresh_selection": ["t"]}], ids=repr)
def test_what_the_workspace_repeats_is_ours_at_any_time(more: dict[str, Any]) -> None:
    request = StartRequest.of(
        {**({} if "full_refresh_selection" in more else REQUEST.body), **more},
        run_parameter="run" if "parameters" in more else "",
    )
    workspace, memory = Workspace(DIES), Memory()
    with pytest.raises(Dead):
        start(workspace, memory, request)
    workspace.add({"refresh_selection": ["t"]}, created=2)
    theirs = workspace.add(request.body, created=3600)
    assert (started := start(workspace, memory, request)).update_id == theirs
    assert started.found == BY_SEARCH


@pytest.mark.parametrize(
    "other",
    [
        {"cause": "USER_ACTION"},
        {"cause": "RETRY_ON_FAILURE"},
        {"refresh_selection": ["t", "u"]},
        {"full_refresh": True},
        {"validate_only": True},
        {"full_refresh_selection": ["t"]},
        {"parameters": {"run": "b"}},
    ],
    ids=repr,
)
def test_what_cannot_be_ours(other: dict[str, Any]) -> None:
    request = StartRequest.of(
        {"reset_checkpoint_selection": ["f"], "refresh_selection": ["t"], "parameters": {"run": "a"}}
    )
    ours = {"cause": "API_CALL", "refresh_selection": ["t"], "parameters": {"run": "a", "of": "the pipeline"}}
    assert request.may_be(ours)
    assert request.may_be({"refresh_selection": ["t"]})
    assert not request.may_be({**ours, **other})


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([ANSWER, LOST, LOST_BUT_DONE, BUSY, DIES, DIES_AFTER]), max_size=12),
    st.integers(0, 3),
    st.lists(st.booleans(), min_size=16, max_size=16),
)
def test_never_twice(fates: list[str], before: int, strangers: list[bool]) -> None:
    workspace, memory = Workspace(*fates, updates=before), Memory()
    for stranger in strangers:
        if stranger:
            workspace.add({"refresh_selection": ["t"]}, cause="USER_ACTION")
        try:
            start(workspace, memory)
        except (Dead, UnknownStartError, ActiveUpdateError):
            assert workspace.resets <= 1
        else:
            break
    assert workspace.resets == 1


def test_jobs() -> None:
    request = StartRequest.of(
        {"reset_checkpoint_selection": ["f"], "refresh_selection": ["t"]}, expected_cause="JOB_TASK"
    )
    assert request.for_job("7", "token") == {
        "job_id": 7,
        "pipeline_params": {"reset_checkpoint_selection": ["f"], "refresh_selection": ["t"]},
        "idempotency_token": "token",
    }
    assert request.as_task("p") == {"pipeline_id": "p", "reset_checkpoint_selection": ["f"], "refresh_selection": ["t"]}
    rewind = StartRequest.of({"rewind_spec": {"dry_run": True}})
    with pytest.raises(RefusedError, match="pipeline_task has no field rewind_spec"):
        rewind.as_task("p")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, each) for name in ("validate_only", "full_refresh", "development") for each in ("false", 1, [])),
        *(
            (name, each)
            for name in ("full_refresh_selection", "reset_checkpoint_selection")
            for each in ("orders", [1])
        ),
    ],
)
def test_a_field_of_another_kind_is_refused(name: str, value: object) -> None:
    """``"validate_only": "false"`` would count as a dry run here, and as a refresh of all tables in the workspace."""
    with pytest.raises(RefusedError, match=f"^{name} is {re.escape(repr(value))}"):
        StartRequest.of({"full_refresh_selection": []}, {name: value})
