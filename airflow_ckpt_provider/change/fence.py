"""The fence of a change: of all attempts at one checkpoint, only the newest may write, and only while its lease lasts.

A worker can be suspended for an hour between two requests (SIGSTOP, a paused virtual machine, a network partition) and then
continue as if nothing had happened. No store can be asked to refuse its writes, so the attempt refuses them itself: before every
request it compares its own clocks with its lease. A later attempt waits until the lease of the earlier one is over before its
first write.

::

    changes/<checkpoint key>/<nnnnnn>.json        an attempt, created only if there is none
    changes/<checkpoint key>/<nnnnnn>.alive.json  its sign of life, replaced by the attempt alone
    changes/<checkpoint key>/<nnnnnn>.end.json    it has ended, and how
    changes/<checkpoint key>/<nnnnnn>.written.json  whoever wrote files for it is to write none any more

An attempt extends its lease by seeing that there is no higher number. The lease then lasts from *before* that listing. So once a
number is taken, the lease of the attempt before it lasts no longer than one lease from that moment, and the requests that it had
sent end one request time-out later.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.term import Term
from airflow_ckpt_provider.errors import ChangeRunningError, CkptError, LeaseLostError, RefusedError, StorageError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.clocks import Clocks
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile
from airflow_ckpt_provider.units import shown_time

log = logging.getLogger(__name__)

_CHANGES = "changes"
_ALIVE, _END, _WRITTEN = ".alive.json", ".end.json", ".written.json"
#: Sets the length of the lease and of the request time-out, in seconds; for tests, and for stores that are very slow.
LEASE_VARIABLE = "AIRFLOW_CKPT_LEASE_SECONDS"
#: Clocks of two hosts run at speeds that differ by far less than this.
_DRIFT = 1.1


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How long leases and requests last.

    :param lease: seconds for which an attempt may write without seeing that no other attempt has begun.
    :param request_timeout: seconds after which a request that writes or deletes is given up.
    """

    lease: float = 120.0
    request_timeout: float = 90.0

    @classmethod
    def given(cls) -> LeaseTerms:
        """The terms of this process: the defaults, or what the environment says."""
        text = os.environ.get(LEASE_VARIABLE)
        if not text:
            return cls()
        try:
            return cls.of(float(text), float(text))
        except ValueError:
            raise RefusedError(
                f"{LEASE_VARIABLE} is {text!r}", hint="give a number of seconds above 0, or unset it"
            ) from None

    @classmethod
    def of(cls, lease: float, request_timeout: float) -> LeaseTerms:
        """Terms that somebody has written down.

        :raises ValueError: nobody can wait for that long.
        """
        if not (0 < lease < math.inf and 0 < request_timeout < math.inf):
            raise ValueError(f"a lease of {lease} s, requests of {request_timeout} s")
        return cls(lease, request_timeout)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a change of a checkpoint.

    :param number: its number; the highest is the only one that may write.
    :param plan_id: the plan that it carries out.
    :param what: the change, in a few words.
    :param made_by: the run or user.
    :param host: the host it runs on.
    :param pid: its process.
    :param process: identifies the process: boot, process namespace and start time; ``""`` where the system does not say.
    :param nonce: distinguishes it from any other attempt.
    :param at: when it began, by its own clock, in UTC.
    :param terms: its lease.
    """

    number: int
    plan_id: str
    what: str
    made_by: str
    host: str
    pid: int
    process: str
    nonce: str
    at: str
    terms: LeaseTerms

    @property
    def words(self) -> str:
        """Who that is, for messages."""
        by = f" of {self.made_by}" if self.made_by else ""
        where = f"process {self.pid} on {self.host}, since {shown_time(self.at)}"
        return f"attempt {self.number} (plan {self.plan_id}, {self.what}{by}, {where})"

    def to_json(self) -> dict[str, Any]:
        """The attempt as plain JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "terms"}
        return {**plain, "lease": self.terms.lease, "request_timeout": self.terms.request_timeout}

    @classmethod
    def from_json(cls, value: dict[str, Any], *, number: int) -> Attempt:
        """Read what :meth:`to_json` wrote."""
        terms = LeaseTerms.of(float(value["lease"]), float(value["request_timeout"]))
        texts = {name: str(value[name]) for name in ("plan_id", "what", "made_by", "host", "process", "nonce", "at")}
        return cls(number=number, pid=int(value["pid"]), terms=terms, **texts)


