"""The narrow interface through which everything here reads and writes.

Checkpoints live on disks, object stores and HDFS. The core needs a dozen operations of them; this module states what
each must guarantee. What differs between stores is a declared property (:attr:`Store.creates_if_absent`,
:attr:`Store.copies_within`, :attr:`Store.deletes_if_same`), never a type check in the code above. Counting requests, stopping a
process after the n-th write and the like wrap this interface (see the tests).

.. seealso:: :doc:`/howto/stores`
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from airflow_ckpt_provider.errors import FileChangedError, TooLargeError
from airflow_ckpt_provider.redaction import redacted
from airflow_ckpt_provider.storage.write_check import NO_CHECK, WriteCheck
from airflow_ckpt_provider.units import format_size, format_time


class StoredFile(NamedTuple):
    """A file as a listing shows it.

    :param path: path within the store (``bucket/key`` or ``/absolute/path``) or, from a
        :class:`~airflow_ckpt_provider.storage.location.Location`, relative to that location.
    :param size: bytes.
    :param identity: changes whenever the content is replaced: an ETag, a generation, or inode and modification time.
        ``None`` where the store reports nothing of the kind; the content must then be read to know.
    :param checksum: ``<algorithm>:<hex>`` of the content as the store vouches for it (``etag:…`` for S3), or ``None``.
    :param modified: when it was last written, in UTC, or ``None`` where the store does not say.
    """

    path: str
    size: int
    identity: str | None = None
    checksum: str | None = None
    modified: datetime | None = None

    def is_same(self, other: StoredFile) -> bool:
        """Whether both are one version of a file: identity and size.

        Without an identity its checksum decides, as a backup recorded it; without either the time of the last write.
        """
        if self.identity is None and self.checksum is not None:
            return (self.checksum, self.size) == (other.checksum, other.size)
        if (self.identity, self.size) != (other.identity, other.size):
            return False
        return self.identity is not None or self.modified == other.modified


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
    #: ``copy`` is carried out by the store itself, no bytes pass through this process. See also :meth:`copies_if_absent`.
    copies_within: bool = False
    #: ``delete_listed`` and ``replace_listed`` never destroy anything but the version that was listed: the service compares, or
    #: the file is renamed away, or exchanged with the new one, and compared before it is removed. Where false the look and the
    #: change are two steps.
    deletes_if_same: bool = False
    #: A part of a file is read without the rest of it.
    reads_parts: bool = False
    #: How often a content is in memory while it is written: more than once where it is changed on its way.
    copies_in_memory: int = 1
    #: Called before each request that changes the store, see :meth:`fenced`.
    write_check: WriteCheck = NO_CHECK

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

        May continue with the listing while it is read, so that a million files need not be in memory twice.
        """

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the content of a file."""

    def read_at_most(self, path: str, most: int) -> bytes:
        """Return the content of a file that may have so many bytes; of a larger one as little is read as the store allows.

        :param most: bytes.
        :raises TooLargeError: it has more.
        """
        return self.require_most(path, self.read(path), most)

    def require_most(self, path: str, content: bytes, most: int) -> bytes:
        """Return a content that is not too large.

        :raises TooLargeError: it is.
        """
        if len(content) > most:
            raise self.too_large(path, most)
        return content

    def too_large(self, path: str, most: int) -> TooLargeError:
        """The error where a file is larger than any of its kind."""
        return TooLargeError(
            f"{self.uri_of(path)} has more than {format_size(most)}, which no file of its kind has; it was not read",
            hint="it was damaged or forged: put it back from a copy, or move it away",
        )

    def read_part(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a file, as a log that grows is read; fewer bytes where the file ends before."""
        return self.read(path)[start : start + length]

    def ends_before(self, path: str, start: int) -> bool:
        """Whether a file ends before a byte, for stores that refuse to read from there."""
        found = self.find(path)
        return found is not None and found.size <= start

    def find(self, path: str) -> StoredFile | None:
        """Return one file as a listing shows it now; ``None`` if there is none."""
        directory, _, name = path.rpartition("/")
        return next((f for f in self.list(directory).files if f.path.rpartition("/")[2] == name), None)

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

    def delete_listed(self, file: StoredFile) -> None:
        """Delete a file if it is still the one that was listed; a missing one is fine.

        :param file: as this store listed it.
        :raises FileChangedError: something else is there now; it stays.
        """
        if (found := self.find(file.path)) is not None:
            self.require_same(file, found)
            self.delete(file.path)

    def replace_listed(self, file: StoredFile, data: bytes) -> StoredFile | None:
        """Write a file over the one that was listed, whole or not at all.

        :param file: as this store listed it.
        :returns: the new file; ``None`` where the store does not show at once.
        :raises FileChangedError: something else is there now, or nothing; it stays so. Where ``data`` is there already, it may be
            taken for the result of an earlier try.
        """
        self.require_same(file, self.find(file.path))
        self.replace(file.path, data)
        return self.find(file.path)

    def copy_new(self, source: StoredFile, target: str) -> None:
        """Copy a file inside the store, if it is still the one that was listed. Only called where :attr:`copies_within` is true.

        :param source: as this store listed it; or without an identity, by the checksum that it was recorded with.
        :param target: path of a file that does not exist yet. One with the same content counts as the result of an earlier try.
        :raises FileExistsError: the target exists.
        :raises FileNotFoundError: the source is missing.
        :raises FileChangedError: the source is not the one that was listed.
        """
        found = self.find(source.path)
        if found is None:
            raise FileNotFoundError(source.path)
        self.require_same(source, found)
        if (made := self.find(target)) is not None:
            if source.checksum is not None and (made.checksum, made.size) == (source.checksum, source.size):
                return
            raise FileExistsError(target)
        self.copy(source.path, target, source.size)

    @abstractmethod
    def remove_empty_directories(self, path: str) -> None:
        """Remove ``path`` and the directories below it where they hold nothing; does nothing on object stores.

        :raises StorageError: it failed; its cause is a ``PermissionError`` where a directory lies in one of somebody else.
        """

    @abstractmethod
    def copy(self, source: str, target: str, size: int) -> None:
        """Copy a file inside the store, to a name that is free: one request. Only called where :attr:`copies_within` is true.

        The source is not compared with anything: whoever calls this checks what arrived.

        :param size: bytes of the source, as listed, so that the store need not be asked again.
        :raises FileExistsError: the name is not free. Only where :meth:`copies_if_absent`: elsewhere the file there is written
            over, so give a name that nobody else has.
        """

    def copies_if_absent(self, size: int) -> bool:
        """Whether :meth:`copy` never writes over a file, as far as is known now. Without certainty: false.

        :param size: bytes of the file to be copied.
        """
        return False

    def why_no_locks(self, path: str) -> str | None:
        """Why files below ``path`` cannot be locked against deletion for a time; ``None``: they can.

        :raises StorageError: the store could not be asked.
        """
        return f"{self.protocol}:// has no Object Lock; S3 has it"

    def lock(self, path: str, until: datetime) -> None:
        """Lock a file: the version that is there now can be deleted by nobody before a time. Only called where it can be locked.

        A lock that lasts longer stays as it is.

        :param path: the file.
        :param until: the time, with a time zone.
        :raises FileNotFoundError: there is no such file.
        """
        raise NotImplementedError(f"{type(self).__name__} locks no files")

    def locked_until(self, path: str) -> datetime | None:
        """Until when a file is locked; ``None``: it is not. Only called where files can be locked."""
        raise NotImplementedError(f"{type(self).__name__} locks no files")

    @property
    def plain(self) -> Store:
        """The store as it is without encryption: for what lies outside of an encrypted repository."""
        return self

    def canonical(self, path: str) -> str:
        """Return the one name of a place that can have several, as by symbolic links."""
        return path

    def same_as(self, other: Store) -> bool:
        """Whether ``other`` reaches the same place, so that ``copy`` can go between the two."""
        return self is other

    def fenced(self, check: Callable[[], None], *, request_timeout: float | None) -> Store:
        """Return the same store with a check before each request that creates, replaces, deletes or copies.

        The check is also called before each repeat of such a request. Requests that only read are as before.

        :param check: raises where nothing may be sent any more. What it raises comes out of the verb unchanged. It is called from
            several threads at once.
        :param request_timeout: seconds that one such request may take as a whole, as far as the store's client has such a limit;
            ``None``: as long as without a check.
        :raises NotImplementedError: this kind of store does not call a check.
        """
        raise NotImplementedError(f"{type(self).__name__} calls no check before its requests")

    def require_same(self, listed: StoredFile, found: StoredFile | None) -> None:
        """Compare a file with the one that was listed.

        :param found: what is there now, or ``None``.
        :raises FileChangedError: it is another one, or missing.
        """
        if found is None or not listed.is_same(found):
            raise self.changed(listed, found)

    def changed(self, listed: StoredFile, found: StoredFile | None, *, kept: str | None = None) -> FileChangedError:
        """The error where a file is not the one that was listed.

        :param found: what is there now, or ``None``.
        :param kept: path under which a version of it was kept, where somebody wrote a new file meanwhile.
        """
        place = self.uri_of(listed.path)
        was, now = _in_words(listed), _in_words(found) if found else None
        also = f"; another version is kept as {kept}" if kept else ""
        return FileChangedError(
            f"{place} changed since it was listed: {was} was listed, {now or 'no file'} is there now, which was left as it is"
            f"{also}",
            path=listed.path,
            listed=was,
            found=now,
            hint="find out who writes there and stop it (a query, another change), then inspect the place and plan again",
        )

    def uri_of(self, path: str) -> str:
        """A path of this store as people write it, without credentials that were in its address."""
        return path if self.protocol == "file" else redacted(f"{self.protocol}://{path.lstrip('/')}")


def _in_words(file: StoredFile) -> str:
    when = f", written {format_time(file.modified)}" if file.modified else ""
    return f"{file.size} bytes ({file.identity or 'no identity'}{when})"
