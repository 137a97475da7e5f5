"""Any fsspec filesystem as a :class:`~airflow_ckpt_provider.storage.store.Store`."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage import object_lock
from airflow_ckpt_provider.storage.conditions import TIMES, CopyCondition, if_match, refused
from airflow_ckpt_provider.storage.failures import says_condition_failed, translated
from airflow_ckpt_provider.storage.hidden_name import hidden_name
from airflow_ckpt_provider.storage.pace import Pace
from airflow_ckpt_provider.storage.store import Listing, Store, StoredFile
from airflow_ckpt_provider.storage.write_check import WriteCheck, changes_store, with_check

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
#: Filesystems of s3fs, which can send conditions, and calls something before each of its requests.
_S3 = ("s3", "s3a")
#: The largest object that one request may copy.
_ONE_REQUEST = 5 * 1024**3

Answer = TypeVar("Answer")


class _Change:
    """One change of a store, which its client may make several requests of.

    :param check: called before each.
    """

    def __init__(self, check: WriteCheck) -> None:
        self.check = check
        #: How many requests were sent, as far as the client shows.
        self.sent = 0


class _NotSentError(Exception):
    """Carries what a check raised out of the event loop, which would lose anything but an ``Exception``."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(error)


#: The change that this thread, and a coroutine on its behalf, makes.
_CHANGE: ContextVar[_Change | None] = ContextVar("_CHANGE", default=None)


def _before_send(request: Any, **_: Any) -> None:
    """Called by botocore before each request, repeats and parts of an upload included."""
    change = _CHANGE.get()
    if change is None or request.method in ("GET", "HEAD"):
        return
    try:
        change.check()
    except BaseException as e:
        raise _NotSentError(e) from None
    change.sent += 1


