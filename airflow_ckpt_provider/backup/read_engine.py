"""Who reads and compares the contents of a repository: threads of this process, or whoever is given in their place.

All else (which contents are read, what a finding is and what is remembered of it) is the same whoever reads: each content
goes through :func:`~airflow_ckpt_provider.backup.content_checks.check_contents`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from airflow_ckpt_provider.backup.content_checks import Contents, check_contents
from airflow_ckpt_provider.backup.copy_progress import OnProgress
from airflow_ckpt_provider.backup.engine import TooMuchForThreadsError
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.pack_reads import MovedContents
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.parallel import WORKERS


class ReadEngine(Protocol):
    """Reads contents and compares them with what was backed up."""

    def read(
        self,
        repository: Repository,
        entries: Sequence[FileEntry],
        *,
        moved: MovedContents,
        on_progress: OnProgress | None,
    ) -> Contents:
        """Read contents; a pack of which much is wanted as a whole, with its index.

        :param entries: the files whose contents are wanted.
        :param moved: where contents have been moved to.
        :param on_progress: called as contents have been read.
        :raises StorageError: whoever reads could not begin; what cannot be read is a finding.
        """
        ...


class ThreadReads:
    """Reads with threads of this process.

    :param workers: requests under way at once.
    """

    def __init__(self, workers: int = WORKERS) -> None:
        self._workers = workers

    def read(
        self,
        repository: Repository,
        entries: Sequence[FileEntry],
        *,
        moved: MovedContents,
        on_progress: OnProgress | None,
    ) -> Contents:
        """As :meth:`ReadEngine.read`."""
        packs: set[str] = set()
        findings = check_contents(
            repository, entries, workers=self._workers, on_progress=on_progress, packs=packs, moved=moved
        )
        return Contents(entries, findings, packs)


class ReadUpTo:
    """Has another engine read what is not too much, and refuses what is.

    :param engine: the other one.
    :param files: fewer contents than this are read.
    :param size: and fewer bytes.
    """

    def __init__(self, engine: ReadEngine, *, files: int, size: int) -> None:
        self._engine = engine
        self._files, self._size = files, size

    def read(
        self,
        repository: Repository,
        entries: Sequence[FileEntry],
        *,
        moved: MovedContents,
        on_progress: OnProgress | None,
    ) -> Contents:
        """As :meth:`ReadEngine.read`.

        :raises TooMuchForThreadsError: it is too much; nothing was read.
        """
        size = sum(entry.size for entry in entries)
        if len(entries) >= self._files or size >= self._size:
            raise TooMuchForThreadsError(len(entries), size, job="verify_contents.py", done="read")
        return self._engine.read(repository, entries, moved=moved, on_progress=on_progress)
