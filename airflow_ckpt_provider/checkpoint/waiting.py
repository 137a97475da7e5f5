"""Waiting for a stream: one function judges each poll, whoever waits (a poke, a rescheduled task, a trigger).

A poll takes two listings and at most one small read. What is read is what the answer needs most: the newest offset log
entry where it may be a seal or where the wait is over, else ``metadata``, whose query id shows another query in the same
place. ``state/`` is listed only where the stream may be stuck. Where the driver's logs are given, they are read first:
after a crash at the start no batch comes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from airflow_ckpt_provider.checkpoint.conditions import COMMITTED_BATCH, MAX_GAP, PROGRESSED_BY, Wait
from airflow_ckpt_provider.checkpoint.driver_logs import Crash, DriverLogs, DriverMark, find_crash
from airflow_ckpt_provider.checkpoint.error_log import LogPosition
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry
from airflow_ckpt_provider.checkpoint.poll import Logs, list_logs, newest_state_time, read_entry
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE, parse_query_id
from airflow_ckpt_provider.checkpoint.seal import Seal, parse_seal
from airflow_ckpt_provider.checkpoint.waiting_memory import Memory, stamp
from airflow_ckpt_provider.errors import NotACheckpointError, StorageError, UnreadableLogError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.units import format_duration

#: Looks in a row that may fail once one has succeeded: a wait of hours does not end for one answer that was not given.
_FAILURES = 3
#: After so many looks in which something else had to be read it is the turn of ``metadata``.
_UNCHECKED = 2


class State(StrEnum):
    """What a poll came to."""

    DONE = "done"
    WAITING = "waiting"
    #: A batch was begun and nothing has happened since.
    STUCK = "stuck"
    #: The past is another one than it was: rewound, restored, reset, or another query's.
    WENT_BACK = "went_back"
    #: The driver says that its query was ended by an error.
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a poll came to, for people and for programs.

    :param state: done, waiting, stuck, rewound or crashed.
    :param message: one sentence, with the checkpoint's name.
    :param progress: how far the stream is, as plain JSON.
    :param hint: the next step where the wait has failed.
    """

    state: State
    message: str
    progress: dict[str, Any]
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """One poll: the logs without their seals, and what was read."""

    logs: Logs
    now: datetime
    seals: tuple[tuple[int, str, str], ...]
    entry: OffsetEntry | None = None

    @property
    def latest(self) -> int | None:
        return max(self.logs.offsets, default=None)

    @property
    def committed(self) -> int:
        latest = self.logs.latest_committed
        return -1 if latest is None else latest

    @property
    def uncommitted(self) -> int:
        """Logged batches newer than the newest commit; numbers that async progress tracking left out do not count."""
        committed = self.committed
        return sum(batch > committed for batch in self.logs.offsets)

    @property
    def is_ahead(self) -> bool:
        """A commit without its batch: offsets were lost. Under a seal, async progress tracking may leave one."""
        return self.committed > (-1 if self.latest is None else self.latest) and not self.seals

    @property
    def seal(self) -> Seal | None:
        if not self.seals:
            return None
        number, _, sentence = max(self.seals)
        return parse_seal(sentence.encode(), batch_id=number)

    @property
    def in_words(self) -> str:
        """How far the stream is."""
        if self.latest is None and self.committed < 0:
            words = "no batch logged yet"
        else:
            latest = "none" if self.latest is None else self.latest
            words = (
                f"newest logged batch {latest}, newest committed {self.committed if self.committed >= 0 else 'none'}"
            )
        if seal := self.seal:
            words += f"; sealed by plan {seal.plan_id} ({seal.reason}, {seal.made_by})"
        return words

    def to_json(self) -> dict[str, Any]:
        committed_at, entry = self.logs.committed_at, self.entry
        latest = -1 if self.latest is None else self.latest
        logged_at = self.logs.offsets[latest].modified if latest >= 0 else None
        age = None if committed_at is None else max(0.0, round((self.now - committed_at).total_seconds(), 1))
        return {
            "checkpoint": self.logs.uri,
            "latest_logged": self.latest,
            "latest_committed": self.logs.latest_committed,
            "gap": latest - self.committed,
            "uncommitted": self.uncommitted,
            "batch_time": entry.time.isoformat() if entry and entry.time else None,
            "logged_at": logged_at.isoformat() if logged_at else None,
            "committed_at": committed_at.isoformat() if committed_at else None,
            "seconds_since_commit": age,
            "batches_per_minute": self.logs.batches_per_minute,
            "sources": [source.to_json() for source in entry.sources] if entry else None,
            "sealed": self.seal.sentence if self.seal else None,
        }


