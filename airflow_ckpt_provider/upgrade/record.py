"""What an upgrade has done so far, kept in the repository of its backups.

It outlives workers, retries and cleared tasks, and it is the lock: a stream has one upgrade at a time. Each step is a new
file, numbered in the order in which they came, created only if there is none; whoever comes second sees who was first::

    upgrades/<name>/<nnnnnn>.json      {"event": "begun" | "sealed" | …, "upgrade": …, "at": …, …}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from airflow_ckpt_provider.backup.names import checked_name
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import RefusedError, RepositoryError, command
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.units import shown_time

_UPGRADES = "upgrades"


class Event(StrEnum):
    """A step of an upgrade."""

    BEGUN = "begun"
    #: The way back was judged a second time, and from here on the stream may be stopped.
    STOPPING = "stopping"
    #: No Spark starts from the checkpoint, old code or new.
    SEALED = "sealed"
    #: The new code may start: whatever lies beyond the drained batch is its own.
    RELEASED = "released"
    #: The new code is not kept: from here on it is neither let start nor kept, and everything is put back.
    GOING_BACK = "going_back"
    #: A way back was refused, with nothing changed; the next try is another plan.
    REFUSED = "refused"
    #: The checkpoint, and the sink, are what they were before the new code.
    BACK = "back"
    KEPT = "kept"
    #: The stream is free for another upgrade.
    ENDED = "ended"


#: Which step is not done after which others: of ``kept`` and ``going_back`` the one that is noted first decides.
_NOT_AFTER = {
    Event.RELEASED: (Event.BACK, Event.GOING_BACK),
    Event.GOING_BACK: (Event.KEPT,),
    Event.KEPT: (Event.BACK, Event.GOING_BACK),
}


@dataclass(frozen=True, slots=True)
class Upgrade:
    """One upgrade, as far as it has come.

    :param name: name of the stream in the repository.
    :param upgrade_id: the run that performs it.
    :param number: of its newest event, counted over all upgrades of the stream.
    :param events: event -> what was noted of it, with ``at``.
    """

    name: str
    upgrade_id: str
    number: int
    events: Mapping[Event, Mapping[str, Any]]

    @property
    def is_open(self) -> bool:
        """Whether it has not ended yet."""
        return Event.ENDED not in self.events

    def has(self, event: Event) -> bool:
        """Whether a step was done."""
        return event in self.events

    def fact(self, event: Event, key: str) -> Any:
        """What was noted of a step; ``None`` where it was not done or nothing was noted."""
        return self.events.get(event, {}).get(key)

    @property
    def accepted(self) -> tuple[str, ...]:
        """What was accepted when it began; nothing in a record of an older release."""
        return tuple(self.fact(Event.BEGUN, "accepted") or ())

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Codes of the obstacles on its way back that were known, and accepted, when it began."""
        known = self.fact(Event.BEGUN, "way_back") or {}
        return tuple(str(obstacle["code"]) for obstacle in known.get("obstacles") or ())

    @property
    def together(self) -> tuple[str, ...]:
        """The streams of one application that are upgraded together; empty where it is one stream alone."""
        return tuple(self.fact(Event.BEGUN, "together") or ())

    def plan_id(self, *, back: bool) -> str:
        """The id of its seal: on the way forward, or back; the same for every attempt, until one is refused."""
        return self._plan_id(f"back {self._refused}" if back else "forward")

    @property
    def plan_ids(self) -> tuple[str, ...]:
        """The ids of all its seals, newest first."""
        return *(self._plan_id(f"back {i}") for i in range(self._refused, -1, -1)), self._plan_id("forward")

    @property
    def _refused(self) -> int:
        return int(self.fact(Event.REFUSED, "times") or 0)

    def _plan_id(self, what: str) -> str:
        begun = self.events[Event.BEGUN]["at"]
        # Streams of one application are begun by one run, and may be at one moment: no two of their seals have one id.
        of = f" of {self.name}" if self.together else ""
        return hashlib.sha256(f"{self.upgrade_id} {begun} {what}{of}".encode()).hexdigest()[:8]


