"""Starting an update at most once, also if the request, its answer or the sender is lost.

A second reset would read the same input again, a second full refresh would empty the table again. So a note is kept right
before each request is sent: the newest update that the workspace then knew, and the time. Where an answer was lost
(time-out, cut connection, 503), or the worker died before it could note the id, the updates after that one are looked
through for ours before anything is sent again. An answer that proves that nothing was started takes its note back.

The workspace does not repeat all fields of a request: an ordinary update looks like a reset. So for a request with such
fields only an update that was created around the time of a send is ours; of one that was created at another time nobody
knows. Workers and workspaces keep their clocks right to a minute.

A worker may be suspended at any moment, and wake when a retry has done it all. So a note belongs to an attempt, and is read
again right before the request; and if a request was sent late all the same, its update is stopped before it has done anything.

Not Airflow's ``ResumableJobMixin``: that one notes an id after the fact, and submits again once the job has failed.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_ckpt_provider.errors import (
    ActiveUpdateError,
    ChangeRunningError,
    RefusedError,
    UnknownStartError,
    WorkspaceForbiddenError,
)
from airflow_ckpt_provider.lakeflow.request import StartRequest
from airflow_ckpt_provider.lakeflow.updates import active_update
from airflow_ckpt_provider.lakeflow.workspace import Workspace
from airflow_ckpt_provider.storage.clocks import Clocks

log = logging.getLogger(__name__)

#: How often what is outdated is prepared again before a start.
_PREPARATIONS = 3
#: Seconds after a send in which the workspace creates its update: the longest time-out of a request, and the time in which
#: it shows. Seconds by which the clocks of worker and workspace may differ.
_CREATED_WITHIN, _CLOCKS_DIFFER = 190.0, 60.0
#: Seconds between the checks and the request, after which the checks are repeated.
_FRESH_FOR = 10.0
#: How an update was found to be ours.
BY_ANSWER, BY_NOTE, BY_SEARCH = "answer", "note", "search"


class Notes(Protocol):
    """Where a note outlives the process."""

    def load(self) -> dict[str, Any] | None:
        """The note as it is now, where there is one: another attempt may have written it."""
        ...

    def save(self, note: dict[str, Any]) -> None:
        """Keep it."""
        ...

    def clear(self) -> None:
        """Forget it: nothing was started."""
        ...


class Prepared(Protocol):
    """What has to be as new as the start itself, such as copies of the tables that it empties."""

    def outdated(self) -> bool:
        """Ask whether something was changed since it was prepared."""
        ...

    def renew(self) -> None:
        """Prepare what was found to be outdated.

        :raises RefusedError: it cannot be.
        """
        ...


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a lost answer is looked after.

    :param settle: seconds in which an update that the workspace accepted shows among its updates.
    :param interval: seconds between two polls.
    :param sends: how often a start is sent when the looks found nothing.
    :param sleep: waits.
    :param now: the time, in seconds since the epoch.
    """

    settle: float = 10.0
    interval: float = 2.0
    sends: int = 3
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time


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

    :param note: from :func:`note_before`, with the times at which the request was sent.
    :raises RefusedError: several updates can be it, or nobody knows whether one is it.
    """
    found: list[dict[str, Any]] = []
    for update in workspace.iter_updates(pipeline_id):
        if update.get("update_id") == note.get("after") or (update.get("creation_time") or 0) < (
            note.get("since") or 0
        ):
            break
        if request.may_be(update):
            found.append(update)
    strangers: list[dict[str, Any]] = []
    if named := [update for update in found if request.is_named_by(update)]:
        found = named
    elif request.not_repeated and "sent" in note:  # an older version of this package did not note it
        strangers = [update for update in found if not _sent_then(note["sent"], update)]
        found = [update for update in found if update not in strangers]
    if len(found) > 1 or (strangers and not found):
        ids = ", ".join(str(update.get("update_id")) for update in found or strangers)
        why = (
            f"{ids} have the same cause and selections"
            if found
            else f"{ids} was not created around the time of the start, and the workspace does not repeat "
            f"{', '.join(request.not_repeated)}"
        )
        raise RefusedError(
            f"pipeline {pipeline_id}: UNKNOWN which update is this run's: {why}, and the answer to the start was lost",
            hint="see which is it in the pipeline's event log and wait for that one with PipelineUpdateSensor(update_id=…); "
            "clear this task only when none is",
        )
    return found[0] if found else None


def _sent_then(sent: Sequence[float], update: Mapping[str, Any]) -> bool:
    """Whether an update was created so soon after one of these times that it can be the one that was started then."""
    created = (update.get("creation_time") or 0) / 1000
    return any(time - _CLOCKS_DIFFER <= created <= time + _CREATED_WITHIN + _CLOCKS_DIFFER for time in sent)


def start_once(
    workspace: Workspace,
    pipeline_id: str,
    request: StartRequest,
    notes: Notes,
    *,
    send: Callable[[], str | None] | None = None,
    prepared: Prepared | None = None,
    retry_policy: RetryPolicy | None = None,
) -> Started:
    """Start an update, or find the one that an attempt before has started.

    :param workspace: the workspace.
    :param pipeline_id: the pipeline.
    :param request: what to start.
    :param notes: this step's notes; they must outlive the process for the promise to hold over a crash.
    :param send: sends the start in another way (through a job), and returns the update's id or ``None`` where the update
        has to be searched for.
    :param prepared: what is prepared, or prepared again, right before each send.
    :param retry_policy: how long a lost answer is looked after.
    :raises ActiveUpdateError: another update is active; nothing was started.
    :raises ChangeRunningError: another attempt took over; nothing was started.
    :raises UnknownStartError: no answer, and no update to be seen; the note is kept, and the next attempt checks again.
    :raises RefusedError: the workspace refused, or it is not known which update is ours.
    :raises WorkspaceForbiddenError: the login or its permissions do not suffice; nothing was started.
    """
    retry_policy = retry_policy or RetryPolicy()
    #: The note of starts that may be on their way, of which nobody knows what became.
    known = notes.load()
    if known and known.get("update_id"):
        return Started(str(known["update_id"]), BY_NOTE)
    if known and (ours := _search(workspace, pipeline_id, request, known, retry_policy)):
        return _found(notes, known, ours)
    attempt, lost = uuid.uuid4().hex, None
    for _ in range(retry_policy.sends):
        since = Clocks()
        before, ours = _ready(workspace, pipeline_id, request, known, prepared, retry_policy)
        if known and ours:
            return _found(notes, known, ours)
        if prepared:  # which takes its time; what ran meanwhile is seen after the answer
            since = Clocks()
        _see_note(notes, known, pipeline_id)
        note = {**(known or {**before, "sent": []}), "attempt": attempt}
        if "sent" in note:
            note["sent"] = [*note["sent"], retry_policy.now()]
        notes.save(note)
        _see_note(notes, note, pipeline_id)
        if since.elapsed > _FRESH_FOR:
            known = note
            if ours := find_ours(workspace, pipeline_id, request, known):
                return _found(notes, known, ours)
            continue
        try:
            update_id = send() if send else workspace.start_update(pipeline_id, request.body)
        except UnknownStartError as e:
            log.warning("%s; looking whether it was started", e.message)
            lost = e
        except (RefusedError, WorkspaceForbiddenError) as e:
            # This send has started nothing; of those before nobody knows yet.
            if notes.load() == note:
                notes.save(known) if known else notes.clear()
            if (
                known
                and isinstance(e, ActiveUpdateError)
                and (ours := find_ours(workspace, pipeline_id, request, known))
            ):
                return _found(notes, known, ours)
            raise
        else:
            if update_id:
                if mine := notes.load() == note:
                    notes.save({**note, "update_id": update_id})
                if prepared or not mine or since.elapsed > _FRESH_FOR:
                    _see_what_ran_before(workspace, pipeline_id, request, update_id, before, prepared)
                return Started(update_id, BY_ANSWER)
        known = note
        if ours := _search(workspace, pipeline_id, request, known, retry_policy):
            started = _found(notes, known, ours)
            if prepared:
                _see_what_ran_before(workspace, pipeline_id, request, started.update_id, before, prepared)
            return started
        if lost and lost.retry_after > retry_policy.settle:
            retry_policy.sleep(lost.retry_after - retry_policy.settle)
    raise UnknownStartError(
        f"pipeline {pipeline_id}: UNKNOWN whether an update was started: {lost.message if lost else 'no update appeared'}",
        hint="the next attempt of this task looks for it before it sends anything",
    ) from lost


def _ready(
    workspace: Workspace,
    pipeline_id: str,
    request: StartRequest,
    known: Mapping[str, Any] | None,
    prepared: Prepared | None,
    retry_policy: RetryPolicy,
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Prepare what is outdated; return the note for a start that is sent now, or the update that has changed what was prepared.

    :param known: the note of starts of which nobody knows what became; ``None``: there are none.
    """
    renewed = 0
    while True:
        before = note_before(workspace, pipeline_id, request)
        if not (prepared and prepared.outdated()):
            return before, None
        if renewed == _PREPARATIONS:
            raise RefusedError(
                f"pipeline {pipeline_id}: its tables were changed each of the {renewed} times that they were copied",
                hint="stop what writes to them, and clear this task",
            )
        if known and (ours := _search(workspace, pipeline_id, request, known, retry_policy)):
            return before, ours
        prepared.renew()
        renewed += 1