def look(
    location: Location, wait: Wait, memory: Memory, *, logs: DriverLogs | None = None, now: datetime | None = None
) -> tuple[Answer, Memory]:
    """Read a checkpoint once and judge.

    :param location: the checkpoint.
    :param wait: what is waited for.
    :param memory: what the look before remembered; ``Memory()`` for the first.
    :param logs: the driver's; what they say counts from ``wait.driver`` on.
    :param now: the time, in UTC.
    :return: the answer, and the memory for the next poll.
    :raises NotACheckpointError: there is none, and ``missing_ok`` does not allow that.
    :raises StorageError: the store cannot be read, at the first poll or three times in a row.
    :raises UnreadableLogError: a log cannot be parsed, likewise.
    """
    now = now or datetime.now(UTC)
    try:
        crash, position = _crash(logs, wait, memory, now) if logs else (None, None)
        if crash is not None:
            return _crashed(location, crash, memory, now), memory
        answer, later = _look(location, wait, memory, now)
    except (StorageError, UnreadableLogError) as e:
        failures = memory.failures + 1
        if memory.looked is None or failures >= _FAILURES:
            raise
        return _answer(State.WAITING, f"look {failures} of {_FAILURES} failed: {e.message}"), replace(
            memory, failures=failures
        )
    return answer, replace(later, failures=0, log=position)


def _crash(logs: DriverLogs, wait: Wait, memory: Memory, now: datetime) -> tuple[Crash | None, LogPosition | None]:
    since = wait.driver or DriverMark()
    # A baseline of an earlier version says no time.
    since = replace(since, at=since.at or memory.started or now)
    return find_crash(logs, since, query_id=memory.query_id, position=memory.log)


def _look(location: Location, wait: Wait, memory: Memory, now: datetime) -> tuple[Answer, Memory]:
    listed = list_logs(location)
    seals = tuple(s for s in memory.seals if s[0] in listed.offsets and stamp(listed.offsets[s[0]]) == s[1])
    seen = _Seen(listed.without(s[0] for s in seals), now, seals)
    if rewritten := _rewritten(listed, memory):
        return _went_back(seen, rewritten), memory
    memory = _begin(memory, listed, now)

    latest = seen.latest
    is_known = latest is not None and memory.entry == (latest, stamp(seen.logs.offsets[latest]))
    met = _is_met(wait, seen, memory, known_to_be_quiet=_quiet(wait, seen, memory))
    may_be_seal = latest is not None and latest > seen.committed and not is_known
    if latest is not None and (met or (may_be_seal and memory.unchecked < _UNCHECKED)):
        memory = replace(memory, unchecked=memory.unchecked + 1)
        content = read_entry(location, latest)
        if content is None:
            return _answer(State.WAITING, f"{location}: {seen.in_words}, moving", seen), _remember(memory, seen)
        mark = stamp(listed.offsets[latest])
        if isinstance(content, Seal):
            seals = (*seals, (latest, mark, content.sentence))
            seen = _Seen(listed.without(s[0] for s in seals), now, seals)
            # Another file below it may be a seal too, while a restore puts a higher one over the first.
            is_known = seen.latest is None or seen.latest <= seen.committed
        else:
            seen = replace(seen, entry=content)
            memory = replace(memory, entry=(latest, mark))
            is_known = True
    else:
        found = _query_id(location)
        if latest is None and not listed.commits and not seals and found is None:
            return _missing(location, wait, memory, now)
        if found and memory.query_id and found != memory.query_id:
            reason = f"it was query {memory.query_id} and is query {found}"
            return _went_back(seen, reason), memory
        memory = replace(memory, query_id=found or memory.query_id, unchecked=0)
        is_known = is_known or not may_be_seal
    memory = _remember(memory, seen)

    if _is_met(wait, seen, memory, known_to_be_quiet=_quiet(wait, seen, memory)):
        if seen.entry is None and seen.latest is not None:
            # Under a seal, what was read is the seal. Once a wait, for the report.
            entry = read_entry(location, seen.latest)
            seen = replace(seen, entry=entry if isinstance(entry, OffsetEntry) else None)
        return _answer(State.DONE, f"{location}: {wait.condition}: {seen.in_words}", seen), memory
    if is_known and wait.stuck_after is not None:
        idle, memory = _idle(location, seen, memory, wait.stuck_after)
        if idle is not None:
            return _stuck(seen, idle), memory
    return _answer(State.WAITING, f"{location}: waiting for {wait.condition}: {seen.in_words}", seen), memory


def _begin(memory: Memory, logs: Logs, now: datetime) -> Memory:
    if memory.base is not None:
        return memory
    latest = logs.latest_committed
    base = -1 if latest is None else latest
    # A wait that began before this look, and of which nothing else is left than its time.
    earlier = logs.committed_by(memory.started) if memory.started else None
    return replace(memory, started=memory.started or now, base=base if earlier is None else earlier)


def _remember(memory: Memory, seen: _Seen) -> Memory:
    logs = (seen.latest, seen.logs.latest_committed)
    if logs != memory.logs:
        memory = replace(memory, logs=logs, seen=seen.now, before=memory.looked, active=None)
    return replace(
        memory,
        looked=seen.now,
        seals=seen.seals,
        committed=seen.logs.latest_committed if seen.logs.commits else memory.committed,
        committed_at=seen.logs.committed_at if seen.logs.commits else memory.committed_at,
    )


