"""Following an update to its end, through the updates that the workspace starts in its place.

A failed update of a production pipeline is retried by the workspace itself, and one that met a new schema is started
again: the failure of the first says nothing yet. One function judges; a task that waits, a sensor that pokes and the
trigger all run it, over blocking and asynchronous calls alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from urllib.parse import urlencode

from airflow_ckpt_provider.lakeflow.flows import bare, flow_status
from airflow_ckpt_provider.lakeflow.updates import (
    COMPLETED,
    FAILED,
    FOLLOW_UPS,
    RUNNING,
    UpdateState,
    active_update,
    retries_by_itself,
)

#: Seconds in which a retry of the workspace begins after the failure, by default.
FOLLOW_UP_WITHIN = 60.0
#: Status of a flow that has begun to read.
RAN = (RUNNING, COMPLETED)
#: Pages of events that are read for it, of 250 events.
_PAGES = 8


class Progress(StrEnum):
    """The status of a wait."""

    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    CANCELED = "canceled"


@dataclass(frozen=True, slots=True)
class Wait:
    """What is waited for.

    :param update_id: the update; empty: until no update is active.
    :param wait_for: ``COMPLETED``, or ``RUNNING`` for pipelines that never end.
    :param follow_up_within: seconds after a failure in which an automatic retry may begin.
    :param flows: flows that have to run before the state that is waited for is a success; their names as in the event log.
    :param flows_run_for: seconds that they have to run without a failure, where the update does not end.
    """

    update_id: str = ""
    wait_for: str = COMPLETED
    follow_up_within: float = FOLLOW_UP_WITHIN
    flows: tuple[str, ...] = ()
    flows_run_for: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The wait as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"flows": list(self.flows)}

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> Wait:
        """Read what :meth:`to_json` wrote."""
        return cls(**{**known, "flows": tuple(known.get("flows") or ())})


@dataclass(frozen=True, slots=True)
class Events:
    """What the newest events say of some flows.

    :param status: flow -> the newest status that says whether it ran: RUNNING, COMPLETED or FAILED before others.
    :param failed: time of the newest event in which one of them failed, as the event says it; empty: none was read.
    :param newest: time of the newest event of theirs, likewise.
    :param reaches_back: all events since those of the last poll were read.
    """

    status: Mapping[str, str]
    failed: str = ""
    newest: str = ""
    reaches_back: bool = True


@dataclass(frozen=True, slots=True)
class Memory:
    """What earlier looks saw.

    :param states: every state seen, in order, over all updates of the chain.
    """

    states: tuple[UpdateState, ...] = ()

    @property
    def update_ids(self) -> tuple[str, ...]:
        """The update and those in its place, in order."""
        return tuple(dict.fromkeys(state.update_id for state in self.states))

    def saw(self, update: Mapping[str, Any], now: datetime) -> Memory:
        """The same with one more look."""
        state = UpdateState.of(update, now)
        last = self.states[-1] if self.states else None
        same = last and (last.update_id, last.state) == (state.update_id, state.state)
        return self if same else replace(self, states=(*self.states, state))

    def flows_run(self, since: datetime | None, events: Events | None = None) -> Memory:
        """The same, with the time since which all flows run without a failure; ``None``: they do not.

        :param events: what was read of them.
        """
        state = replace(
            self.states[-1],
            flows_run_since=since,
            flow_failed=events.failed if events else "",
            event_seen=events.newest if events else "",
        )
        return replace(self, states=(*self.states[:-1], state))

    def to_json(self) -> list[dict[str, Any]]:
        """The memory as plain JSON."""
        return [state.to_json() for state in self.states]

    @classmethod
    def from_json(cls, known: Any) -> Memory:
        """Read what :meth:`to_json` wrote; nothing is an empty one."""
        return cls(tuple(UpdateState.from_json(each) for each in known or ()))


@dataclass(frozen=True, slots=True)
class Answer:
    """What one poll found.

    :param progress: the status of the wait.
    :param message: in words, with the id and the state.
    :param memory: for the next poll.
    :param state: the newest state, of the update or of the pipeline.
    """

    progress: Progress
    message: str
    memory: Memory
    state: str


#: Yields what to GET below the pipeline, is sent the answer, and returns the judgement.
Looking = Generator[str, dict[str, Any], Answer]


def looking(wait: Wait, memory: Memory, now: datetime | None = None) -> Looking:
    """Look once.

    :param wait: what is waited for.
    :param memory: what the look before remembered.
    :param now: the time; that of the clock by default.
    """
    now = now or datetime.now(UTC)
    if not wait.update_id:
        return (yield from _looking_for_idle(memory))
    current = memory.update_ids[-1] if memory.states else wait.update_id
    while True:
        update = (yield f"updates/{current}").get("update") or {}
        memory = memory.saw({"update_id": current, **update}, now)
        state = memory.states[-1]
        said = f"update {current} is {state.state}{f' ({state.cause})' if state.cause in FOLLOW_UPS else ''}"
        if state.is_successful or (wait.wait_for == RUNNING and state.state == RUNNING):
            if not wait.flows:
                return Answer(Progress.DONE, said, memory, state.state)
            return (yield from _looking_for_flows(wait, memory, now, said))
        if not state.is_terminal:
            return Answer(Progress.WAITING, f"{said}, waiting for {wait.wait_for}", memory, state.state)
        pipeline = yield ""
        newer = _newer_than(current, pipeline)
        successor = yield from _in_its_place(newer)
        if successor:
            current = successor
            continue
        recent = (now - (state.seen or now)).total_seconds() < wait.follow_up_within
        may_follow = state.state == FAILED and not newer and retries_by_itself(pipeline, update)
        if may_follow and (recent or pipeline.get("state") == "RECOVERING"):
            return Answer(Progress.WAITING, f"{said}; an automatic retry may follow", memory, state.state)
        ended = Progress.FAILED if state.state == FAILED else Progress.CANCELED
        return Answer(ended, said, memory, state.state)


def _looking_for_flows(wait: Wait, memory: Memory, now: datetime, said: str) -> Looking:
    """See that the flows run: an update can be RUNNING before any of them has begun, and complete without one of them."""
    state = memory.states[-1]
    events = yield from _events_of_flows(wait.flows, frozenset(memory.update_ids), state.event_seen)
    status = events.status
    failed = sorted(name for name, found in status.items() if found == FAILED)
    missing = [name for name in wait.flows if status.get(name) not in (*RAN, FAILED)]
    if failed or missing:
        memory = memory.flows_run(None)
        words = [f"flow {name} is {FAILED}" for name in failed]
        words += [
            f"flow {name} was not seen to run{f' ({status[name]})' if name in status else ''}" for name in missing
        ]
        said = f"{said}, but {', '.join(words)}"
        # The event log may be behind; and a flow that fails may be started again as long as its update runs.
        late = (now - (state.seen or now)).total_seconds() >= wait.follow_up_within
        ended = state.is_terminal and (bool(failed) or late)
        return Answer(Progress.FAILED if ended else Progress.WAITING, said, memory, state.state)
    since = state.flows_run_since or now
    failed_again = state.flows_run_since is not None and _is_later(events.failed, state.flow_failed)
    said = f"{said}, and {', '.join(wait.flows)} ran"
    if failed_again or not events.reaches_back:
        since = now
        why = f"failed at {events.failed} and began again" if failed_again else "more events came than are read"
        said = f"{said}, but {why} since the last poll"
    memory = memory.flows_run(since, replace(events, failed=events.failed or state.flow_failed))
    if state.is_successful or (now - since).total_seconds() >= wait.flows_run_for:
        return Answer(Progress.DONE, said, memory, state.state)
    return Answer(
        Progress.WAITING, f"{said}; waiting whether it stays so for {wait.flows_run_for:g} s", memory, state.state
    )


def _events_of_flows(
    flows: tuple[str, ...], update_ids: frozenset[str], seen: str
) -> Generator[str, dict[str, Any], Events]:
    """Read the events of flows in some updates, newest first.

    :param seen: time of the newest event of the last poll: all after it are read, for a flow may have failed and begun again.
    """
    found: dict[str, str] = {}
    failed = newest = ""
    query: dict[str, Any] = {"max_results": 250, "order_by": "timestamp desc"}
    reached = not seen
    for _ in range(_PAGES):
        page = yield f"events?{urlencode(query)}"
        for event in page.get("events") or ():
            time = str(event.get("timestamp") or "")
            reached = reached or not _is_later(time, seen)
            origin = event.get("origin") or {}
            name = _meant(str(origin.get("flow_name") or ""), flows)
            if origin.get("update_id") not in update_ids or not name:
                continue
            newest = newest or time
            status = flow_status(event)
            failed = failed or (time if status == FAILED else "")
            if status and found.get(name) not in (*RAN, FAILED):
                found[name] = status if status in (*RAN, FAILED) else found.get(name, status)
        token = page.get("next_page_token")
        if not token:
            reached = True
            break
        if reached and all(found.get(name) in (*RAN, FAILED) for name in flows):
            break
        query = {"max_results": 250, "page_token": token}
    return Events(found, failed, newest or seen, reached)


def _is_later(time: str, than: str) -> bool:
    """Whether an event's time is later than another's; both are the workspace's. No time is earlier than any."""
    try:
        return bool(time) and (not than or datetime.fromisoformat(time) > datetime.fromisoformat(than))
    except (ValueError, TypeError):
        return time != than  # a form that is not known: take it for a new one