def begin_upgrade(repository: Repository, name: str, upgrade_id: str, **facts: Any) -> Upgrade:
    """Begin an upgrade, or find the one that this run has begun.

    :param name: name of the stream in the repository.
    :param upgrade_id: the run that performs it.
    :param facts: what is known at its beginning.
    :raises RefusedError: another run upgrades the stream.
    """
    while True:
        newest = newest_upgrade(repository, name)
        if newest and newest.is_open:
            if newest.upgrade_id != upgrade_id:
                raise being_upgraded(repository, newest, name)
            return newest
        number = newest.number if newest else 0
        if _write(repository, name, number + 1, Event.BEGUN, upgrade_id, facts):
            found = newest_upgrade(repository, name)
            if found and found.upgrade_id == upgrade_id:
                return found


def being_upgraded(repository: Repository, upgrade: Upgrade, what: str) -> RefusedError:
    """Say who upgrades a stream.

    :param upgrade: the open one.
    :param what: what it upgrades, in words.
    """
    return RefusedError(
        f"{what} is being upgraded by {upgrade.upgrade_id}, since {shown_time(upgrade.events[Event.BEGUN]['at'])}",
        hint="let that run end, or clear it; where it was deleted: "
        f"`{command('upgrade', repository.location, '--name', upgrade.name, '--end', '--reason')} …`",
    )


def newest_upgrade(repository: Repository, name: str) -> Upgrade | None:
    """The newest upgrade of a stream, ended or not; ``None`` where there was none.

    :raises RepositoryError: one of its notes is missing or cannot be read, or is of another upgrade.
    """
    # A listing is no snapshot: it may have a note, and lack one that was written just before.
    with suppress(_MissingNoteError):
        return _newest(repository, name)
    return _newest(repository, name)


class _MissingNoteError(RepositoryError):
    """The notes of an upgrade are not all of its notes."""


def _newest(repository: Repository, name: str) -> Upgrade | None:
    paths = sorted(repository.whole_files(f"{_UPGRADES}/{checked_name(name)}"), reverse=True)
    events: dict[Event, Mapping[str, Any]] = {}
    newest, whose = 0, ""
    for i, path in enumerate(paths):
        try:
            number = int(path.rpartition("/")[2].removesuffix(".json"))
            value = load_json(repository.location.read_document(path))
            event, upgrade_id = Event(value.pop("event")), str(value["upgrade"])
            if not isinstance(value["at"], str):
                raise ValueError(f"its time is {value['at']!r}")
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise RepositoryError(f"{path} cannot be read: {e}", hint=_to_repair(path, "of an upgrade")) from e
        if i == 0:
            newest, whose = number, upgrade_id
        expected = f"{_UPGRADES}/{name}/{newest - i:06d}.json"
        of = f"of the upgrade of {name} by {whose}"
        if number != newest - i:
            raise _MissingNoteError(f"{expected} is missing", hint=_to_repair(expected, of))
        if upgrade_id != whose:
            raise RepositoryError(
                f"{path} is a note of {upgrade_id}, in the middle of the upgrade of {name} by {whose}",
                hint=_to_repair(path, of),
            )
        events.setdefault(event, value)
        if event is Event.BEGUN:
            return Upgrade(name, whose, newest, events)
    if paths:
        missing = f"{_UPGRADES}/{name}/{newest - len(paths):06d}.json"
        raise _MissingNoteError(
            f"{missing} is missing: no note says that {whose} has begun",
            hint=_to_repair(missing, f"of the upgrade of {name} by {whose}"),
        )
    return None


def _to_repair(path: str, of: str) -> str:
    """How a record becomes whole again. Nobody may take the stream until then: what the note said is not known."""
    return (
        f"it is a note {of}: put it back from a version of the store or from a copy of the repository. If there is none: stop "
        f"the run, put code and checkpoint in order by hand (`{command('status')} …` shows a seal), then move the notes of that "
        f"upgrade out of {path.rpartition('/')[0]}"
    )


def streams_upgraded(repository: Repository) -> tuple[str, ...]:
    """Names of the streams that have had an upgrade."""
    return repository.names_in(_UPGRADES)


def upgrade_of(repository: Repository, name: str, upgrade_id: str) -> Upgrade:
    """The upgrade that a run has under way.

    :raises RefusedError: it has none: it ended, or never began.
    """
    found = newest_upgrade(repository, name)
    if found is None or found.upgrade_id != upgrade_id or not found.is_open:
        ended = found is not None and found.upgrade_id == upgrade_id
        raise RefusedError(
            f"{upgrade_id} has no upgrade of {name} under way{': it has ended' if ended else ''}",
            hint="clear the run from its first task on, or start a new one",
        )
    return found


