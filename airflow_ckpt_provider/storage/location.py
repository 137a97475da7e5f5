"""A place in a store: a checkpoint, a repository, a directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

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
        return self.root if self.store.protocol == "file" else f"{self.store.protocol}://{self.root.lstrip('/')}"

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

    def remove_empty_directories(self) -> None:
        """Remove this directory and those below it where they hold nothing."""
        self.store.remove_empty_directories(self.root)

    def _absolute(self, path: str) -> str:
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    def _relative(self, file: StoredFile) -> StoredFile:
        # Not dataclasses.replace: ten thousand of these are a good part of a look at a big checkpoint.
        path = file.path[len(self.root.rstrip("/")) + 1 :]
        return StoredFile(path, file.size, file.identity, file.checksum, file.modified)