class Fence:
    """The right of one attempt to write. Use :func:`fenced`.

    :param place: the directory of the attempts in the repository.
    :param attempt: this attempt.
    :param taken: clocks that began when it took its number.
    :param renewed: clocks that began before the newest proof that there is no later attempt.
    """

    def __init__(self, place: Location, attempt: Attempt, taken: Clocks, renewed: Clocks) -> None:
        self.attempt = attempt
        self._taken = taken
        self._place = place
        self._term = Term(attempt.words, attempt.terms.lease, renewed)
        self._wrote = False
        #: Whether others may be writing for this attempt: then its end cannot be that of their writes.
        self.is_lent = False

    @property
    def directory(self) -> str:
        """Of the attempts, in the repository."""
        return f"{_CHANGES}/{self._place.name}"

    def wait_for_others(self) -> None:
        """Let nobody write for this attempt any more, and wait until nothing that was sent can arrive."""
        self._place.create(f"{self.attempt.number:06d}{_WRITTEN}", json.dumps({"at": _now()}).encode())
        wait = (self.attempt.terms.lease + self.attempt.terms.request_timeout) * _DRIFT
        log.info("%s waits %.0f s: somebody who was lost may still write for it", self.attempt.words, wait)
        _wait_until(lambda: False, wait)

    def check(self, *, writes: bool = True) -> None:
        """See that the lease has not run out; called before every request that writes or deletes.

        :param writes: such a request follows, so this attempt may have changed something.
        :raises LeaseLostError: it has, or another attempt took over. See :meth:`Term.check`.
        """
        self._term.check()
        self._wrote = self._wrote or writes

    def guarding(self, place: Location) -> Location:
        """The same place, in which every write and delete sees first that the lease still lasts."""
        return place.fenced(self.check, request_timeout=self.attempt.terms.request_timeout)

    def who_took_over(self) -> Attempt | None:
        """The attempt that has come after this one, as far as that can be found out."""
        try:
            newest = newest_attempt(self._place)
        except CkptError:
            return None
        return newest if newest and newest.number > self.attempt.number else None

    def done_since(self, since: Clocks, *, but_in: str = "") -> Attempt | None:
        """The newest attempt before this one that has changed, or may have changed, the checkpoint since a moment.

        One that has ended without a request that writes has changed nothing, so the one before it counts. One that has not ended
        may have changed something up to its newest sign of life.

        On one host the times are of one clock. Else they are of the store that keeps the attempts; many tell whole seconds only,
        and an attempt within that second is one that was done since.

        :param since: clocks that began at that moment.
        :param but_in: attempts whose ``made_by`` begins with this do not count; empty: all count.
        """
        files = {file.path: file for file in self._place.list().files}
        own = files.get(f"{self.attempt.number:06d}.json")

        def is_after(last: StoredFile, at: datetime | None, other: Attempt) -> bool:
            if (
                own
                and own.modified
                and last.modified
                and not (at and _share_clock(self.attempt.process, other.process))
            ):
                tick = timedelta(seconds=0 if last.modified.microsecond else 1)
                return last.modified + tick > own.modified - timedelta(seconds=since.elapsed - self._taken.elapsed)
            return at is None or at > datetime.now(UTC) - timedelta(seconds=since.elapsed)

        before = (number for number in _numbers_in(files) if number < self.attempt.number)
        return _newest_change(self._place, files, before, is_after, but_in=but_in)

    def begin(self) -> None:
        """Renew the lease from now on."""
        self._term.keep(self._renew, name=f"lease {self.attempt.number}")

    def end(self, outcome: str | None) -> None:
        """Stop renewing, and say that this attempt writes nothing more.

        :param outcome: how it ended; ``None``: nothing is said, as of a process that died.
        """
        self._term.end()
        _ACTIVE.discard(self.attempt.nonce)
        if outcome is not None:
            document = {
                "nonce": self.attempt.nonce,
                "at": _now("milliseconds"),
                "outcome": outcome,
                "wrote": self._wrote,
            }
            # An attempt without an end is waited for: that costs time, no more.
            with suppress(StorageError, FileExistsError):
                self._place.create(f"{self.attempt.number:06d}{_END}", json.dumps(document).encode())

    def _renew(self) -> None:
        newest = newest_attempt(self._place)
        if newest and newest.number > self.attempt.number:
            self._term.lose(f"{newest.words} took over")
        self._term.check()  # a pause within the listing must not be followed by a sign of life
        document = {"nonce": self.attempt.nonce, "at": _now("milliseconds")}
        self._place.replace(f"{self.attempt.number:06d}{_ALIVE}", json.dumps(document).encode())


