"""The narrow interface through which everything here reads and writes.

Checkpoints live on disks, object stores and HDFS. The core needs nine operations of them; this module states what
each must guarantee. What differs between stores is a declared property (:attr:`Store.creates_if_absent`,
:attr:`Store.copies_within`), never a type check in the code above. Counting requests, stopping a process after the
n-th write and the like wrap this interface (see the tests).

.. seealso:: :doc:`/howto/stores`
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as a listing shows it.

    :param path: path within the store (``bucket/key`` or ``/absolute/path``) or, from a
        :class:`~airflow_ckpt_provider.storage.location.Location`, relative to that location.
    :param size: bytes.
    :param identity: changes whenever the content is replaced: an ETag, a generation, or inode and modification time.
        ``None`` where the store tells nothing of the kind; the content must then be read to know.
    :param checksum: ``<algorithm>:<hex>`` of the content as the store vouches for it (``etag:…`` for S3), or ``None``.
    :param modified: when it was last written, in UTC, or ``None`` where the store does not say.
    """

    path: str
    size: int
    identity: str | None = None
    checksum: str | None = None
    modified: datetime | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """One directory: the files in it and the names of its sub-directories."""

    files: tuple[StoredFile, ...]
    directories: tuple[str, ...]


class Store(ABC):
    """What the core needs of a place that holds files. Paths are the store's own, without a scheme.

    Implementations raise ``FileNotFoundError``, ``FileExistsError`` and
    :class:`~airflow_ckpt_provider.errors.StorageError`, nothing else, for what can go wrong outside.
    All methods may be called from several threads at once. No answer comes from a cache.
    """

    #: ``create`` is atomic and exclusive: of two callers at once exactly one succeeds.
    creates_if_absent: bool = False
    #: ``copy`` is carried out by the store itself, no bytes pass through this process.
    copies_within: bool = False

    @property
    @abstractmethod
    def protocol(self) -> str:
        """Scheme of the store's URIs, such as ``file``, ``s3`` or ``memory``."""

    @abstractmethod
    def list(self, path: str) -> Listing:
        """List one directory. A missing directory is an empty one. S3A's directory markers are left out."""

    @abstractmethod
    def walk(self, path: str) -> Iterable[StoredFile]:
        """List all files below ``path``, recursively; one (paged) request on object stores.

        May go on with the listing while it is read, so that a million files need not be in memory twice.
        """

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the content of a file."""

    def read_part(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a file, as a log that grows is read; fewer bytes where the file ends before."""
        return self.read(path)[start : start + length]

    @abstractmethod
    def create(self, path: str, data: bytes) -> None:
        """Write a new file, whole or not at all; ``FileExistsError`` if there is one already.

        Where :attr:`creates_if_absent` is false the look and the write are two steps.
        """

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Write a file, whole or not at all, over whatever is there."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file; a missing one is fine."""

    @abstractmethod
    def remove_empty_directories(self, path: str) -> None:
        """Remove ``path`` and the directories below it where they hold nothing; does nothing on object stores."""

    @abstractmethod
    def copy(self, source: str, target: str, size: int) -> None:
        """Copy a file inside the store. Only called where :attr:`copies_within` is true.

        :param size: bytes of the source, as listed, so that the store need not be asked again.
        """

    def canonical(self, path: str) -> str:
        """Return the one name of a place that can have several, as by symbolic links."""
        return path

    def same_as(self, other: Store) -> bool:
        """Whether ``other`` reaches the same place, so that ``copy`` can go between the two."""
        return self is other
