"""A run that waits in its own process, and keeps its notes wherever its caller says."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from airflow_ckpt_provider.errors import CkptError, WorkspaceError
from airflow_ckpt_provider.lakeflow.examine import STOP
from airflow_ckpt_provider.lakeflow.following import FOLLOW_UP_WITHIN, Answer, Memory, Progress, Wait
from airflow_ckpt_provider.lakeflow.one_update import make_room, seen_through, start_in_room
from airflow_ckpt_provider.lakeflow.request import StartRequest
from airflow_ckpt_provider.lakeflow.starting import Notes, RetryPolicy, Started, start_once
from airflow_ckpt_provider.lakeflow.workspace import Workspace

log = logging.getLogger(__name__)


class UpdateFailedError(CkptError):
    """The update has not reached the state that was waited for."""


class Memos(Protocol):
    """Where a run keeps what it has begun."""

    def notes(self, step: str) -> Notes:
        """The notes of one start."""
        ...


class BlockingRun:
    """One of :class:`~airflow_ckpt_provider.lakeflow.carrying_out.Run`.

    :param workspace: the workspace.
    :param pipeline_id: the pipeline.
    :param memos: must outlive the process for the promise of one start to hold over a crash.
    :param why: explains a failure by the ids of its updates.
    :param interval: seconds between two polls.
    :param timeout: seconds for all waiting together.
    :param follow_up_within: seconds after a failure in which an automatic retry may begin.
    :param retry_policy: how long a lost answer is looked after.
    :param sleep: waits.
    """

    failure: type[Exception] = UpdateFailedError

    def __init__(
        self,
        workspace: Workspace,
        pipeline_id: str,
        memos: Memos,
        *,
        why: Callable[[tuple[str, ...]], str] = lambda ids: "",
        interval: float = 10.0,
        timeout: float = 86400.0,
        follow_up_within: float = FOLLOW_UP_WITHIN,
        retry_policy: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._workspace, self._pipeline_id, self._memos, self._why = workspace, pipeline_id, memos, why
        self._interval, self._sleep = interval, sleep
        self._end = time.monotonic() + timeout
        self._timeout = timeout
        self._follow_up_within = follow_up_within
        self._retry_policy = retry_policy or RetryPolicy()
        #: Step -> id, states and how the update was found.
        self.steps: dict[str, dict[str, Any]] = {}

    def make_room(self, step: str, on_active_update: str) -> None:
        """See that no update is active, or do about it what was asked for; nothing once the step was begun."""
        if self.note(step):
            return
        make_room(self._workspace, self._pipeline_id, on_active_update, self._free)

    def start(
        self, step: str, request: StartRequest, *, on_active_update: str, check: Callable[[], None] = lambda: None
    ) -> str:
        """Start the update of a step, or find it; return its id."""

        def start() -> Started:
            notes = self._memos.notes(step)
            return start_once(self._workspace, self._pipeline_id, request, notes, retry_policy=self._retry_policy)

        started = start_in_room(start, on_active_update, self._free, check)
        self.steps[step] = {"update_id": started.update_id, "found": started.found, "states": []}
        log.info("update %s of pipeline %s is this run's", started.update_id, self._pipeline_id)
        return started.update_id

    def follow(
        self,
        step: str,
        update_id: str,
        wait_for: str | None,
        *,
        flows: tuple[str, ...] = (),
        flows_run_for: float = 0.0,
    ) -> None:
        """Follow the update of a step to where it is wanted.

        :raises UpdateFailedError: it failed, or somebody stopped it.
        """
        if wait_for is None:
            return
        answer = self._wait(Wait(update_id, wait_for, self._follow_up_within, flows, flows_run_for))
        self.steps[step]["states"] = answer.memory.to_json()
        if answer.progress is Progress.DONE:
            return
        message = f"pipeline {self._pipeline_id}: {answer.message}"
        if answer.progress is Progress.CANCELED:
            raise UpdateFailedError(f"{message}: somebody stopped it")
        raise UpdateFailedError(f"{message}\n{self._why(answer.memory.update_ids)}".rstrip())

    def note(self, step: str) -> dict[str, Any] | None:
        """The note of a step's start."""
        return self._memos.notes(step).load()

    def _free(self, on_active_update: str) -> None:
        if on_active_update == STOP:
            self._workspace.stop_pipeline(self._pipeline_id)
        self._wait(Wait())

    def _wait(self, wait: Wait) -> Answer:
        def pause(memory: Memory, message: str) -> None:
            left = self._end - time.monotonic()
            if left <= 0:
                raise WorkspaceError(
                    f"not within {self._timeout:g} s: {message}",
                    hint="it continues in the workspace; the same command waits on, or give a longer --timeout",
                )
            self._sleep(min(self._interval, left))

        nothing: Callable[[Any], None] = lambda _: None  # noqa: E731
        return seen_through(
            self._workspace, self._pipeline_id, wait, Memory(), seen=nothing, unseen=nothing, pause=pause
        )