def _see_note(notes: Notes, note: dict[str, Any] | None, pipeline_id: str) -> None:
    """See that the note is the one that this attempt knows.

    :raises ChangeRunningError: another attempt has written it.
    """
    if notes.load() != note:
        raise ChangeRunningError(
            f"pipeline {pipeline_id}: another attempt of this run took over; this one starts nothing",
            hint="see what that attempt does; a retry follows its update",
        )


def _see_what_ran_before(
    workspace: Workspace,
    pipeline_id: str,
    request: StartRequest,
    update_id: str,
    before: Mapping[str, Any],
    prepared: Prepared | None,
) -> None:
    """See that nothing ran between the last check and our update that makes it wrong; else stop ours, which has only begun.

    :param before: the note for the start.
    :param prepared: whatever ran makes it outdated; ``None``: only an update that another attempt may have started counts.
    :raises RefusedError: something ran.
    """
    between, seen = [], False
    for update in workspace.iter_updates(pipeline_id):
        if update.get("update_id") == before.get("after"):
            break
        if seen and (prepared or request.may_be(update)):
            between.append(str(update.get("update_id")))
        seen = seen or update.get("update_id") == update_id
    if between:
        if active_update(workspace.ask(pipeline_id)) == update_id:
            workspace.stop_pipeline(pipeline_id)
        ran = f"pipeline {pipeline_id}: update {between[0]} ran between the last check and the start of {update_id}"
        if prepared:
            raise RefusedError(
                f"{ran}, which was stopped: what it wrote is in no copy",
                hint="see in the history of the tables that they were not emptied, and clear this task, which copies them "
                "again",
            )
        raise RefusedError(
            f"{ran}, which was stopped: another attempt of this run may have started it",
            hint="see in the pipeline's event log what both have done",
        )


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
