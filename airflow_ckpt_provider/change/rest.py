"""Proof that a query is stopped. "Nothing is written at the moment" is no proof: a query with a trigger of 40 seconds rests too.

A change may begin only with a proof. In this order:

1. A probe reports that the query has ended. A probe that reports that the query runs is an error, whatever else is given.
2. A person says that the query is stopped. The proof keeps who said it.
3. The checkpoint was silent for longer than the query ever pauses; see :mod:`airflow_ckpt_provider.checkpoint.silence`.

The first two are checked: the place is inspected twice, and a change between the inspections refutes them. A statement with a
time is void if the logs of the checkpoint were written to since.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from airflow_ckpt_provider.change.fence import Fence
from airflow_ckpt_provider.change.target import Target, inspect_target, read_seal
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.poll import list_logs, newest_time
from airflow_ckpt_provider.checkpoint.silence import Silence, needed_silence
from airflow_ckpt_provider.errors import QueryNotStoppedError, RefusedError, command
from airflow_ckpt_provider.storage.clocks import CLOCKS_DIFFER, Clocks
from airflow_ckpt_provider.storage.file_set import FileSet
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile
from airflow_ckpt_provider.units import format_duration, format_time

log = logging.getLogger(__name__)

#: Seconds between two listings while a checkpoint is watched (longer in a long wait), and between two questions to the probes.
_STEP, _ASK_EVERY = 5.0, 15.0
#: The shortest pause: a clock that counts for months does not show a shorter one, and the watch would never end.
_LEAST = 0.001
_STOP_FIRST = "stop the query, then run the same command again"


class RestEvidence(StrEnum):
    """How it is known that the query is stopped."""

    PROBE = "probe"
    STATEMENT = "statement"
    QUIET = "quiet"
    #: The place holds nothing that a query could use.
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class RestProof:
    """Why a change was allowed to begin; kept in its audit record.

    :param how: the kind of evidence.
    :param words: the evidence.
    :param at: when it was found, in UTC.
    :param by: the person who said it; empty for other kinds of evidence.
    """

    how: RestEvidence
    words: str
    at: datetime
    by: str = ""

    def to_json(self) -> dict[str, Any]:
        """The proof as plain JSON."""
        return {"how": self.how.value, "words": self.words, "at": self.at.isoformat(), "by": self.by}


class StopProbe(Protocol):
    """Something that can be asked whether the query has ended."""

    def ended(self) -> str | None:
        """Return the evidence, in words, that the query has ended; ``None``: it is not known to have ended.

        A probe that cannot be reached returns ``None``.

        :raises RefusedError: the query is known to run, or the question itself is wrong.
        """


@dataclass(frozen=True, slots=True)
class RestRule:
    """What is accepted as proof.

    :param query_is_stopped: a person says that the query is stopped.
    :param said_by: the person who says it; default: the proof says "the caller".
    :param said: since when. A change that was carried out since, and a batch that was logged or committed since, make the word
        void, see :meth:`check_word`; ``None``: that is not checked.
    :param said_in: the run that says it, as ``made_by`` of its attempts begins: its own changes do not make the word void.
    :param probes: the probes that are asked.
    :param quiet_for: seconds between the two inspections that follow the statement of a probe or a person.
    :param wait_at_most: seconds that silence, or a query that is being stopped, is waited for.
    :param factor: how many times its longest pause between batches a checkpoint must be silent.
    :param minimum: seconds that it must be silent in any case. These are always watched, so that a query which has just started
        and has not yet written shows itself.
    :param history: seconds that the offset log must reach back for silence to be accepted.
    :raises RefusedError: a number makes no sense.
    """

    query_is_stopped: bool = False
    said_by: str = ""
    said: Clocks | None = None
    said_in: str = ""
    probes: tuple[StopProbe, ...] = ()
    quiet_for: float = 5.0
    wait_at_most: float = 600.0
    factor: float = 3.0
    minimum: float = 60.0
    history: float = 86400.0

    def __post_init__(self) -> None:
        least = {"quiet_for": 0.0, "wait_at_most": 0.0, "factor": 1.0, "minimum": 0.0, "history": 0.0}
        for name, low in least.items():
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= low):
                raise RefusedError(f"{name} is {value!r}", hint=f"give a number from {low:g} up")

    def check_word(self, fence: Fence, location: Location, *, stopping: bool = False) -> None:
        """See that nobody has changed the checkpoint since somebody said that its query is stopped: no attempt, and no query.

        A process can be suspended before it plans. What it was given is then about the time before the other change, after which
        the query was started. Or an approval takes hours, and somebody starts the query meanwhile.

        :param fence: of the attempt that relies on the word.
        :param location: the checkpoint.
        :param stopping: it is going to seal the checkpoint to stop its query. Then this is checked even if nobody said that the
            query is stopped: the query that was to be stopped is the one of before the other change.
        :raises QueryNotStoppedError: there was such a change, or the query has logged or committed a batch since.
        """
        if self.said is None or not (self.query_is_stopped or stopping):
            return
        other = fence.done_since(self.said, but_in=self.said_in)
        if other is not None:
            ago = f"{self.said.elapsed:.0f} s ago"
            since = f"{self.said_by or 'the caller'} said, {ago}, that the query is stopped"
            if not self.query_is_stopped:
                since = f"this command was started, {ago}, and the query was started again since"
            raise QueryNotStoppedError(
                f"{other.words} took over: it has, or may have, changed the checkpoint since {since}; nothing was changed by "
                "this attempt",
                hint="see whether the query was started since. If it is stopped, say so again: run the same command again, or in "
                "Airflow clear the task that stops it, with those after it",
            )
        if self.query_is_stopped:
            self._check_no_batch_since(fence, location, self.said)

    def _check_no_batch_since(self, fence: Fence, location: Location, said: Clocks) -> None:
        """See that no log of the checkpoint was written to since, but by the run that says so."""
        at = fence.moment(said, location)
        own = fence.changed_by_run(self.said_in)
        since = max(at, own) if own else at
        newest = _newest_entry(location)
        if newest is None or newest.modified is None or newest.modified <= since + timedelta(seconds=CLOCKS_DIFFER):
            return
        batch = batch_id_of(newest.path.rpartition("/")[2])
        raise QueryNotStoppedError(
            f"the query of {location} has run since {self.said_by or 'the caller'} said, at {format_time(at)}, that it is "
            f"stopped: {newest.path} (batch {batch}) was written at {format_time(newest.modified)}; nothing was changed by "
            "this attempt",
            hint="see who started it, and stop it again. Then say so again: run the same command again; in Airflow clear the "
            "task that stops it, with those after it, give the time of the stop (stopped_since), or start a new run",
        )


def _passed() -> float:
    """Seconds, the time in which this computer was suspended included."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else max(time.monotonic(), time.clock_gettime(boot))