def _is_met(wait: Wait, seen: _Seen, memory: Memory, *, known_to_be_quiet: bool) -> bool:
    condition, value = wait.condition, wait.condition.value or 0
    if condition.kind == COMMITTED_BATCH:
        return seen.committed >= value
    if condition.kind == PROGRESSED_BY:
        base = memory.base if condition.since_batch is None else condition.since_batch
        return seen.committed - (-1 if base is None else base) >= value
    if seen.is_ahead:
        return False
    if condition.kind == MAX_GAP:
        return bool(seen.logs.offsets) and seen.uncommitted <= value
    if seen.seals:  # nobody can log a batch; a place that has none is one that is being restored
        return seen.latest is not None and seen.uncommitted == 0
    return seen.uncommitted == 0 and known_to_be_quiet


def _quiet(wait: Wait, seen: _Seen, memory: Memory) -> bool:
    return _age(seen, memory) >= wait.quiet_for


def _age(seen: _Seen, memory: Memory) -> timedelta:
    if memory.logs != (seen.latest, seen.logs.latest_committed):
        memory = replace(memory, before=memory.looked, seen=seen.now)
    return memory.age(seen.logs.newest_time, seen.now)


def _idle(location: Location, seen: _Seen, memory: Memory, limit: timedelta) -> tuple[timedelta | None, Memory]:
    """For how long a stream with a batch under way has done nothing, where that is longer than the limit."""
    if seen.latest is None and not seen.logs.commits:
        return None, memory
    if not seen.uncommitted and not seen.is_ahead:  # nothing to do is no fault
        return None, memory
    age = _age(seen, memory)
    if age < limit or (memory.active and seen.now - memory.active < limit):
        return None, memory
    active = newest_state_time(location)
    memory = replace(memory, active=active)
    if active is not None:
        age = min(age, seen.now - active)
    return (age if age >= limit else None), memory


def _rewritten(logs: Logs, memory: Memory) -> str | None:
    """How the commit log contradicts what was seen of it before: Spark only ever adds to it and purges its oldest."""
    if memory.committed is None:
        return None
    latest = logs.latest_committed
    if latest is None:
        return f"its newest committed batch was {memory.committed}, and now it has none"
    if latest < memory.committed:
        return f"its newest committed batch was {memory.committed} and is {latest}"
    same = logs.commits.get(memory.committed)
    if same is None and min(logs.commits) < memory.committed:
        return f"commits/{memory.committed} is gone while older ones are there"
    if same is not None and memory.committed_at and same.modified and same.modified != memory.committed_at:
        return (
            f"commits/{memory.committed} was written at {memory.committed_at.isoformat()} and again at "
            f"{same.modified.isoformat()}"
        )
    return None


def _missing(location: Location, wait: Wait, memory: Memory, now: datetime) -> tuple[Answer, Memory]:
    if not wait.missing_ok:
        raise NotACheckpointError(
            f"{location} is not a checkpoint: it has no {OFFSETS}/, no commits/ and no {METADATA_FILE}",
            hint="give the directory that the query has as checkpointLocation; with missing_ok=True one that is still to "
            "come is waited for",
        )
    seen = _Seen(Logs(location.uri, {}, {}), now, ())
    message = f"{location}: waiting for {wait.condition}: there is no checkpoint yet"
    return _answer(State.WAITING, message, seen), replace(memory, seen=memory.seen or now, looked=now, unchecked=0)


def _query_id(location: Location) -> str | None:
    try:
        return parse_query_id(location.read(METADATA_FILE))
    except FileNotFoundError:
        return None


def _answer(state: State, message: str, seen: _Seen | None = None, hint: str | None = None) -> Answer:
    return Answer(state, message, seen.to_json() if seen else {}, hint)


def _stuck(seen: _Seen, idle: timedelta) -> Answer:
    since = f"nothing was written to offsets/, commits/ or state/ for {format_duration(idle)}"
    if seen.is_ahead:
        what, hint = "commits/ is ahead of offsets/, and ", "offsets were lost: see `airflow-ckpt inspect`"
    else:
        what = f"batch {seen.latest} was begun and is not committed, and "
        hint = "see whether the query still runs, and what its driver and its sink wait for"
    return _answer(State.STUCK, f"{seen.logs.uri} is stuck: {what}{since} ({seen.in_words})", seen, hint)


def _went_back(seen: _Seen, reason: str) -> Answer:
    return _answer(
        State.WENT_BACK,
        f"the history of {seen.logs.uri} was rewritten during the wait: {reason}",
        seen,
        "somebody rewound, restored or reset it: see that this was meant, then start the wait again",
    )


def _crashed(location: Location, crash: Crash, memory: Memory, now: datetime) -> Answer:
    seen = _Seen(list_logs(location).without(s[0] for s in memory.seals), now, memory.seals)
    answer = _answer(
        State.CRASHED,
        f"{location} has a query that fails: {crash.in_words}",
        seen,
        "fix what was deployed; `airflow-ckpt explain` says what an error of Spark's means and what to do",
    )
    return replace(answer, progress={**answer.progress, "crash": crash.to_json()})