#: Nonces of the attempts that run in this process.
_ACTIVE: set[str] = set()


@contextmanager
def fenced(
    repository: Repository,
    checkpoint: Location,
    *,
    plan_id: str,
    what: str,
    made_by: str,
    terms: LeaseTerms | None = None,
    lends: bool = False,
) -> Iterator[Fence]:
    """Be the only attempt at a checkpoint that may write, for the time of a ``with`` block.

    Waits, before it begins, until nothing that an earlier attempt has sent can arrive any more: not at all where that one has
    ended or its process is dead on this host, else its lease and its request time-out.

    :param repository: keeps the attempts.
    :param checkpoint: the checkpoint that is changed.
    :param plan_id: the plan that is carried out.
    :param what: the change, in a few words.
    :param made_by: the run or user.
    :param terms: of the lease; by default those of this process.
    :param lends: others may write for it. Then it does not end with its process.
    :raises ChangeRunningError: an earlier attempt is at work.
    :raises LeaseLostError: from within, through :meth:`Fence.check`.
    """
    fence = _acquire(repository, checkpoint, plan_id, what, made_by, terms or LeaseTerms.given(), lends=lends)
    fence.begin()
    try:
        yield fence
    except LeaseLostError as e:
        fence.end(None)
        raise _taken_over(fence, e) from e
    except Exception as e:
        # What a stale attempt stumbles over first is often a file that is another one by now.
        try:
            fence.check(writes=False)
        except LeaseLostError as lost:
            fence.end(None)
            raise _taken_over(fence, lost) from e
        fence.end(None if fence.is_lent else "failed")
        raise
    except BaseException:
        fence.end(None)
        raise
    fence.end("done")


def attempts_place(repository: Repository, checkpoint: Location) -> Location:
    """Where the attempts at a checkpoint are kept in a repository.

    :param checkpoint: the checkpoint; its canonical place counts, however it is named.
    """
    place = f"{checkpoint.store.protocol}:{checkpoint.store.canonical(checkpoint.root).rstrip('/')}"
    return repository.location / f"{_CHANGES}/{hashlib.sha256(place.encode()).hexdigest()[:16]}"


def newest_attempt(place: Location) -> Attempt | None:
    """The attempt with the highest number, ended or not; ``None`` where there was none.

    A number whose file cannot be read (its writer was killed, on a store without atomic writes) counts as an attempt of nobody.
    """
    numbers = _numbers(place)
    return _read_attempt(place, max(numbers)) if numbers else None


def wants_writes(place: Location, attempt: Attempt) -> bool:
    """Whether others are still to write for an attempt."""
    names = {file.path for file in place.list().files}
    return not names & {f"{attempt.number:06d}{_END}", f"{attempt.number:06d}{_WRITTEN}"}


def sign_of_life(place: Location, attempt: Attempt) -> bytes | None:
    """The newest sign of life of an attempt: another one with each renewal of its lease; ``None`` before the first."""
    try:
        return place.read_document(f"{attempt.number:06d}{_ALIVE}")
    except FileNotFoundError:
        return None


def _read(place: Location, path: str) -> Mapping[str, Any]:
    """A note of an attempt; empty where it cannot be read (its writer was killed, on a store without atomic writes)."""
    try:
        document = load_json(place.read_document(path))
    except (ValueError, FileNotFoundError):
        return {}
    return document if isinstance(document, dict) else {}


def _may_have_changed(end: StoredFile | None, document: Mapping[str, Any]) -> bool:
    """Whether an attempt has changed something, or may have.

    :param end: the note of its end, if there is one.
    :param document: what that note says.
    """
    return end is None or document.get("outcome") == "done" or document.get("wrote") is not False


def _share_clock(process: str, other: str) -> bool:
    """Whether two processes are of one host, as far as the system says."""
    boot = process.rpartition("/")[0]
    return bool(boot) and boot == other.rpartition("/")[0]