@dataclass(frozen=True, slots=True)
class RestClock:
    """The clocks of this process. Setting the time of day does not change the first two.

    There are two, because a pause must never help. If the computer is suspended or the container is frozen, the query may be
    paused as well: silence in that time proves nothing. So silence is measured by a clock that stops while the computer is
    suspended, and of each step at most twice the intended time is credited. A final inspection that finds no change does not
    replace that. For a deadline the opposite holds: it passes in a pause too.

    :param awake: seconds; stops while the computer is suspended.
    :param passed: seconds; includes the time in which the computer is suspended.
    :param sleep: waits for so many seconds.
    :param now: the time of day, for the record only.
    """

    awake: Callable[[], float] = time.monotonic
    passed: Callable[[], float] = _passed
    sleep: Callable[[float], object] = time.sleep
    now: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class _NotKnown:
    """Why there is no proof.

    :param why: the reason, as a clause.
    :param may_pass: whether waiting can help a query that is being stopped.
    :param needed: seconds of silence that would be a proof; ``None`` if no silence would.
    :param is_used: whether somebody was seen to use the checkpoint.
    """

    why: str
    may_pass: bool = False
    needed: float | None = None
    is_used: bool = False


def prove_rest(
    location: Location,
    rule: RestRule,
    *,
    stopping: bool = False,
    store_now: Callable[[], datetime | None] | None = None,
    clock: RestClock | None = None,
) -> RestProof:
    """Find out that the query of a checkpoint is stopped.

    :param location: the checkpoint. A seal that is in it at the beginning, and the checksum of that seal, are ignored.
    :param rule: what is accepted as proof.
    :param stopping: the checkpoint is sealed to stop its query: wait for that, at most ``rule.wait_at_most`` seconds.
    :param store_now: the store's own time, such as the time of a file that was just written to the same store. Silence that has
        passed already is then credited, apart from the last ``rule.minimum`` seconds. ``None``: all of it is watched. No other
        clock can be used, as it may differ from that of the store.
    :param clock: the clocks of this process.
    :raises QueryNotStoppedError: it is not known that the query is stopped; nothing was changed by this function.
    """
    clock = clock or RestClock()
    search = _Search(location, rule, stopping, store_now, clock, clock.passed())
    while True:
        found = search.try_all()
        if isinstance(found, RestProof):
            log.info("%s: %s", location, found.words)
            return found
        if not (stopping and found.may_pass and search.left > 0):
            raise _error(location, found, stopping=stopping)
        clock.sleep(min(_STEP, search.left, max(rule.quiet_for, 0.01)))


