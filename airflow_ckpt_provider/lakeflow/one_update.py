"""One update of a pipeline, whoever waits for it: room for it, its start, and the looks until it has got where it is wanted.

A task hands its waits over to the triggerer and keeps what it has seen in Airflow; a shell waits in its own process. What
differs is given: how to wait, and what is kept.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_ckpt_provider.errors import ActiveUpdateError, WorkspaceError, WorkspaceForbiddenError
from airflow_ckpt_provider.lakeflow.examine import FAIL
from airflow_ckpt_provider.lakeflow.following import Answer, Memory, Progress, Wait, look, looking
from airflow_ckpt_provider.lakeflow.starting import Started
from airflow_ckpt_provider.lakeflow.updates import active_update
from airflow_ckpt_provider.lakeflow.workspace import Workspace

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


def start_in_room(start: Callable[[], Started], on_active_update: str, free: Callable[[str], None]) -> Started:
    """Start an update; where another one came first, make room again as was asked for.

    :param start: starts it, or finds it.
    :raises ActiveUpdateError: others came first each time, or nothing is to be done about them.
    """
    for _ in range(_ROOMS - 1):
        try:
            return start()
        except ActiveUpdateError:
            if on_active_update == FAIL:
                raise
            free(on_active_update)
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
