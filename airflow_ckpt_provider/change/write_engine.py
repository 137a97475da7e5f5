"""Who writes the files of a restore: threads of this process, or whoever is given in their place.

All else (the plan, the fence, the proof of rest, the seal, what is set aside and removed, the logs, and the check of what was
written) stays with the process that carries the change out. Others write under its attempt, and extend a lease of their own as
it does: by seeing that no later attempt has begun, that the attempt still wants something to be written, and that its process
shows signs of life: nobody writes for one that died.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.term import Term
from airflow_ckpt_provider.change.attempts import Attempt, newest_attempt, sign_of_life, wants_writes
from airflow_ckpt_provider.change.fence import Fence
from airflow_ckpt_provider.storage.clocks import Clocks
from airflow_ckpt_provider.storage.location import Location

#: Leases without a sign of life after which a process counts as dead. It renews its own four times in one, and may fail at that.
_SILENT_LEASES = 2


@dataclass(frozen=True, slots=True)
class FilesToWrite:
    """Files of a backup that are written into a place in which they are not, in any order.

    :param entries: the files.
    :param attempt: the attempt that writes them.
    :param attempts: directory of the attempts in the repository.
    """

    entries: Sequence[FileEntry]
    attempt: Attempt
    attempts: str


class WriteEngine(Protocol):
    """Writes files of a backup under the fence of somebody else."""

    def write(
        self, files: FilesToWrite, fence: Fence, repository: Repository, done: Callable[[FileEntry], None]
    ) -> None:
        """Write files; each content is compared with its hash by whoever writes it.

        When it returns, nothing that was sent can arrive any more. Where it raises, something may still arrive.

        :param files: what to write.
        :param fence: of the attempt.
        :param repository: holds the contents.
        :param done: called with each file that was written.
        :raises StorageError: reading or writing failed, or a content is not what was backed up.
        :raises LeaseLostError: a later attempt took over.
        """
        ...


class LentFence:
    """The right to write under the attempt of another process, renewed in the background within a ``with`` block.

    It is lost where it could not be renewed within a lease, as by a process that was suspended; where another attempt has begun,
    or this one has ended or has all its files; and where its process has shown no sign of life for two leases.

    :param repository: the repository.
    :param files: names the attempt.
    """

    def __init__(self, repository: Repository, files: FilesToWrite) -> None:
        self._place = repository.location / files.attempts
        self._attempt = files.attempt
        self._sign: bytes | None = None
        self._seen = since = Clocks()
        self._term = Term(files.attempt.words, files.attempt.terms.lease, since)
        self._renew()

    def __enter__(self) -> LentFence:
        self._term.keep(self._renew, name=f"lent lease {self._attempt.number}")
        return self

    def __exit__(self, *_: object) -> None:
        self._term.end()

    def guarding(self, place: Location) -> Location:
        """The same place, in which every write sees first that the lease still lasts."""
        return place.fenced(self.check, request_timeout=self._attempt.terms.request_timeout)

    def check(self) -> None:
        """See that the lease has not run out.

        :raises LeaseLostError: it has, or it was lost.
        """
        self._term.check()

    def _renew(self) -> None:
        since = Clocks()
        newest, sign = newest_attempt(self._place), sign_of_life(self._place, self._attempt)
        if newest is None or newest.nonce != self._attempt.nonce:
            self._term.lose(f"{newest.words} took over" if newest else "its attempt is not in the repository")
        elif not wants_writes(self._place, self._attempt):
            self._term.lose("its attempt has all files, or has ended")
        elif sign != self._sign:
            self._sign, self._seen = sign, since
        elif (silent := self._seen.elapsed) > _SILENT_LEASES * self._attempt.terms.lease:
            self._term.lose(f"its process has shown no sign of life for {silent:.1f} s")
        self._term.check()