@dataclass(frozen=True, slots=True)
class _Search:
    location: Location
    rule: RestRule
    stopping: bool
    store_now: Callable[[], datetime | None] | None
    clock: RestClock
    began: float

    @property
    def left(self) -> float:
        """Seconds that may still be waited."""
        return self.rule.wait_at_most - (self.clock.passed() - self.began)

    def try_all(self) -> RestProof | _NotKnown:
        """Try each kind of evidence once."""
        target = inspect_target(self.location)
        ended = self._ask()
        if isinstance(ended, _NotKnown):
            return ended
        if target.is_empty:
            return self._proof(RestEvidence.EMPTY, "the place holds nothing that a query could use")
        if ended or self.rule.query_is_stopped:
            return self._check_word(target, ended)
        return self._watch_silence(target)

    def _check_word(self, target: Target, ended: str | None) -> RestProof | _NotKnown:
        rule = self.rule
        word = ended or f"{rule.said_by or 'the caller'} says that the query is stopped"
        _, changed = self._watch(target, rule.quiet_for)
        if changed:
            return self._used(changed, rule.quiet_for, f", though {word}")
        again = self._ask()
        if isinstance(again, _NotKnown):
            return again
        if again:
            return self._proof(RestEvidence.PROBE, again)
        if rule.query_is_stopped:
            words = f"{rule.said_by or 'the caller'} says that the query is stopped"
            return self._proof(RestEvidence.STATEMENT, words, by=rule.said_by)
        return _NotKnown(f"a probe reported that it had ended ({word}), and no longer reports it", may_pass=True)

    def _watch_silence(self, target: Target) -> RestProof | _NotKnown:
        rule, asked = self.rule, bool(self.rule.probes)
        silence = needed_silence(
            self.location, target.files, factor=rule.factor, minimum=rule.minimum, history=rule.history
        )
        if silence.seconds is None:
            return _NotKnown(f"silence proves nothing here: {silence.why_not}", may_pass=silence.passes or asked)
        passed = self._silent_already(target)
        wanted = max(rule.minimum, silence.seconds - passed)
        if wanted > self.left:
            why = f"it must be silent for {silence.seconds:.0f} s, {rule.factor:g} times its longest pause between batches"
            already = f", of which {passed:.0f} s have passed" if passed else ""
            why += f"{already}; {wanted:.0f} s more are not within the wait of {rule.wait_at_most:g} s"
            return _NotKnown(why, may_pass=asked, needed=silence.seconds)
        log.info("%s: watching it for %.0f s", self.location, wanted)
        watched, changed = self._watch(target, wanted, ask=True)
        if changed:
            return self._used(changed, wanted, "", needed=silence.seconds)
        if watched is None:
            if self.left > 0:  # a probe has an answer
                return self.try_all()
            why = f"it was not silent for {silence.seconds:.0f} s within the wait of {rule.wait_at_most:g} s"
            return _NotKnown(why, needed=silence.seconds)
        return self._proof(RestEvidence.QUIET, _in_words(silence, watched + passed, rule.factor))

    def _watch(self, target: Target, seconds: float, *, ask: bool = False) -> tuple[float | None, list[str]]:
        """Watch for a while, and return the seconds that are credited as watched, and what has changed.

        The logs are listed in each step, everything at the end. ``None`` instead of seconds: a probe has an answer, or the wait
        is over.
        """
        before, clock = _logs_of(target), self.clock
        differing: set[str] = set()
        credited = since_asked = 0.0
        step = max(min(max(_STEP, seconds / 100), seconds / 10, _ASK_EVERY if self.rule.probes else 60.0), 0.005)
        while credited < seconds:
            began, pause = clock.awake(), max(min(step, seconds - credited), _LEAST)
            clock.sleep(pause)
            if credited + pause < seconds:
                differing = before ^ _listed_logs(self.location, target)
                if differing:
                    break
            # If a step took longer, this process was paused, and perhaps the query with it.
            spent = min(clock.awake() - began, 2 * pause)
            credited, since_asked = credited + spent, since_asked + spent
            if ask and credited < seconds:
                if self.left <= 0:
                    return None, []
                if self.rule.probes and since_asked >= _ASK_EVERY:
                    since_asked = 0.0
                    if self._ask() is not None:
                        return None, []
        # A difference that was listed is a change, even if the inspection ignores it (a new seal) or does not find it again.
        return credited, _changes(target, inspect_target(self.location)) or sorted(differing)

    def _ask(self) -> str | _NotKnown | None:
        """Ask every probe, and return the evidence that the query has ended, or that it runs; ``None``: neither is known."""
        words = None
        for probe in self.rule.probes:
            try:
                words = probe.ended() or words
            except RefusedError as e:
                if not self.stopping:
                    raise QueryNotStoppedError(e.message, hint=e.hint or _STOP_FIRST) from e
                return _NotKnown(e.message, may_pass=True, is_used=True)
        return words

    def _silent_already(self, target: Target) -> float:
        """Seconds since the newest file was written, by the store's clock alone."""
        files = _without_seal(target).values()
        if self.store_now is None or any(file.modified is None for file in files):
            return 0.0
        now, newest = self.store_now(), newest_time(files)
        return max(0.0, (now - newest).total_seconds()) if now and newest else 0.0

    def _used(self, changed: list[str], within: float, though: str, needed: float | None = None) -> _NotKnown:
        others = f" ({len(changed)} files in all)" if len(changed) > 1 else ""
        why = f"{changed[0]} changed within {within:g} s{others}{though}"
        return _NotKnown(why, may_pass=True, needed=needed, is_used=True)

    def _proof(self, how: RestEvidence, words: str, *, by: str = "") -> RestProof:
        return RestProof(how, words, self.clock.now(), by)


