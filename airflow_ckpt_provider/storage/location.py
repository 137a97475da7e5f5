"""A place in a store: a checkpoint, a repository, a directory."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from urllib.parse import unquote, urlsplit

from airflow_ckpt_provider.errors import DamagedFileError, RefusedError, StorageError, TooLargeError, UntrustedError
from airflow_ckpt_provider.storage.file_set import FileSet
from airflow_ckpt_provider.storage.packs import LARGEST, Moved, Part, file_of, pack_size, part_of, read_moved
from airflow_ckpt_provider.storage.signatures import SIGNATURES, Signing, is_signed
from airflow_ckpt_provider.storage.store import Listing, Store, StoredFile

log = logging.getLogger(__name__)

#: Bytes that a document may have: most of ours, and those with a line for each file. Either is far more than any has.
SMALL, LARGE = 16 * 1024**2, 1024**3


@dataclass(frozen=True, slots=True)
class Location:
    """A directory in a store. Paths given to and returned by its methods are relative to it, separated by ``/``.

    A path that leads out of it is refused, with a ``RefusedError``.

    :param store: the store.
    :param root: the directory's path in the store, without a trailing slash.
    :param key: key of the repository that is here or will be, where that is encrypted.
    :param repository_id: id of the repository that has to be here; ``None``: any.
    :param signing: what signs and checks the documents of the repository that is here; ``None``: nothing does.
    """

    store: Store
    root: str
    key: bytes | None = field(default=None, repr=False, compare=False)
    repository_id: str | None = field(default=None, repr=False, compare=False)
    signing: Signing | None = field(default=None, repr=False, compare=False)

    @property
    def uri(self) -> str:
        """The place as people write it, such as ``s3://bucket/checkpoints/orders`` or ``/data/checkpoints/orders``."""
        return self.store.uri_of(self.root)

    @property
    def name(self) -> str:
        """Last segment of the path."""
        return self.root.rstrip("/").rpartition("/")[2]

    @property
    def parents(self) -> Iterator[Location]:
        """The places above, the nearest first, without the root of a disk."""
        root = self.root.rstrip("/")
        while "/" in root.strip("/"):
            root = root.rpartition("/")[0]
            yield Location(self.store, root)

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

    def read(self, path: str, records: Callable[[], Moved] | None = None) -> bytes:
        """Return the content of a file, or of one in a pack, wherever it is now; ``FileNotFoundError`` if there is none.

        :param records: gives where contents were moved to, for whoever reads many; asked where a content is not where its path
            says. By default the records are read.
        """
        records = records or (lambda: read_moved(self, path.split("/")[1]))
        if (part := part_of(path)) is not None:
            return self._read_content(path, part, records)
        try:
            data = self.store.read(self._absolute(path))
        except FileNotFoundError:
            if not path.startswith("objects/"):
                raise
            content = self.read_elsewhere(path, records())
            if content is None:
                raise
            return content
        return self.signing.checked(self, path, data) if self.signing else data

    def _read_content(self, path: str, part: Part, records: Callable[[], Moved]) -> bytes:
        """Return a content in a pack; where it is missing or damaged there, from where it was moved to."""
        found: bytes | None = None
        failed: FileNotFoundError | DamagedFileError
        try:
            found = self._read_from(part)
            if hashlib.sha256(found).hexdigest() == part.sha256:
                return found
        except (FileNotFoundError, DamagedFileError) as e:
            failed = e
        content = self.read_elsewhere(path, records())
        if content is not None and (found is None or hashlib.sha256(content).hexdigest() == part.sha256):
            return content
        if found is None:
            raise failed
        return found

    def read_elsewhere(self, path: str, moved: Moved) -> bytes | None:
        """Return a content from where it was moved to, the newest place first; ``None`` if it is nowhere.

        What is there may be damaged: then an earlier place is read, which may not be deleted yet. At last those that other
        records name: of two that contradict each other, one may be forged.
        """
        found: bytes | None = None
        failed: DamagedFileError | None = None
        for each in moved.elsewhere(path):
            if (part := part_of(each)) is None:
                continue
            try:
                content = self._read_from(part)
            except FileNotFoundError:
                continue
            except DamagedFileError as e:
                failed = failed or e
                continue
            if hashlib.sha256(content).hexdigest() == part.sha256:
                return content
            found = content if found is None else found
        if found is None and failed is not None:
            raise failed
        return found

    def _read_from(self, part: Part) -> bytes:
        if part.length:
            return self.read_from_pack(part.pack, part.start, part.length)
        if self.find(part.pack) is None:  # stores refuse to read a part of no bytes
            raise FileNotFoundError(part.pack)
        return b""

    def read_document(self, path: str, *, most: int = SMALL) -> bytes:
        """Return the content of a document of ours, see :meth:`Store.read_at_most`.

        :param path: the document.
        :param most: bytes that it may have; :data:`LARGE` for what grows with the files of a checkpoint.
        :raises TooLargeError: it has more.
        :raises UntrustedError: it has to be signed by a trusted key, and is not.
        """
        data = self.store.read_at_most(self._absolute(path), most)
        return self.signing.checked(self, path, data) if self.signing else data

    @property
    def checks_signatures(self) -> bool:
        """Whether documents here have to be signed by a trusted key."""
        return self.signing is not None and bool(self.signing.trusted)

    def is_trusted(self, path: str) -> bool:
        """Whether a document that is there was signed by a trusted key; where no keys are configured that takes no request."""
        if not self.checks_signatures:
            return True
        try:
            self.read_document(path, most=LARGE)
        except UntrustedError as e:
            log.warning("%s: it is ignored", e.message)
            return False
        except FileNotFoundError:
            return False
        return True

    def read_part(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a file, see :meth:`Store.read_part`."""
        return self.store.read_part(self._absolute(path), start, length)

    def read_from_pack(self, pack: str, start: int, length: int) -> bytes:
        """Return a part of a pack; fewer bytes only where the pack ends before.

        :raises StorageError: the store answered with another part. What it has may be whole.
        """
        data = self._part_of_pack(pack, start, length)
        if len(data) == length:
            return data
        if (there := self.find(pack)) is None:
            raise FileNotFoundError(pack)
        if len(data) == max(0, min(length, there.size - start)):
            return data
        raise StorageError(
            f"could not read {pack}: {length} bytes from byte {start} on were asked for, and the store answered with {len(data)}",
            hint="run it again; if it fails again, inspect what is between here and the store (a proxy, a cache)",
        )

    def read_pack(self, pack: str) -> bytes:
        """Return a whole pack; of a file that is longer than its name says, or than any pack, no more than that."""
        return self._part_of_pack(pack, 0, min(pack_size(pack) or 0, LARGEST))

    def _part_of_pack(self, pack: str, start: int, length: int) -> bytes:
        if self.store.reads_parts:
            return self.read_part(pack, start, length)
        try:
            whole = self.store.read_at_most(self._absolute(pack), min(pack_size(pack) or 0, LARGEST))
        except TooLargeError as e:  # encrypted as a whole, so none of it can be right
            raise DamagedFileError(e.message, hint=e.hint) from e
        return whole[start : start + length]

    def find(self, path: str) -> StoredFile | None:
        """Return one file as a listing shows it now, of a content in a pack the pack; ``None`` if there is none."""
        found = self.store.find(self._absolute(file_of(path)))
        return self._relative(found) if found else None

    def size(self, path: str) -> int | None:
        """Return the bytes of a file, ``None`` if there is none; one listing of its directory."""
        directory, _, name = self._absolute(path).rpartition("/")
        found = (f.size for f in self.store.list(directory).files if f.path.rpartition("/")[2] == name)
        return next(found, None)

    def create(self, path: str, data: bytes) -> None:
        """Write a new file, see :meth:`Store.create`; before it its signature, if it is a document that is signed."""
        if self.signing:
            self.signing.sign(self, path, data)
        self.store.create(self._absolute(path), data)

    def replace(self, path: str, data: bytes) -> None:
        """Write a file over whatever is there, see :meth:`Store.replace`."""
        self.store.replace(self._absolute(path), data)

    def delete(self, path: str) -> None:
        """Delete a file, and its signatures if it is a document that is signed; a missing one is fine."""
        self.store.delete(self._absolute(path))
        if self.signing and is_signed(path):
            for signature in self.sweep(f"{SIGNATURES}/{path}"):
                self.store.delete(self._absolute(signature.path))

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

    def why_no_locks(self) -> str | None:
        """Why files here cannot be locked against deletion, see :meth:`Store.why_no_locks`."""
        return self.store.why_no_locks(self.root)

    def lock(self, path: str, until: datetime) -> None:
        """Lock a file until a time, see :meth:`Store.lock`."""
        self.store.lock(self._absolute(path), until)

    def locked_until(self, path: str) -> datetime | None:
        """Until when a file is locked, see :meth:`Store.locked_until`."""
        return self.store.locked_until(self._absolute(path))

    def fenced(self, check: Callable[[], None], *, request_timeout: float | None) -> Location:
        """The same place with a check before each request that changes it, see :meth:`Store.fenced`."""
        return replace(self, store=self.store.fenced(check, request_timeout=request_timeout))

    def remove_empty_directories(self) -> None:
        """Remove this directory and those below it where they hold nothing."""
        self.store.remove_empty_directories(self.root)

    def _absolute(self, path: str) -> str:
        """A path in the store; the last barrier for whatever a file of a checkpoint or a repository names."""
        if not path:
            return self.root
        try:
            return f"{self.root.rstrip('/')}/{safe_relative(path)}"
        except ValueError as e:
            raise RefusedError(
                f"{path!r} is no path in {self}: {e}",
                hint="a file there that names it was damaged or forged: find out who wrote it, and put it back from a copy",
            ) from None

    def _in_store(self, file: StoredFile) -> StoredFile:
        return file._replace(path=self._absolute(file.path))

    def _relative(self, file: StoredFile) -> StoredFile:
        return file._replace(path=file.path[len(self.root.rstrip("/")) + 1 :])


def inside(place: Location, uri: str, *, encoded: bool = True) -> str | None:
    """The path of a file relative to a place, or ``None`` where it lies elsewhere or leads there.

    :param uri: the file, by whatever name its store has.
    :param encoded: characters of the path are percent-encoded in it, as Spark's logs have them.
    """
    try:
        parts = urlsplit(uri)
    except ValueError:  # no URI at all, such as file://[x
        return None
    path = unquote(parts.path) if encoded else parts.path
    if parts.netloc:
        container, _, account = parts.netloc.partition("@")  # abfss://container@account…/path
        path = f"{container if account else parts.netloc}{path}"
    # A NameNode has several names, and a directory of this machine has several by symbolic links.
    for spelling in (str, place.store.canonical):
        root = spelling(place.root).rstrip("/") + "/"
        try:
            if (found := spelling(path)).startswith(root):
                return safe_relative(found.removeprefix(root))
        except ValueError:  # no path of a disk, such as one with a NUL; or one that leads out
            return None
    return None


def plain_uri(uri: str) -> str:
    """The place that a URI names, however it is spelt."""
    if "://" not in uri:
        return os.path.realpath(uri)
    return re.sub(r"^(s3a|s3n)://", "s3://", uri).rstrip("/")


def safe_paths(paths: Iterable[object]) -> tuple[str, ...]:
    """Return paths that a file holds, if all of them stay in the place that they are relative to.

    :param paths: what the file holds.
    :raises ValueError: one of them does not; the message names it.
    """

    def checked(path: object) -> str:
        try:
            return safe_relative(path)
        except ValueError as e:
            raise ValueError(f"{path!r}: {e}") from None

    return tuple(map(checked, paths))


def safe_relative(path: object, *, below: str = "") -> str:
    """Return a path that a file holds, if it stays in the place that it is relative to.

    Used for every path that comes out of a file of a repository, a checkpoint or a sink, before anything is done with it.

    :param path: what the file holds, of whatever type.
    :param below: a directory of that place in which it has to lie, without a slash at its end; the default is the place itself.
    :raises ValueError: it is no such path. The message says why, without the path.
    """
    if not isinstance(path, str):
        raise ValueError(f"a path is a text, and this is {type(path).__name__}")
    if "\0" in path:
        raise ValueError("it has a zero byte")
    # The first check is for the many that are fine: a manifest can have a million.
    if (not path or path[0] in "/." or path[-1] in "/." or "//" in path or "/." in path) and any(
        part in ("", ".", "..") for part in path.split("/")
    ):
        raise ValueError("it is empty, absolute, or has '.', '..' or nothing between two slashes")
    if below and not path.startswith(f"{below}/"):
        raise ValueError(f"it does not lie in {below}/")
    return path
