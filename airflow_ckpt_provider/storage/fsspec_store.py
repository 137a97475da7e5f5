"""Any fsspec filesystem as a :class:`~airflow_ckpt_provider.storage.store.Store`."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.failures import says_exists, translated
from airflow_ckpt_provider.storage.pace import Pace
from airflow_ckpt_provider.storage.store import Listing, Store, StoredFile

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: Object stores: a write is atomic, ``pipe_file(mode="create")`` is one conditional request, ``cp_file`` is done by the
#: service, directories do not exist. With the argument by which their ``ls`` leaves out fsspec's cache.
_OBJECT_STORES: dict[str, dict[str, Any]] = {
    "s3": {"refresh": True},
    "s3a": {"refresh": True},
    "gs": {"refresh": True},
    "gcs": {"refresh": True},
    "abfs": {"invalidate_cache": True},
    "abfss": {"invalidate_cache": True},
    "az": {"invalidate_cache": True},
}

Answer = TypeVar("Answer")


class FsspecStore(Store):
    """Object stores, SFTP and everything else that fsspec reaches.

    Where files are not written atomically (SFTP), they go to a hidden ``.tmp`` name and are renamed; a create is then
    two steps, as :attr:`creates_if_absent` says.

    :param fs: the filesystem, already authenticated. Its listing cache is switched off.
    """

    def __init__(self, fs: AbstractFileSystem) -> None:
        self.fs = fs
        self._protocol: str = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
        self._object_store = self._protocol in _OBJECT_STORES
        self._fresh = _OBJECT_STORES.get(self._protocol, {})
        #: How fast an object store is asked. What its client repeats by itself does not show here.
        self.pace = Pace(f"{self._protocol}://")
        if self._object_store:
            self.creates_if_absent = True
            self.copies_within = True
        # s3fs takes even the size of a file to be read from its listings, and with it a part of a file that has grown.
        # Emptying the cache before each look is not enough while other threads fill it.
        fs.dircache.use_listings_cache = False
        fs.invalidate_cache()

    @property
    def protocol(self) -> str:
        """Scheme of the store's URIs."""
        return self._protocol

    def list(self, path: str) -> Listing:
        """List one directory, without fsspec's listing cache."""
        with translated(f"list {self._uri(path)}"):
            self.fs.invalidate_cache()
            try:
                entries = self._ask(f"list {self._uri(path)}", lambda: self.fs.ls(path, detail=True, **self._fresh))
            except (FileNotFoundError, NotADirectoryError):
                entries = []
                self._require_bucket(path)
            root = path.rstrip("/")
            directories = {
                e["name"].rstrip("/").rpartition("/")[2]
                for e in entries
                if e["type"] == "directory" and e["name"].strip("/") != root.strip("/")
            }
            return Listing(
                files=tuple(self._stored_files(root, entries)),
                directories=tuple(sorted(directories)),
            )

    def walk(self, path: str) -> tuple[StoredFile, ...]:
        """List all files below ``path`` in one sweep."""
        with translated(f"list {self._uri(path)}"):
            self.fs.invalidate_cache()
            try:
                entries = self._ask(f"list {self._uri(path)}", lambda: self.fs.find(path, detail=True))
            except (FileNotFoundError, NotADirectoryError):
                entries = {}
            if not entries:
                self._require_bucket(path)
            return tuple(self._stored_files(path.rstrip("/"), entries.values()))

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        with translated(f"read {self._uri(path)}"):
            return bytes(self._ask(f"read {self._uri(path)}", lambda: self.fs.cat_file(path)))

    def read_part(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a file."""
        action = f"read {self._uri(path)}"
        with translated(action):
            return bytes(self._ask(action, lambda: self.fs.cat_file(path, start=start, end=start + length)))

    def create(self, path: str, data: bytes) -> None:
        """Write a new file."""
        with translated(f"create {self._uri(path)}"):
            if self.creates_if_absent:
                try:
                    self._put(path, data, mode="create")
                except OSError as e:
                    # s3fs shows the answer as "invalid argument".
                    if says_exists(e):
                        raise FileExistsError(path) from e
                    raise
                return
            if self.fs.exists(path):
                raise FileExistsError(path)
            self._write_and_rename(path, data)

    def replace(self, path: str, data: bytes) -> None:
        """Write a file over whatever is there. Without an object store there is none for a moment."""
        with translated(f"write {self._uri(path)}"):
            if self._object_store or self.creates_if_absent:
                self._put(path, data)
                return
            self._write_and_rename(path, data)

    def delete(self, path: str) -> None:
        """Delete a file; a missing one is fine."""
        with translated(f"delete {self._uri(path)}"):
            try:
                self._ask(f"delete {self._uri(path)}", lambda: self.fs.rm_file(path))
            except FileNotFoundError:
                self._require_bucket(path)

    def remove_empty_directories(self, path: str) -> None:
        """Remove directories that hold nothing, where the filesystem has real ones."""
        if self._object_store:
            return
        with translated(f"remove directory {self._uri(path)}"):
            self.fs.invalidate_cache()
            for directory, _, _ in sorted(self.fs.walk(path), reverse=True):
                if not self.fs.ls(directory, detail=False):
                    self.fs.rmdir(directory)

    def copy(self, source: str, target: str, size: int) -> None:
        """Copy inside the store."""
        with translated(f"copy {self._uri(source)} to {self._uri(target)}"):
            try:
                self._ask(f"copy {self._uri(source)} to {self._uri(target)}", lambda: self.fs.cp_file(source, target))
            except FileNotFoundError:
                self._require_bucket(source)
                self._require_bucket(target)
                raise

    def same_as(self, other: Store) -> bool:
        """Whether both use the same filesystem (fsspec hands out one instance for equal arguments)."""
        return isinstance(other, FsspecStore) and self.fs == other.fs

    def _ask(self, action: str, request: Callable[[], Answer]) -> Answer:
        return self.pace.ask(action, request) if self._object_store else request()

    def _uri(self, path: str) -> str:
        return f"{self._protocol}://{path.lstrip('/')}"

    def _put(self, path: str, data: bytes, **options: Any) -> None:
        try:
            self._ask(f"write {self._uri(path)}", lambda: self.fs.pipe_file(path, data, **options))
        except FileNotFoundError as e:
            # There is no file yet that could be missing.
            self._require_bucket(path)
            raise StorageError(f"could not write {self._uri(path)}: {e}", hint="check the address") from e

    def _require_bucket(self, path: str) -> None:
        """Tell a missing bucket, which is a mistake, from a missing directory, which is an empty one."""
        bucket = path.strip("/").partition("/")[0]
        if self._object_store and not self.fs.exists(bucket):
            raise StorageError(
                f"could not use {self._uri(path)}: there is no bucket {bucket}, or these credentials may not see it",
                hint="create it, or correct the address or the credentials",
            )

    def _write_and_rename(self, path: str, data: bytes) -> None:
        directory, _, name = path.rpartition("/")
        temporary = f"{directory}/.{name}.{uuid.uuid4()}.tmp"
        self.fs.makedirs(directory, exist_ok=True)
        try:
            self.fs.pipe_file(temporary, data)
            if self.fs.exists(path):
                self.fs.rm_file(path)
            self.fs.mv(temporary, path)
        except BaseException:
            if self.fs.exists(temporary):
                self.fs.rm_file(temporary)
            raise

    def _stored_files(self, root: str, entries: Iterable[dict[str, Any]]) -> Iterator[StoredFile]:
        for entry in entries:
            name: str = entry["name"]
            # S3A leaves zero-byte marker objects for directories: their key ends with a slash, or fsspec has stripped
            # it and shows the directory itself.
            if entry["type"] != "file" or name.endswith("/") or name.strip("/") == root.strip("/"):
                continue
            yield StoredFile(name, int(entry["size"]), self._identity(entry), self._checksum(entry), _modified(entry))

    def _identity(self, entry: dict[str, Any]) -> str | None:
        for key in ("generation", "ETag", "etag"):
            if entry.get(key):
                return f"{key.lower()}:{str(entry[key]).strip(chr(34))}"
        return None

    def _checksum(self, entry: dict[str, Any]) -> str | None:
        if entry.get("md5Hash"):  # Google
            return f"md5:{base64.b64decode(entry['md5Hash']).hex()}"
        if entry.get("ETag"):  # S3
            return f"etag:{str(entry['ETag']).strip(chr(34))}"
        return None


def _modified(entry: dict[str, Any]) -> datetime | None:
    for key in ("LastModified", "last_modified", "updated", "modified", "created", "mtime"):
        value = entry.get(key)
        if isinstance(value, datetime):
            return value if value.tzinfo else value.replace(tzinfo=UTC)
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, str):
            try:
                return datetime.fromisoformat(value)
            except ValueError:
                continue
    return None
