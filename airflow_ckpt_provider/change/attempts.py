"""The attempts at a change of a checkpoint, as a repository keeps them.

::

    changes/<checkpoint key>/<nnnnnn>.json        an attempt, created only if there is none
    changes/<checkpoint key>/<nnnnnn>.alive.json  its sign of life, replaced by the attempt alone
    changes/<checkpoint key>/<nnnnnn>.end.json    it has ended, and how
    changes/<checkpoint key>/<nnnnnn>.written.json  whoever wrote files for it is to write none any more

Of all of them only the newest may write: :mod:`~airflow_ckpt_provider.change.fence`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_ckpt_provider.backup.numbered import number_of
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.processes import process_of, share_clock
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.clocks import Clocks
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile
from airflow_ckpt_provider.units import shown_time, zoned_time

CHANGES = "changes"
ALIVE, END, WRITTEN = ".alive.json", ".end.json", ".written.json"
#: Sets the length of the lease and of the request time-out, in seconds; for tests, and for stores that are very slow.
LEASE_VARIABLE = "AIRFLOW_CKPT_LEASE_SECONDS"
#: Clocks of two hosts run at speeds that differ by far less than this.
_DRIFT = 1.1
#: No lease and no request lasts longer than a day, seconds: whatever says so was forged.
_LONGEST = 86_400.0


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How long leases and requests last.

    :param lease: seconds for which an attempt may write without seeing that no other attempt has begun.
    :param request_timeout: seconds after which a request that writes or deletes is given up.
    """

    lease: float = 120.0
    request_timeout: float = 90.0

    @property
    def over_after(self) -> float:
        """Seconds after which nothing of an attempt can arrive any more, by the clock of whichever host."""
        return (self.lease + self.request_timeout) * _DRIFT

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
                f"{LEASE_VARIABLE} is {text!r}", hint="give a number of seconds above 0 and up to a day, or unset it"
            ) from None

    @classmethod
    def of(cls, lease: float, request_timeout: float) -> LeaseTerms:
        """Terms that somebody has written down.

        :raises ValueError: nobody waits for that long: more than a day.
        """
        if not (0 < lease <= _LONGEST and 0 < request_timeout <= _LONGEST):
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


def attempts_place(repository: Repository, checkpoint: Location) -> Location:
    """Where the attempts at a checkpoint are kept in a repository.

    :param checkpoint: the checkpoint; its canonical place counts, however it is named.
    """
    return repository.location / attempts_directory(checkpoint)


def attempts_directory(checkpoint: Location) -> str:
    """The directory of the attempts at a checkpoint, in whichever repository keeps them."""
    place = f"{checkpoint.store.protocol}:{checkpoint.store.canonical(checkpoint.root).rstrip('/')}"
    return f"{CHANGES}/{hashlib.sha256(place.encode()).hexdigest()[:16]}"


def newest_attempt(place: Location) -> Attempt | None:
    """The attempt with the highest number, ended or not; ``None`` where there was none.

    A number whose file cannot be read (its writer was killed, on a store without atomic writes) counts as an attempt of nobody.
    """
    numbers = numbers_in(file.path for file in place.list().files)
    return read_attempt(place, max(numbers)) if numbers else None


def wants_writes(place: Location, attempt: Attempt) -> bool:
    """Whether others are still to write for an attempt."""
    names = {file.path for file in place.list().files}
    return not names & {f"{attempt.number:06d}{END}", f"{attempt.number:06d}{WRITTEN}"}


def sign_of_life(place: Location, attempt: Attempt) -> bytes | None:
    """The newest sign of life of an attempt: another one with each renewal of its lease; ``None`` before the first."""
    try:
        return place.read_document(f"{attempt.number:06d}{ALIVE}")
    except FileNotFoundError:
        return None


def has_ended(place: Location, attempt: Attempt) -> bool:
    """Whether an attempt has said that it writes nothing more."""
    try:
        place.read_document(f"{attempt.number:06d}{END}")
    except FileNotFoundError:
        return False
    return True


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
    here = process_of(os.getpid())

    def is_after(last: StoredFile, at: datetime | None, other: Attempt) -> bool:
        seconds = since.elapsed + (0 if at and share_clock(here, other.process) else 60)
        if not last.path.endswith(END):
            seconds += other.terms.over_after
        noted = at or last.modified
        return noted is None or noted > datetime.now(UTC) - timedelta(seconds=seconds)

    return newest_change(place, files, numbers_in(files), is_after, but_in=but_in) is not None


def newest_change(
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
        end, alive = (files.get(f"{number:06d}{ending}") for ending in (END, ALIVE))
        last = end or alive or files.get(f"{number:06d}.json")
        if last is None:
            continue
        other, document = read_attempt(place, number), _read(place, last.path)
        if not is_after(last, _time(document.get("at")), other):
            if end or alive:
                return None  # it had waited for all those before it
        elif _may_have_changed(end, document) and not (but_in and other.made_by.startswith(but_in)):
            return other
    return None


def newest_end(place: Location, before: int, run: str) -> datetime | None:
    """When the newest attempt of a run that has changed something ended, by the clock of the store that keeps the attempts.

    :param before: the number of an attempt; only those before it count.
    :param run: as ``made_by`` of its attempts begins.
    :return: ``None``: there is no such attempt, or its time is not known.
    """
    files = {file.path: file for file in place.list().files}
    for number in sorted((each for each in numbers_in(files) if each < before), reverse=True):
        end = files.get(f"{number:06d}{END}")
        if end and read_attempt(place, number).made_by.startswith(run):
            document = _read(place, end.path)
            if _may_have_changed(end, document):
                return end.modified or _time(document.get("at"))
    return None


def _may_have_changed(end: StoredFile | None, document: Mapping[str, Any]) -> bool:
    """Whether an attempt has changed something, or may have.

    :param end: the note of its end, if there is one.
    :param document: what that note says.
    """
    return end is None or document.get("outcome") == "done" or document.get("wrote") is not False


def read_attempt(place: Location, number: int) -> Attempt:
    """Read an attempt; one that cannot be read is of nobody."""
    try:
        return Attempt.from_json(load_json(place.read_document(f"{number:06d}.json")), number=number)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, FileNotFoundError):
        return Attempt(number, "unknown", "unreadable", "", "unknown", -1, "", "", "?", LeaseTerms())


def _read(place: Location, path: str) -> Mapping[str, Any]:
    """A note of an attempt; empty where it cannot be read (its writer was killed, on a store without atomic writes)."""
    try:
        document = load_json(place.read_document(path))
    except (ValueError, FileNotFoundError):
        return {}
    return document if isinstance(document, dict) else {}


def numbers_in(paths: Iterable[str]) -> list[int]:
    """The numbers of the attempts among the files of a directory."""
    return [number for path in paths if (number := number_of(path)) is not None]


def _time(text: object) -> datetime | None:
    """A time in a note; ``None``: not known."""
    try:
        return zoned_time(text)
    except ValueError:
        return None