def _newest_change(
    place: Location,
    files: Mapping[str, StoredFile],
    numbers: Iterable[int],
    is_after: Callable[[StoredFile, datetime | None, Attempt], bool],
    *,
    but_in: str,
) -> Attempt | None:
    """The newest of some attempts that has changed, or may have changed, the checkpoint since a moment.

    :param is_after: whether the newest note of an attempt, with the time that it says, is from after that moment.
    :param but_in: attempts whose ``made_by`` begins with this do not count; empty: all count.
    """
    for number in sorted(numbers, reverse=True):
        end, alive = (files.get(f"{number:06d}{ending}") for ending in (_END, _ALIVE))
        last = end or alive or files.get(f"{number:06d}.json")
        if last is None:
            continue
        other, document = _read_attempt(place, number), _read(place, last.path)
        if not is_after(last, _time(document.get("at")), other):
            if end or alive:
                return None  # it had waited for all those before it
        elif _may_have_changed(end, document) and not (but_in and other.made_by.startswith(but_in)):
            return other
    return None


def was_changed_since(repository: Repository, checkpoint: Location, since: Clocks, *, but_in: str) -> bool:
    """Whether an attempt at a checkpoint was done since a moment, or may still be at work. In doubt, it was.

    One that has not ended may have changed something until the lease of its newest sign of life, and its requests, were over.

    :param repository: keeps the attempts.
    :param checkpoint: the checkpoint.
    :param since: clocks that began at that moment. The clocks of another host and of the store may differ from ours by a minute.
    :param but_in: attempts whose ``made_by`` begins with this do not count.
    """
    place = attempts_place(repository, checkpoint)
    files = {file.path: file for file in place.list().files}
    here = _process(os.getpid())

    def is_after(last: StoredFile, at: datetime | None, other: Attempt) -> bool:
        seconds = since.elapsed + (0 if at and _share_clock(here, other.process) else 60)
        if not last.path.endswith(_END):
            seconds += (other.terms.lease + other.terms.request_timeout) * _DRIFT
        noted = at or last.modified
        return noted is None or noted > datetime.now(UTC) - timedelta(seconds=seconds)

    return _newest_change(place, files, _numbers_in(files), is_after, but_in=but_in) is not None


def _read_attempt(place: Location, number: int) -> Attempt:
    try:
        return Attempt.from_json(load_json(place.read_document(f"{number:06d}.json")), number=number)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, FileNotFoundError):
        return Attempt(number, "unknown", "unreadable", "", "unknown", -1, "", "", "?", LeaseTerms())


def _numbers(place: Location) -> list[int]:
    return _numbers_in(file.path for file in place.list().files)


def _numbers_in(paths: Iterable[str]) -> list[int]:
    names = (path.removesuffix(".json") for path in paths)
    return [int(name) for name in names if name.isdecimal()]


def _acquire(
    repository: Repository,
    checkpoint: Location,
    plan_id: str,
    what: str,
    made_by: str,
    terms: LeaseTerms,
    *,
    lends: bool,
) -> Fence:
    place = attempts_place(repository, checkpoint)
    earlier = newest_attempt(place)
    if earlier and not _has_ended(place, earlier) and _is_at_work(place, earlier):
        raise ChangeRunningError(
            f"{checkpoint} is being changed by {earlier.words}",
            hint="wait for it to end, then run the same command again",
        )
    attempt = Attempt(
        number=earlier.number + 1 if earlier else 1,
        plan_id=plan_id,
        what=what,
        made_by=made_by,
        host=socket.gethostname(),
        pid=os.getpid(),
        process="" if lends else _process(os.getpid()),
        nonce=uuid.uuid4().hex,
        at=_now(),
        terms=terms,
    )
    taken = Clocks()
    path = f"{attempt.number:06d}.json"
    lost = ChangeRunningError(
        f"another attempt at {checkpoint} began at the same moment", hint="run the same command again"
    )
    try:
        place.create(path, json.dumps(attempt.to_json()).encode())
    except FileExistsError:
        raise lost from None
    if not place.store.creates_if_absent and load_json(place.read_document(path)).get("nonce") != attempt.nonce:
        raise lost
    _ACTIVE.add(attempt.nonce)
    try:
        began, not_over = time.monotonic(), _not_over(place, attempt.number)
        if not not_over:
            return Fence(place, attempt, taken, taken)
        for each in not_over:
            _wait_for(place, each, checkpoint, since=began)
        # Whoever waited longer than its own lease has to check again that it is still the newest.
        before = Clocks()
        newest = newest_attempt(place)
        if newest and newest.number > attempt.number:
            raise ChangeRunningError(f"{checkpoint} is being changed by {newest.words}", hint="wait for it to end")
        return Fence(place, attempt, taken, before)
    except BaseException:
        _ACTIVE.discard(attempt.nonce)
        raise


