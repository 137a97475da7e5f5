"""Starting an update at most once, also if the request, its answer or the sender is lost.

A second reset would read the same input again, a second full refresh would empty the table again. So a note is kept before
the request is sent: the newest update that the workspace then knew. Where an answer was lost (time-out, cut connection,
503), or the worker died before it could note the id, the updates after that one are looked through for ours before
anything is sent again. The times compared are all of the workspace's own clock.

Not Airflow's ``ResumableJobMixin``: that one notes an id after the fact, and submits again once the job has failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_ckpt_provider.errors import ActiveUpdateError, RefusedError, UnknownStartError
from airflow_ckpt_provider.lakeflow.request import StartRequest
from airflow_ckpt_provider.lakeflow.workspace import Workspace

log = logging.getLogger(__name__)

#: How an update was found to be ours.
BY_ANSWER, BY_NOTE, BY_SEARCH = "answer", "note", "search"


class Notes(Protocol):
    """Where a note outlives the process."""

    def load(self) -> dict[str, Any] | None:
        """The note, where there is one."""
        ...

    def save(self, note: dict[str, Any]) -> None:
        """Keep it."""
        ...

    def clear(self) -> None:
        """Forget it: nothing was started."""
        ...


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a lost answer is looked after.

    :param settle: seconds in which an update that the workspace accepted shows among its updates.
    :param interval: seconds between two polls.
    :param sends: how often a start is sent when the looks found nothing.
    :param sleep: waits.
    """

    settle: float = 10.0
    interval: float = 2.0
    sends: int = 3
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class Started:
    """An update that is ours.

    :param update_id: its id.
    :param found: ``answer``: the workspace answered the start with it; ``note``: an attempt before noted it; ``search``: it
        is the one update since the start was sent that has the request's cause, selections and parameters.
    """

    update_id: str
    found: str


def note_before(workspace: Workspace, pipeline_id: str, request: StartRequest) -> dict[str, Any]:
    """Return the note to be kept before a start is sent: where the search for its update begins."""
    newest = next(workspace.iter_updates(pipeline_id), {})
    return {
        "body": request.fingerprint,
        "after": newest.get("update_id"),
        "since": newest.get("creation_time") or 0,
    }


def find_ours(
    workspace: Workspace, pipeline_id: str, request: StartRequest, note: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the update that a request started, if it did.

    :param note: from :func:`note_before`.
    :raises RefusedError: several updates can be it.
    """
    found: list[dict[str, Any]] = []
    for update in workspace.iter_updates(pipeline_id):
        if update.get("update_id") == note.get("after") or (update.get("creation_time") or 0) < (
            note.get("since") or 0
        ):
            break
        if request.may_be(update):
            found.append(update)
    if len(found) > 1:
        ids = ", ".join(str(update.get("update_id")) for update in found)
        raise RefusedError(
            f"pipeline {pipeline_id}: UNKNOWN which update is this run's: {ids} have the same cause and selections, and the "
            "answer to the start was lost",
            hint="see which is it in the pipeline's event log and wait for that one with PipelineUpdateSensor(update_id=…); "
            "clear this task only when none is",
        )
    return found[0] if found else None


def start_once(
    workspace: Workspace,
    pipeline_id: str,
    request: StartRequest,
    notes: Notes,
    *,
    send: Callable[[], str | None] | None = None,
    retry_policy: RetryPolicy | None = None,
) -> Started:
    """Start an update, or find the one that an attempt before has started.

    :param workspace: the workspace.
    :param pipeline_id: the pipeline.
    :param request: what to start.
    :param notes: this step's notes; they must outlive the process for the promise to hold over a crash.
    :param send: sends the start in another way (through a job), and returns the update's id or ``None`` where the update
        has to be searched for.
    :param retry_policy: how long a lost answer is looked after.
    :raises ActiveUpdateError: another update is active; nothing was started.
    :raises UnknownStartError: no answer, and no update to be seen; the note is kept, and the next attempt checks again.
    :raises RefusedError: the workspace refused, or it is not known which update is ours.
    """
    retry_policy = retry_policy or RetryPolicy()
    note = notes.load()
    if note and note.get("update_id"):
        return Started(str(note["update_id"]), BY_NOTE)
    #: A start may be on its way of which nobody knows what became.
    doubtful = note is not None
    if note is None:
        note = note_before(workspace, pipeline_id, request)
        notes.save(note)
    elif ours := _search(workspace, pipeline_id, request, note, retry_policy):
        return _found(notes, note, ours)
    lost: UnknownStartError | None = None
    for _ in range(retry_policy.sends):
        try:
            update_id = send() if send else workspace.start_update(pipeline_id, request.body)
        except ActiveUpdateError:
            if not doubtful:
                notes.clear()
            elif ours := find_ours(workspace, pipeline_id, request, note):
                return _found(notes, note, ours)
            raise
        except UnknownStartError as e:
            log.warning("%s; looking whether it was started", e.message)
            lost = e
        except RefusedError:
            if not doubtful:
                notes.clear()
            raise
        else:
            if update_id:
                notes.save({**note, "update_id": update_id})
                return Started(update_id, BY_ANSWER)
        doubtful = True
        if ours := _search(workspace, pipeline_id, request, note, retry_policy):
            return _found(notes, note, ours)
        if lost and lost.retry_after > retry_policy.settle:
            retry_policy.sleep(lost.retry_after - retry_policy.settle)
    raise UnknownStartError(
        f"pipeline {pipeline_id}: UNKNOWN whether an update was started: {lost.message if lost else 'no update appeared'}",
        hint="the next attempt of this task looks for it before it sends anything",
    ) from lost


def _search(
    workspace: Workspace, pipeline_id: str, request: StartRequest, note: Mapping[str, Any], retry_policy: RetryPolicy
) -> dict[str, Any] | None:
    waited = 0.0
    while True:
        ours = find_ours(workspace, pipeline_id, request, note)
        if ours or waited >= retry_policy.settle:
            return ours
        retry_policy.sleep(retry_policy.interval)
        waited += retry_policy.interval


def _found(notes: Notes, note: Mapping[str, Any], ours: Mapping[str, Any]) -> Started:
    update_id = str(ours["update_id"])
    log.warning(
        "update %s is taken for this run's: it is the one since the start was sent that has its cause and selections",
        update_id,
    )
    notes.save({**note, "update_id": update_id})
    return Started(update_id, BY_SEARCH)