def is_needed(upgrade: Upgrade) -> bool:
    """Whether anything may have been changed that has to be put back: at the least, the stream was to be stopped."""
    return (upgrade.has(Event.STOPPING) or upgrade.has(Event.SEALED)) and not upgrade.has(Event.KEPT)


def note_refusal(repository: Repository, upgrade: Upgrade) -> Upgrade:
    """Note that a way back was refused."""
    return _noted(repository, upgrade, Event.REFUSED, {"times": int(upgrade.fact(Event.REFUSED, "times") or 0) + 1})


def note(repository: Repository, upgrade: Upgrade, event: Event, **facts: Any) -> Upgrade:
    """Note a step; one that is noted already stays as it is.

    :return: the upgrade with it.
    :raises RefusedError: the upgrade is not the newest any more, or a step is noted that excludes this one.
    """
    return upgrade if upgrade.has(event) else _noted(repository, upgrade, event, facts)


def check_step(upgrade: Upgrade, event: Event) -> None:
    """See that a step may be done, or was done before.

    :raises RefusedError: a step is noted that excludes it.
    """
    before = next((step for step in _NOT_AFTER.get(event, ()) if upgrade.has(step)), None)
    if before is None:
        return
    of, since = f"upgrade {upgrade.upgrade_id} of {upgrade.name}", shown_time(upgrade.events[before]["at"])
    said = {
        Event.BACK: (f"{of} was rolled back, {since}: the old code runs", "start a new run"),
        Event.GOING_BACK: (
            f"the way back of {of} has begun, {since}: the new code is neither let start nor kept",
            "clear the task `take_back` with what comes after it; then start a new run",
        ),
        Event.KEPT: (
            f"{of} was decided, {since}: the new code is kept",
            "rewind the stream by hand, or start a new run",
        ),
    }
    message, hint = said[before]
    raise RefusedError(message, hint=hint)


def _noted(repository: Repository, upgrade: Upgrade, event: Event, facts: Mapping[str, Any]) -> Upgrade:
    # What was noted since has taken the number: then the write fails, and this is asked again.
    check_step(upgrade, event)
    if not _write(repository, upgrade.name, upgrade.number + 1, event, upgrade.upgrade_id, facts):
        # Another attempt of the same task was faster, or somebody has ended this upgrade.
        now = upgrade_of(repository, upgrade.name, upgrade.upgrade_id)
        return note(repository, now, event, **facts)
    found = newest_upgrade(repository, upgrade.name)
    if found is None or not found.has(event):
        raise RepositoryError(f"the note {event} of {upgrade.upgrade_id} is gone", hint="see who deletes files there")
    return found


def end_upgrade(
    repository: Repository, upgrade: Upgrade, *, kind: str, made_by: str, reason: str, **facts: Any
) -> Upgrade:
    """Leave the stream to the next upgrade, with an audit record; one that has ended stays as it is.

    :param kind: how it ended.
    :param made_by: the run or user that ends it.
    :param reason: why, for the audit record.
    :param facts: what else there is to be kept.
    :return: the upgrade with its end.
    """
    if upgrade.is_open:
        upgrade = note(repository, upgrade, Event.ENDED, kind=kind, made_by=made_by, reason=reason)
        about = {
            "kind": "upgrade",
            "upgrade": upgrade.upgrade_id,
            "name": upgrade.name,
            "ended": kind,
            "reason": reason,
        }
        repository.record(upgrade.plan_id(back=False), {**about, "made_by": made_by, **facts})
    return upgrade


def _write(
    repository: Repository, name: str, number: int, event: Event, upgrade_id: str, facts: Mapping[str, Any]
) -> bool:
    head = {"event": event.value, "upgrade": upgrade_id, "at": datetime.now(UTC).isoformat()}
    try:
        repository.location.create(
            f"{_UPGRADES}/{checked_name(name)}/{number:06d}.json", json.dumps({**head, **facts}).encode()
        )
    except FileExistsError:
        return False
    return True
