"""One update of a pipeline, whoever waits for it: room for it, its start, and the looks until it has got where it is wanted.

A task hands its waits over to the triggerer and keeps what it has seen in Airflow; a shell waits in its own process. What
differs is given: how to wait, and what is kept.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from airflow_ckpt_provider.errors import ActiveUpdateError, WorkspaceError, WorkspaceForbiddenError
from airflow_ckpt_provider.lakeflow.examine import FAIL
from airflow_ckpt_provider.lakeflow.following import Answer, Memory, Progress, Wait, look, looking
from airflow_ckpt_provider.lakeflow.request import StartRequest
from airflow_ckpt_provider.lakeflow.starting import RetryPolicy, Started, find_ours
from airflow_ckpt_provider.lakeflow.updates import COMPLETED, active_update
from airflow_ckpt_provider.lakeflow.workspace import Workspace

log = logging.getLogger(__name__)

#: How often a pipeline that was busy again after it had become free is waited for.
_ROOMS = 5


def make_room(workspace: Workspace, pipeline_id: str, on_active_update: str, free: Callable[[str], None]) -> None:
    """See that no update is active, or do about it what was asked for.

    :param free: stops the active update if asked to, and waits until none is.
    :raises ActiveUpdateError: one is active, and nothing is to be done about it.
    """
    active = active_update(workspace.ask(pipeline_id))
    if active is None:
        return
    if on_active_update == FAIL:
        raise ActiveUpdateError(
            f"pipeline {pipeline_id}: update {active} is active",
            update_id=active,
            hint="wait for it (on_active_update='wait'), stop it (on_active_update='stop'), or try again later",
        )
    free(on_active_update)


def start_in_room(
    start: Callable[[], Started],
    on_active_update: str,
    free: Callable[[str], None],
    check: Callable[[], None] = lambda: None,
) -> Started:
    """Start an update; where another one came first, make room again as was asked for.

    :param start: starts it, or finds it.
    :param free: stops the active update if asked to, and waits until none is.
    :param check: sees that the plan still holds after that.
    :raises ActiveUpdateError: others came first each time, or nothing is to be done about them.
    """
    for _ in range(_ROOMS - 1):
        try:
            return start()
        except ActiveUpdateError:
            if on_active_update == FAIL:
                raise
            free(on_active_update)
            check()
    return start()


def seen_through(
    workspace: Workspace,
    pipeline_id: str,
    wait: Wait,
    memory: Memory,
    *,
    seen: Callable[[Answer], None],
    unseen: Callable[[WorkspaceError], None],
    pause: Callable[[Memory, str], None],
) -> Answer:
    """Look until what is waited for is decided; a poll that fails is repeated, unless the login is refused.

    :param memory: what earlier looks have seen.
    :param seen: takes each answer.
    :param unseen: takes the error of a poll that failed.
    :param pause: waits until the next poll, given what was seen and the last words; raises if there is no time left.
    """
    message = "no look was finished in time"
    while True:
        try:
            answer = look(lambda path: workspace.ask(pipeline_id, path), looking(wait, memory))
        except WorkspaceForbiddenError:
            raise
        except WorkspaceError as e:
            unseen(e)
            message = e.message
        else:
            seen(answer)
            memory, message = answer.memory, answer.message
            if answer.progress is not Progress.WAITING:
                return answer
        pause(memory, f"pipeline {pipeline_id}: {message}")


def stop_ours(
    workspace: Workspace,
    pipeline_id: str,
    request: StartRequest | None,
    note: Mapping[str, Any],
    memory: Memory,
    *,
    follow_up_within: float,
    retry_policy: RetryPolicy,
) -> None:
    """Stop our own update, if it is the one that runs, and see that it has ended; nobody else's.

    :param request: what was started; ``None``: only an update that is known already is ours.
    :param note: of its start.
    :param memory: what earlier looks have seen of it.
    :param follow_up_within: seconds after a failure in which an automatic retry may begin.
    :param retry_policy: how long it is looked after.
    :raises WorkspaceError: it may still run, or appear.
    """
    update_id = memory.update_ids[-1] if memory.states else note.get("update_id")
    if not update_id and request:
        update_id = (find_ours(workspace, pipeline_id, request, note) or {}).get("update_id")
    if not update_id:
        raise WorkspaceError(
            f"pipeline {pipeline_id}: a start was sent, and no update appeared",
            hint="see in the pipeline's event log whether an update began",
        )
    if active_update(workspace.ask(pipeline_id)) in (*memory.update_ids, update_id):
        workspace.stop_pipeline(pipeline_id)
        log.info("Stopped update %s of pipeline %s, which this run has started", update_id, pipeline_id)
    end = time.monotonic() + retry_policy.settle

    def pause(_: Memory, message: str) -> None:
        if time.monotonic() >= end:
            raise WorkspaceError(message, hint="see on the pipeline's page whether it ends")
        retry_policy.sleep(retry_policy.interval)

    seen_through(
        workspace,
        pipeline_id,
        Wait(str(update_id), COMPLETED, follow_up_within),
        memory,
        seen=lambda _: None,
        unseen=lambda e: log.warning("%s", e),
        pause=pause,
    )
