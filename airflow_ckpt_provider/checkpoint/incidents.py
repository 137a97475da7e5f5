"""What may happen to a stream that is watched for ever, and which of it is new."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_ckpt_provider.checkpoint.conditions import COMMITTED_BATCH, Condition, Wait
from airflow_ckpt_provider.checkpoint.waiting import Answer, State, look
from airflow_ckpt_provider.checkpoint.waiting_memory import Memory
from airflow_ckpt_provider.storage.location import Location

STUCK, FELL_BEHIND, SILENT, HISTORY_REWRITTEN = "stuck", "fell_behind", "silent", "history_rewritten"

#: Beyond every batch there will ever be: the watch has no end.
_NEVER = Condition(COMMITTED_BATCH, 2**63)


@dataclass(frozen=True, slots=True)
class Limits:
    """What counts as an incident; ``None`` for what does not. Times in seconds.

    :param stuck_after: nothing was written for so long while a batch is under way.
    :param behind_after: the newest batch runs for longer.
    :param max_gap: more logged batches are uncommitted.
    :param silent_after: no batch was begun or committed for so long.
    """

    stuck_after: float | None = None
    behind_after: float | None = None
    max_gap: int | None = None
    silent_after: float | None = None


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that has begun.

    :param kind: ``stuck``, ``fell_behind``, ``silent`` or ``history_rewritten``.
    :param message: in words, with the checkpoint's name.
    :param hint: the next step.
    :param progress: how far the stream is.
    :param noticed_at: when a poll showed it, in UTC.
    """

    kind: str
    message: str
    hint: str
    progress: dict[str, Any]
    noticed_at: datetime

    def to_json(self) -> dict[str, Any]:
        """The incident as plain JSON."""
        return {
            "incident": self.kind,
            "checkpoint": self.progress["checkpoint"],
            "message": self.message,
            "hint": self.hint,
            "progress": self.progress,
            "noticed_at": self.noticed_at.isoformat(),
        }


@dataclass(frozen=True, slots=True)
class Watched:
    """What a watch knows from its looks up to now.

    :param memory: of the last poll.
    :param going_on: kinds of incidents that have begun and are not over.
    :param rewound_to: newest commit after the history was rewritten; that incident is over with the next one.
    """

    memory: Memory = field(default_factory=Memory)
    going_on: frozenset[str] = frozenset()
    rewound_to: int = -1

    def to_json(self) -> dict[str, Any]:
        """What it knows as plain JSON."""
        return {
            "memory": self.memory.to_json(),
            "going_on": sorted(self.going_on),
            "rewound_to": self.rewound_to,
        }

    @classmethod
    def from_json(cls, value: Any) -> Watched:
        """What :meth:`to_json` wrote; anything else is a watch that has not begun."""
        if not isinstance(value, dict):
            return cls()
        memory = Memory.from_json(value.get("memory"))
        return cls(memory, frozenset(value.get("going_on", ())), int(value.get("rewound_to", -1)))


@dataclass(frozen=True, slots=True)
class Glance:
    """One poll of a watch.

    :param begun: incidents that the look before did not show.
    :param watched: for the next poll.
    :param failure: why the look failed and says nothing, or ``None``.
    """

    begun: tuple[Incident, ...]
    watched: Watched
    failure: str | None = None


def glance(location: Location, limits: Limits, watched: Watched, *, now: datetime | None = None) -> Glance:
    """Look once; a checkpoint that does not exist yet has no incidents, nor has a sealed one: somebody works on it.

    :raises StorageError: the store cannot be read, at the first poll or three times in a row.
    :raises UnreadableLogError: a log cannot be parsed, likewise.
    """
    now = now or datetime.now(UTC)
    patience = None if limits.stuck_after is None else timedelta(seconds=limits.stuck_after)
    answer, memory = look(location, Wait(_NEVER, stuck_after=patience, missing_ok=True), watched.memory, now=now)
    if not answer.progress:
        return Glance((), Watched(memory, watched.going_on, watched.rewound_to), answer.message)
    found = _incidents(answer, limits, now)
    kinds = {incident.kind for incident in found}
    rewound_to, newest = watched.rewound_to, answer.progress["latest_committed"]
    newest = -1 if newest is None else int(newest)
    if answer.state is State.WENT_BACK:
        # A past of its own begins. A rewind deletes one batch after the other: that is one incident, not many.
        memory, rewound_to = Memory(), newest
    elif HISTORY_REWRITTEN in watched.going_on and newest <= rewound_to:
        kinds.add(HISTORY_REWRITTEN)
    begun = tuple(incident for incident in found if incident.kind not in watched.going_on)
    return Glance(begun, Watched(memory, frozenset(kinds), rewound_to))


def _incidents(answer: Answer, limits: Limits, now: datetime) -> list[Incident]:
    def incident(kind: str, message: str, hint: str) -> Incident:
        return Incident(kind, message, hint, progress, now)

    progress = answer.progress
    if answer.state is State.WENT_BACK:
        return [incident(HISTORY_REWRITTEN, answer.message, answer.hint or "")]
    if progress["sealed"]:
        return []
    found = []
    if answer.state is State.STUCK:
        found.append(incident(STUCK, answer.message, answer.hint or ""))
    name, uncommitted, batch = progress["checkpoint"], progress["uncommitted"], progress["latest_logged"]
    logged, committed = _since(progress["logged_at"], now), _since(progress["committed_at"], now)
    slow = "compare its batch durations and its input with those of before"
    if limits.max_gap is not None and uncommitted > limits.max_gap:
        found.append(incident(FELL_BEHIND, f"{name} fell behind: {uncommitted} logged batches are uncommitted", slow))
    elif limits.behind_after is not None and uncommitted and logged is not None and logged > limits.behind_after:
        found.append(incident(FELL_BEHIND, f"{name} fell behind: batch {batch} runs for {logged:.0f} s", slow))
    quiet = min((age for age in (logged, committed) if age is not None), default=0.0)
    if limits.silent_after is not None and not uncommitted and quiet > limits.silent_after:
        said = f"{name} is silent: its newest batch {batch} was committed {quiet:.0f} s ago"
        found.append(incident(SILENT, said, "see whether the query still runs, and its sources have anything new"))
    return found


def _since(moment: str | None, now: datetime) -> float | None:
    return None if moment is None else max(0.0, (now - datetime.fromisoformat(moment)).total_seconds())