def _meant(name: str, flows: tuple[str, ...]) -> str:
    """The flow that an event names: events may show catalog and schema before a name that was given without."""
    return name if name in flows else next((each for each in flows if "." not in each and each == bare(name)), "")


def _newer_than(update_id: str, pipeline: Mapping[str, Any]) -> list[str]:
    """The updates after one, oldest first; none where it is too old to be listed."""
    ids = [str(update.get("update_id")) for update in pipeline.get("latest_updates") or ()]
    return ids[: ids.index(update_id)][::-1] if update_id in ids else []


def _in_its_place(newer: list[str]) -> Generator[str, dict[str, Any], str | None]:
    """The update that the workspace started in place of one that ended; only the very next one can be it."""
    if newer:
        update = (yield f"updates/{newer[0]}").get("update") or {}
        if update.get("cause") in FOLLOW_UPS:
            return newer[0]
    return None


def _looking_for_idle(memory: Memory) -> Looking:
    pipeline = yield ""
    state, active = str(pipeline.get("state") or ""), active_update(pipeline)
    said = f"the pipeline is {state}"
    if state == "DELETED":
        return Answer(Progress.FAILED, said, memory, state)
    # FAILED is at rest as well: nothing runs, and the next start is accepted.
    if active is None and state in ("IDLE", "FAILED"):
        return Answer(Progress.DONE, said, memory, state)
    return Answer(Progress.WAITING, f"{said}, update {active} is active" if active else said, memory, state)


def look(ask: Callable[[str], dict[str, Any]], steps: Looking) -> Answer:
    """Run a poll over blocking calls.

    :param ask: gets what lies below the pipeline.
    :param steps: from :func:`looking`.
    """
    try:
        path = next(steps)
        while True:
            path = steps.send(ask(path))
    except StopIteration as e:
        answer: Answer = e.value
        return answer


async def a_look(ask: Callable[[str], Awaitable[dict[str, Any]]], steps: Looking) -> Answer:
    """Run a poll over asynchronous calls; see :func:`look`."""
    try:
        path = next(steps)
        while True:
            path = steps.send(await ask(path))
    except StopIteration as e:
        answer: Answer = e.value
        return answer
