"""A run that waits in its own process, and keeps its notes wherever its caller says."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from airflow_ckpt_provider.errors import ActiveUpdateError, CkptError, WorkspaceError, WorkspaceForbiddenError
from airflow_ckpt_provider.lakeflow.examine import FAIL, STOP
from airflow_ckpt_provider.lakeflow.following import FOLLOW_UP_WITHIN, Answer, Memory, Progress, Wait, look, looking
from airflow_ckpt_provider.lakeflow.request import StartRequest
from airflow_ckpt_provider.lakeflow.starting import Notes, RetryPolicy, start_once
from airflow_ckpt_provider.lakeflow.updates import active_update
from airflow_ckpt_provider.lakeflow.workspace import Workspace

log = logging.getLogger(__name__)

#: How often a pipeline that was busy again after it had become free is waited for.
_ROOMS = 5


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
    :param interval: seconds between two looks.
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
        active = active_update(self._workspace.ask(self._pipeline_id))
        if active is None:
            return
        if on_active_update == FAIL:
            raise ActiveUpdateError(
                f"pipeline {self._pipeline_id}: update {active} is active",
                update_id=active,
                hint="wait for it (--on-active-update wait), stop it (--on-active-update stop), or try again later",
            )
        self._free(on_active_update)

    def start(self, step: str, request: StartRequest, *, on_active_update: str) -> str:
        """Start the update of a step, or find it; return its id."""
        for room in range(_ROOMS):
            try:
                started = start_once(
                    self._workspace,
                    self._pipeline_id,
                    request,
                    self._memos.notes(step),
                    retry_policy=self._retry_policy,
                )
            except ActiveUpdateError:
                if on_active_update == FAIL or room == _ROOMS - 1:
                    raise
                self._free(on_active_update)
            else:
                self.steps[step] = {"update_id": started.update_id, "found": started.found, "states": []}
                log.info("update %s of pipeline %s is this run's", started.update_id, self._pipeline_id)
                return started.update_id
        raise AssertionError("unreachable")

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
        memory, message = Memory(), "no look was finished in time"
        while True:
            try:
                answer = look(lambda path: self._workspace.ask(self._pipeline_id, path), looking(wait, memory))
            except WorkspaceForbiddenError:
                raise
            except WorkspaceError as e:
                message = e.message
            else:
                memory, message = answer.memory, answer.message
                if answer.progress is not Progress.WAITING:
                    return answer
            left = self._end - time.monotonic()
            if left <= 0:
                raise WorkspaceError(
                    f"pipeline {self._pipeline_id}: not within {self._timeout:g} s: {message}",
                    hint="it goes on in the workspace; the same command waits on, or give a longer --timeout",
                )
            self._sleep(min(self._interval, left))