class FsspecStore(Store):
    """Object stores, SFTP and everything else that fsspec reaches.

    Where files are not written atomically (SFTP), they go to a hidden ``.tmp`` name and are renamed; a create is then
    two steps, as :attr:`creates_if_absent` says.

    :param fs: the filesystem, already authenticated. Its listing cache is switched off.
    """

    reads_parts = True

    def __init__(self, fs: AbstractFileSystem) -> None:
        self.fs = fs
        self._protocol: str = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
        self._object_store = self._protocol in _OBJECT_STORES
        self._fresh = _OBJECT_STORES.get(self._protocol, {})
        #: How fast an object store is asked. What its client repeats by itself does not show here.
        self.pace = Pace(f"{self._protocol}://")
        self._copy_condition = CopyCondition(f"{self._protocol}://")
        self._s3 = self._protocol in _S3 and hasattr(fs, "call_s3")
        if self._object_store:
            self.creates_if_absent = True
            self.copies_within = True
            self.deletes_if_same = self._s3
        # s3fs takes even the size of a file to be read from its listings, and with it a part of a file that has grown.
        # Emptying the cache before each listing is not enough while other threads fill it.
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
        try:
            with translated(action):
                return bytes(self._ask(action, lambda: self.fs.cat_file(path, start=start, end=start + length)))
        except StorageError:
            if self.ends_before(path, start):
                return b""
            raise

    def find(self, path: str) -> StoredFile | None:
        """Return one file as a listing shows it now; one request to S3."""
        if self._object_store and not self._s3:  # what they say of one file is not what they list
            return super().find(path)
        action = f"read {self._uri(path)}"
        with translated(action):
            self.fs.invalidate_cache()
            try:
                if self._s3:
                    entry = self._ask(action, lambda: self.fs.call_s3("head_object", **_object(path)))
                    entry |= {"name": path, "size": entry["ContentLength"], "type": "file"}
                else:
                    entry = self.fs.info(path)
            except (FileNotFoundError, NotADirectoryError):
                self._require_bucket(path)
                return None
            return next(self._stored_files("", [entry]), None)

    @changes_store
    def create(self, path: str, data: bytes) -> None:
        """Write a new file."""
        with translated(f"create {self._uri(path)}"):
            if self.creates_if_absent:
                change = _Change(self.write_check)
                try:
                    self._put(change, path, data, mode="create")
                except OSError as e:
                    # s3fs shows the answer as "invalid argument".
                    if not (isinstance(e, FileExistsError) or says_condition_failed(e)):
                        raise
                    # The answer to our own first try may have been lost.
                    if change.sent <= 1 or self.read(path) != data:
                        raise FileExistsError(path) from e
                return
            if self.fs.exists(path):
                raise FileExistsError(path)
            self._write_and_rename(path, data)

    @changes_store
    def replace(self, path: str, data: bytes) -> None:
        """Write a file over whatever is there. Without an object store there is none for a moment."""
        with translated(f"write {self._uri(path)}"):
            if self._object_store or self.creates_if_absent:
                self._put(_Change(self.write_check), path, data)
                return
            self._write_and_rename(path, data)

    @changes_store
    def replace_listed(self, file: StoredFile, data: bytes) -> StoredFile | None:
        """Write a file over the one that was listed: on S3 one request with ``If-Match``."""
        if not self._s3 or file.identity is None:
            return super().replace_listed(file, data)
        action = f"write {self._uri(file.path)}"
        condition = {**_object(file.path), "IfMatch": if_match(file.identity), "Body": data}
        with translated(action):
            for _ in range(TIMES):
                if self._send_if(action, "put_object", condition):
                    return self.find(file.path)
                found = self.find(file.path)
                # The answer to our own first try may have been lost.
                if found and found.size == len(data) and self.read(file.path) == data:
                    return found
                self.require_same(file, found)
            raise refused(action)

    @changes_store
    def delete(self, path: str) -> None:
        """Delete a file; a missing one is fine."""
        with translated(f"delete {self._uri(path)}"):
            try:
                self._change(_Change(self.write_check), f"delete {self._uri(path)}", "rm_file", path)
            except FileNotFoundError:
                self._require_bucket(path)

    @changes_store
    def delete_listed(self, file: StoredFile) -> None:
        """Delete a file if it is still the one that was listed: on S3 one request with ``If-Match``."""
        if not self._s3 or file.identity is None:
            return super().delete_listed(file)
        action = f"delete {self._uri(file.path)}"
        condition = {**_object(file.path), "IfMatch": if_match(file.identity)}
        with translated(action):
            for _ in range(TIMES):
                if self._send_if(action, "delete_object", condition):
                    return None
                if (found := self.find(file.path)) is None:
                    return None
                self.require_same(file, found)
            raise refused(action)

    @changes_store
    def remove_empty_directories(self, path: str) -> None:
        """Remove directories that hold nothing, where the filesystem has real ones."""
        if self._object_store:
            return
        with translated(f"remove directory {self._uri(path)}"):
            self.fs.invalidate_cache()
            for directory, _, _ in sorted(self.fs.walk(path), reverse=True):
                if not self.fs.ls(directory, detail=False):
                    self.write_check()
                    self.fs.rmdir(directory)

    @changes_store
    def copy(self, source: str, target: str, size: int) -> None:
        """Copy inside the store: on S3 one request with ``If-None-Match: *``."""
        action = f"copy {self._uri(source)} to {self._uri(target)}"
        if self._s3 and size < _ONE_REQUEST:

            def copy() -> None:
                condition = {**_object(target), "CopySource": _object(source), "IfNoneMatch": "*"}
                with translated(action):
                    if not self._send_if(action, "copy_object", condition):
                        if self.find(source) is None:
                            raise FileNotFoundError(source)
                        raise FileExistsError(target)

            self._copy_condition.copy(copy)
            return
        with translated(action):
            try:
                self._change(_Change(self.write_check), action, "cp_file", source, target)
            except FileNotFoundError:
                self._require_bucket(source)
                self._require_bucket(target)
                raise

    def copies_if_absent(self, size: int) -> bool:
        """Whether the service refuses a copy over a file: of S3 the first copy shows it, of others it is not known."""
        return self._s3 and size < _ONE_REQUEST and self._copy_condition.holds is True

    @changes_store
    def copy_new(self, source: StoredFile, target: str) -> None:
        """Copy a file that was listed to one that does not exist yet: on S3 one request with both conditions."""
        identity = source.identity or source.checksum  # on S3 both are the ETag
        if not self._s3 or identity is None or source.size >= _ONE_REQUEST:
            return super().copy_new(source, target)
        action = f"copy {self._uri(source.path)} to {self._uri(target)}"
        condition = {**_object(target), "CopySource": _object(source.path), "IfNoneMatch": "*"}
        condition["CopySourceIfMatch"] = if_match(identity)
        with translated(action):
            for _ in range(TIMES):
                if self._send_if(action, "copy_object", condition):
                    return None
                found, made = self.find(source.path), self.find(target)
                if found is None:
                    raise FileNotFoundError(source.path)
                self.require_same(source, found)
                if made:
                    if made.size == source.size and self._is_copy(made, source):
                        return None
                    raise FileExistsError(target)
            raise refused(action)

    def _is_copy(self, made: StoredFile, source: StoredFile) -> bool:
        """Whether one object is a copy of another; that of one uploaded in parts has an ETag of its own."""
        return made.identity == (source.identity or source.checksum) or self.read(made.path) == self.read(source.path)

    def why_no_locks(self, path: str) -> str | None:
        """Why files below ``path`` cannot be locked; one request to S3."""
        return (
            object_lock.why_no_locks(self._call_s3, _object(path)["Bucket"]) if self._s3 else super().why_no_locks(path)
        )

    @changes_store
    def lock(self, path: str, until: datetime) -> None:
        """Lock a file until a time."""
        where = _object(path)
        object_lock.lock(self._change_s3, where["Bucket"], where["Key"], until)

    def locked_until(self, path: str) -> datetime | None:
        """Until when a file is locked."""
        where = _object(path)
        return object_lock.locked_until(self._call_s3, where["Bucket"], where["Key"])

    def same_as(self, other: Store) -> bool:
        """Whether both use the same filesystem (fsspec hands out one instance for equal arguments)."""
        return isinstance(other, FsspecStore) and self.fs == other.fs

    def fenced(self, check: Callable[[], None], *, request_timeout: float | None) -> Store:
        """The same store with a check before each request that changes it.

        s3fs calls it before each request and each repeat. gcsfs and adlfs repeat requests by themselves: it is called before the
        first. The time-out is that of all requests that one call of s3fs, gcsfs or adlfs makes, parts of an upload and repeats
        included. Other filesystems (SFTP) have none.
        """
        return with_check(self, check, request_timeout)

    def _ask(self, action: str, request: Callable[[], Answer]) -> Answer:
        return self.pace.ask(action, request) if self._object_store else request()

    def _change(self, change: _Change, action: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the filesystem that changes it, in the time that there is."""
        timeout = self.write_check.timeout if self._object_store else None
        if self._s3:
            self.fs.s3.meta.events.register("before-send.s3", _before_send, unique_id="airflow-ckpt-provider")

        def request() -> Any:
            change.check()
            if not self._s3:
                change.sent += 1
            token = _CHANGE.set(change)
            try:
                if timeout is None:
                    return getattr(self.fs, method)(*args, **kwargs)
                from fsspec.asyn import sync

                return sync(self.fs.loop, getattr(self.fs, f"_{method}"), *args, timeout=timeout, **kwargs)
            except _NotSentError as e:
                raise e.error from None
            finally:
                _CHANGE.reset(token)

        return self._ask(action, request)

    def _call_s3(self, action: str, method: str, **parameters: Any) -> Any:
        return self._ask(action, lambda: self.fs.call_s3(method, **parameters))

    def _change_s3(self, action: str, method: str, **parameters: Any) -> Any:
        if method.startswith("get_"):
            return self._call_s3(action, method, **parameters)
        return self._change(_Change(self.write_check), action, "call_s3", method, **parameters)

    def _send_if(self, action: str, method: str, condition: dict[str, Any]) -> bool:
        """Send a conditional request to S3, and say whether it was carried out; a missing file is a condition that fails."""
        try:
            self._change(_Change(self.write_check), action, "call_s3", method, **condition)
        except FileNotFoundError:
            self._require_bucket(condition["Bucket"])
            return False
        except OSError as e:
            if not (isinstance(e, FileExistsError) or says_condition_failed(e)):
                raise
            return False
        return True

    def _uri(self, path: str) -> str:
        return f"{self._protocol}://{path.lstrip('/')}"

    def _put(self, change: _Change, path: str, data: bytes, **options: Any) -> None:
        try:
            self._change(change, f"write {self._uri(path)}", "pipe_file", path, data, **options)
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
        directory = path.rpartition("/")[0]
        temporary = hidden_name(path)
        self.write_check()
        self.fs.makedirs(directory, exist_ok=True)
        try:
            self.fs.pipe_file(temporary, data)
            self.write_check()
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


def _object(path: str) -> dict[str, str]:
    bucket, _, key = path.strip("/").partition("/")
    return {"Bucket": bucket, "Key": key}


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
