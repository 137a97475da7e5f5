"""The fence of a change: of all attempts at one checkpoint, only the newest may write, and only while its lease lasts.

A worker can be suspended for an hour between two requests (SIGSTOP, a paused virtual machine, a network partition) and then
continue as if nothing had happened. No store can be asked to refuse its writes, so the attempt refuses them itself: before every
request it compares its own clocks with its lease. A later attempt waits until the lease of the earlier one is over before its
first write. What is kept of them: :mod:`~airflow_ckpt_provider.change.attempts`.

An attempt extends its lease by seeing that there is no higher number. The lease then lasts from *before* that listing. So once a
number is taken, the lease of the attempt before it lasts no longer than one lease from that moment, and the requests that it had
sent end one request time-out later.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.term import Term
from airflow_ckpt_provider.change.attempts import (
    ALIVE,
    CHANGES,
    END,
    WRITTEN,
    Attempt,
    LeaseTerms,
    attempts_place,
    has_ended,
    newest_attempt,
    newest_change,
    newest_end,
    numbers_in,
    read_attempt,
    sign_of_life,
)
from airflow_ckpt_provider.change.processes import process_of, share_clock
from airflow_ckpt_provider.errors import ChangeRunningError, CkptError, LeaseLostError, StorageError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.clocks import Clocks
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile

log = logging.getLogger(__name__)


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
        return f"{CHANGES}/{self._place.name}"

    def wait_for_others(self) -> None:
        """Let nobody write for this attempt any more, and wait until nothing that was sent can arrive."""
        self._place.create(f"{self.attempt.number:06d}{WRITTEN}", json.dumps({"at": _now()}).encode())
        wait = self.attempt.terms.over_after
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
            if own and own.modified and last.modified and not (at and share_clock(self.attempt.process, other.process)):
                tick = timedelta(seconds=0 if last.modified.microsecond else 1)
                return last.modified + tick > self._began(own.modified, since)
            return at is None or at > datetime.now(UTC) - timedelta(seconds=since.elapsed)

        before = (number for number in numbers_in(files) if number < self.attempt.number)
        return newest_change(self._place, files, before, is_after, but_in=but_in)

    def moment(self, since: Clocks, there: Location) -> datetime:
        """When clocks began: by the clock of a store if the attempts are kept in such a store too, else by that of this host.

        :param since: the clocks.
        :param there: a place in that store.
        """
        own = next((file for file in self._place.list().files if file.path == f"{self.attempt.number:06d}.json"), None)
        if own and own.modified and self._place.store.protocol == there.store.protocol:
            return self._began(own.modified, since)
        return datetime.now(UTC) - timedelta(seconds=since.elapsed)

    def _began(self, own: datetime, since: Clocks) -> datetime:
        """When clocks began, by the clock of the store that gave our attempt its time."""
        return own - timedelta(seconds=since.elapsed - self._taken.elapsed)

    def changed_by_run(self, run: str) -> datetime | None:
        """When the newest earlier attempt of a run that has changed something ended; ``None``: there is none.

        :param run: as ``made_by`` of its attempts begins; empty: of no run.
        """
        return newest_end(self._place, self.attempt.number, run) if run else None

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
                self._place.create(f"{self.attempt.number:06d}{END}", json.dumps(document).encode())

    def _renew(self) -> None:
        newest = newest_attempt(self._place)
        if newest and newest.number > self.attempt.number:
            self._term.lose(f"{newest.words} took over")
        self._term.check()  # a pause within the listing must not be followed by a sign of life
        document = {"nonce": self.attempt.nonce, "at": _now("milliseconds")}
        self._place.replace(f"{self.attempt.number:06d}{ALIVE}", json.dumps(document).encode())


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
    if earlier and not has_ended(place, earlier) and _is_at_work(place, earlier):
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
        process="" if lends else process_of(os.getpid()),
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
    for earlier in sorted((n for n in numbers_in(names) if n < number), reverse=True):
        if f"{earlier:06d}{END}" in names:
            break
        attempt = read_attempt(place, earlier)
        if not _is_dead(attempt):
            found.append(attempt)
        if f"{earlier:06d}{ALIVE}" in names:
            break
    return found


def _is_at_work(place: Location, attempt: Attempt) -> bool:
    """Whether an attempt shows a sign of life while we watch; one whose process is dead is not waited for."""
    if _is_dead(attempt):
        return False
    if attempt.nonce in _ACTIVE:
        return True
    seen = sign_of_life(place, attempt)

    def ended_or_alive() -> bool:
        return has_ended(place, attempt) or sign_of_life(place, attempt) != seen

    # A renewal is due every quarter of a lease.
    if not _wait_until(ended_or_alive, attempt.terms.lease / 2):
        return False
    return not has_ended(place, attempt)


def _wait_for(place: Location, earlier: Attempt, checkpoint: Location, *, since: float) -> None:
    """Wait until nothing of an earlier attempt can arrive any more.

    :param since: when a later number was taken, at the latest, by ``time.monotonic``.
    """
    wait = earlier.terms.over_after - (time.monotonic() - since)
    log.warning("%s has not ended: %s is changed after %.0f s at the latest", earlier.words, checkpoint, wait)
    _wait_until(lambda: has_ended(place, earlier), wait)


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
    here = process_of(os.getpid())
    if attempt.pid == os.getpid() and attempt.process == here:
        return attempt.nonce not in _ACTIVE
    if not share_clock(here, attempt.process):
        return False
    return process_of(attempt.pid) not in ("", attempt.process)


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