def _error(location: Location, found: _NotKnown, *, stopping: bool) -> QueryNotStoppedError:
    what = "is in use" if found.is_used else "may be in use: it is not known that its query is stopped"
    ways = (
        "stop the query. Then (1) say so: query_is_stopped / --query-is-stopped; or (2) give a probe that can report it: the "
        "driver's progress lines (--progress-log), the application's address in Spark's REST interface (--spark-api), or a "
        "command (--stopped-if)"
    )
    if found.needed is not None:  # else no silence is a proof, however long it is
        ways += f"; or (3) leave it without a change for {found.needed:.0f} s and allow that wait (wait_at_most / --wait-at-most)"
    message, hint = f"{location} {what}: {found.why}", ways
    if stopping:
        message = f"{location} is sealed, and it is still not known that its query is stopped: {found.why}"
        hint = f"{ways}. It stays sealed; to start the query instead: {command('unseal', location, '--for-start')}"
    return QueryNotStoppedError(message, needed=found.needed, hint=hint)


def _in_words(silence: Silence, passed: float, factor: float) -> str:
    return (
        f"no file changed for {passed:.0f} s, more than {factor:g} times the longest of the pauses between the newest "
        f"{silence.batches} batches ({silence.longest:.1f} s, in {format_duration(silence.history)})"
    )


def _without_seal(target: Target) -> FileSet:
    """All files but the seal, with the hidden ones: a batch that is under way writes temporary files."""
    seal = {target.seal.path, f"{OFFSETS}/.{target.seal.batch_id}.crc"} if target.seal else set()
    return target.files.without(lambda path: path in seal)


def _changes(before: Target, after: Target) -> list[str]:
    earlier, later = _marks(_without_seal(before).values()), _marks(_without_seal(after).values())
    return sorted(path for path in {*earlier, *later} if earlier.get(path) != later.get(path))


def _marks(files: Iterable[StoredFile]) -> dict[str, tuple[Any, ...]]:
    return {file.path: (file.size, file.identity, file.modified) for file in files}


def _logs_of(target: Target) -> set[str]:
    files = _without_seal(target)
    return {f"{log}/{name}" for log in (OFFSETS, COMMITS) for name in files.files(log) if batch_id_of(name) is not None}


def _newest_entry(location: Location) -> StoredFile | None:
    """The entry of either log that was written last, a seal left out; ``None``: there is none, or the store says no times."""
    logs, seal = list_logs(location), read_seal(location)
    timed = [
        file
        for file in (*logs.offsets.values(), *logs.commits.values())
        if file.modified is not None and not (seal and file.path == seal.path)
    ]
    return max(timed, key=lambda file: file.modified or datetime.min, default=None)


def _listed_logs(location: Location, target: Target) -> set[str]:
    logs = list_logs(location)
    found = {file.path for file in (*logs.offsets.values(), *logs.commits.values())}
    return found - ({target.seal.path} if target.seal else set())