def _not_over(place: Location, number: int) -> list[Attempt]:
    """The attempts before a number of which something may still arrive, newest first.

    An attempt that has ended, or that has shown a sign of life, had waited for those before it. One that died before that may not
    have, so those before it count as well.
    """
    names = {file.path for file in place.list().files}
    found = []
    for earlier in sorted((n for n in _numbers_in(names) if n < number), reverse=True):
        if f"{earlier:06d}{_END}" in names:
            break
        attempt = _read_attempt(place, earlier)
        if not _is_dead(attempt):
            found.append(attempt)
        if f"{earlier:06d}{_ALIVE}" in names:
            break
    return found


def _has_ended(place: Location, attempt: Attempt) -> bool:
    """Whether an attempt has said that it writes nothing more."""
    try:
        place.read_document(f"{attempt.number:06d}{_END}")
    except FileNotFoundError:
        return False
    return True


def _is_at_work(place: Location, attempt: Attempt) -> bool:
    """Whether an attempt shows a sign of life while we watch; one whose process is dead is not waited for."""
    if _is_dead(attempt):
        return False
    if attempt.nonce in _ACTIVE:
        return True
    seen = sign_of_life(place, attempt)

    def ended_or_alive() -> bool:
        return _has_ended(place, attempt) or sign_of_life(place, attempt) != seen

    # A renewal is due every quarter of a lease.
    if not _wait_until(ended_or_alive, attempt.terms.lease / 2):
        return False
    return not _has_ended(place, attempt)


def _wait_for(place: Location, earlier: Attempt, checkpoint: Location, *, since: float) -> None:
    """Wait until nothing of an earlier attempt can arrive any more.

    :param since: when a later number was taken, at the latest, by ``time.monotonic``.
    """
    wait = (earlier.terms.lease + earlier.terms.request_timeout) * _DRIFT - (time.monotonic() - since)
    log.warning("%s has not ended: %s is changed after %.0f s at the latest", earlier.words, checkpoint, wait)
    _wait_until(lambda: _has_ended(place, earlier), wait)


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition, at most so many seconds of our own clock; whether it came true."""
    deadline = time.monotonic() + seconds
    while not condition():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(left, seconds / 20, 1.0))
    return True


def _is_dead(attempt: Attempt) -> bool:
    """Whether the process of an attempt is certainly dead: only of this host, in this process namespace, can that be said."""
    if attempt.pid < 0 or not attempt.process:
        return False
    here = _process(os.getpid())
    if attempt.pid == os.getpid() and attempt.process == here:
        return attempt.nonce not in _ACTIVE
    if not here or attempt.process.rpartition("/")[0] != here.rpartition("/")[0]:
        return False
    return _process(attempt.pid) not in ("", attempt.process)


def _process(pid: int) -> str:
    """Identify a process, as ``<boot>/<namespace>/<start time>``; a start time of 0 if there is no such process.

    A process id is given out again after a while, and means something else in every container; with these it does not.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    try:
        # The name of the program, in brackets, may hold anything; the fields follow its last bracket.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        started = "0" if fields[0] in ("Z", "X") else fields[19]
    except FileNotFoundError:
        started = "0"
    except (OSError, IndexError):
        return ""
    return f"{boot}/{namespace}/{started}"


def _taken_over(fence: Fence, error: LeaseLostError) -> LeaseLostError:
    """Say who took over, where that can be found out."""
    by = fence.who_took_over()
    if by is None or by.words in error.message:
        return error
    return LeaseLostError(
        f"{error.message.removesuffix('; it writes nothing more')}; {by.words} took over", hint=error.hint
    )


def _now(precision: str = "seconds") -> str:
    return datetime.now(UTC).isoformat(timespec=precision)


def _time(text: object) -> datetime | None:
    """A time in a note; ``None``: not known."""
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
