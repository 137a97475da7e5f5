"""A place in a store: a checkpoint, a repository, a directory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from airflow_ckpt_provider.storage.file_set import FileSet
from airflow_ckpt_provider.storage.store import Listing, Store, StoredFile


@dataclass(frozen=True, slots=True)
class Location:
    """A directory in a store. Paths given to and returned by its methods are relative to it, separated by ``/``.

    :param store: the store.
    :param root: the directory's path in the store, without a trailing slash.
    :param key: key of the repository that is here or will be, where that is encrypted.
    """

    store: Store
    root: str
    key: bytes | None = field(default=None, repr=False, compare=False)

    @property
    def uri(self) -> str:
        """The place as people write it, such as ``s3://bucket/checkpoints/orders`` or ``/data/checkpoints/orders``."""
        return self.store.uri_of(self.root)

    @property
    def name(self) -> str:
        """Last segment of the path."""
        return self.root.rstrip("/").rpartition("/")[2]

    def __truediv__(self, path: str) -> Location:
        return Location(self.store, self._absolute(path))

    def __str__(self) -> str:
        return self.uri

    def contains(self, other: Location) -> bool:
        """Whether ``other`` is this place or lies inside it."""
        # An encrypted store knows the one it lies in, and that one does not know it.
        if not (self.store.same_as(other.store) or other.store.same_as(self.store)):
            return False
        outer, inner = self.store.canonical(self.root), other.store.canonical(other.root)
        return (inner.rstrip("/") + "/").startswith(outer.rstrip("/") + "/")

    def list(self, path: str = "") -> Listing:
        """List one directory, see :meth:`Store.list`."""
        found = self.store.list(self._absolute(path))
        return Listing(tuple(self._relative(f) for f in found.files), found.directories)

    def walk(self, path: str = "") -> FileSet:
        """All files below ``path`` by their path, see :meth:`Store.walk`."""
        return FileSet(self.sweep(path))

    def sweep(self, path: str = "") -> Iterator[StoredFile]:
        """All files below ``path`` as they are listed, see :meth:`Store.walk`."""
        return map(self._relative, self.store.walk(self._absolute(path)))

    def read(self, path: str) -> bytes:
        """Return the content of a file; ``FileNotFoundError`` where there is none."""
        return self.store.read(self._absolute(path))

    def read_part(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a file, see :meth:`Store.read_part`."""
        return self.store.read_part(self._absolute(path), start, length)

    def find(self, path: str) -> StoredFile | None:
        """Return one file as a listing shows it now; ``None`` where there is none."""
        found = self.store.find(self._absolute(path))
        return self._relative(found) if found else None

    def size(self, path: str) -> int | None:
        """Return the bytes of a file, ``None`` where there is none; one listing of its directory."""
        directory, _, name = self._absolute(path).rpartition("/")
        found = (f.size for f in self.store.list(directory).files if f.path.rpartition("/")[2] == name)
        return next(found, None)

    def create(self, path: str, data: bytes) -> None:
        """Write a new file, see :meth:`Store.create`."""
        self.store.create(self._absolute(path), data)

    def replace(self, path: str, data: bytes) -> None:
        """Write a file over whatever is there, see :meth:`Store.replace`."""
        self.store.replace(self._absolute(path), data)

    def delete(self, path: str) -> None:
        """Delete a file; a missing one is fine."""
        self.store.delete(self._absolute(path))

    def delete_listed(self, file: StoredFile) -> None:
        """Delete a file if it is still the one that was listed here, see :meth:`Store.delete_listed`."""
        self.store.delete_listed(self._in_store(file))

    def replace_listed(self, file: StoredFile, data: bytes) -> StoredFile | None:
        """Write a file over the one that was listed here, see :meth:`Store.replace_listed`."""
        written = self.store.replace_listed(self._in_store(file), data)
        return self._relative(written) if written else None

    def copy_new(self, source: StoredFile, path: str, *, into: Location | None = None) -> None:
        """Copy a file that was listed here to one that does not exist yet, see :meth:`Store.copy_new`.

        :param source: as listed here.
        :param path: of the copy, relative to ``into``.
        :param into: a place in the same store; the default is this one.
        """
        self.store.copy_new(self._in_store(source), (into or self)._absolute(path))

    def fenced(self, check: Callable[[], None], *, request_timeout: float) -> Location:
        """The same place with a check before each request that changes it, see :meth:`Store.fenced`."""
        return replace(self, store=self.store.fenced(check, request_timeout=request_timeout))

    def remove_empty_directories(self) -> None:
        """Remove this directory and those below it where they hold nothing."""
        self.store.remove_empty_directories(self.root)

    def _absolute(self, path: str) -> str:
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    def _in_store(self, file: StoredFile) -> StoredFile:
        return replace(file, path=self._absolute(file.path))

    def _relative(self, file: StoredFile) -> StoredFile:
        # Not dataclasses.replace: ten thousand of these are a good part of a look at a big checkpoint.
        path = file.path[len(self.root.rstrip("/")) + 1 :]
        return StoredFile(path, file.size, file.identity, file.checksum, file.modified)


def plain_uri(uri: str) -> str:
    """The place that a URI names, however it is spelt."""
    if "://" not in uri:
        return os.path.realpath(uri)
    return re.sub(r"^(s3a|s3n)://", "s3://", uri).rstrip("/")


def is_within(path: str) -> bool:
    """Whether a path is relative to a place and cannot leave it."""
    return bool(path) and not any(part in ("", ".", "..") for part in path.split("/"))
