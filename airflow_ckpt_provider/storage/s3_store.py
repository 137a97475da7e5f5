"""S3 through obstore: a Rust client without botocore, which many threads can use at full speed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.conditions import TIMES, CopyCondition, if_match, refused
from airflow_ckpt_provider.storage.failures import storage_error, translated
from airflow_ckpt_provider.storage.pace import Pace
from airflow_ckpt_provider.storage.s3_settings import S3Settings
from airflow_ckpt_provider.storage.store import Listing, Store, StoredFile
from airflow_ckpt_provider.storage.write_check import WriteCheck, changes_store, with_check

if TYPE_CHECKING:
    from obstore import PutResult, UpdateVersion
    from obstore.store import ClientConfig, RetryConfig, S3Config
    from obstore.store import S3Store as Bucket

#: The largest object that one request may copy or put.
_ONE_REQUEST = 5 * 1024**3
#: From here on an upload goes in parts. Below, one request makes one ETag of the whole content.
_MULTIPART_FROM = 256 * 1024**2
#: Of an upload that a check has to see each part of.
_PART = 32 * 1024**2
#: Seconds to connect, without a byte of an answer, and for a whole request.
_CONNECT, _SILENT, _WHOLE = 5.0, 120.0, 1800.0
#: obstore would repeat a refused request by itself, while the others continue at full speed: that is for the Pace to do.
_RETRY: RetryConfig = {"max_retries": 0}
#: But of an upload in parts only the part is to be repeated, which is what obstore does.
_RETRY_OF_PARTS: RetryConfig = {"max_retries": 10}

#: The header by which a copy over a file is refused, and the status of the refusal.
_COPY_IF_ABSENT = "header-with-status:if-none-match:*:412"

Answer = TypeVar("Answer")

#: The process whose threads obstore has started. They do not survive a fork, and obstore then waits for them forever.
_in_process: int | None = None


def obstore_works_here() -> bool:
    """Whether obstore is installed, and was not in use before this process was forked off."""
    return _in_process in (None, os.getpid()) and find_spec("obstore") is not None


class S3Store(Store):
    """An S3 service. Paths are ``bucket/key``.

    Every request goes through :attr:`pace`, one page of a listing at a time.

    :param settings: where it is and who asks.
    :param beyond: opens the same place through s3fs, for the few things that obstore cannot do: to copy more than 5 GiB, and to
        delete and copy with conditions.
    """

    creates_if_absent = True
    reads_parts = True
    copies_within = True
    deletes_if_same = True

    def __init__(self, settings: S3Settings, beyond: Callable[[], Store]) -> None:
        self.settings = settings
        self._open_beyond = beyond
        self._opened_beyond: Store | None = None
        self._buckets: dict[tuple[str, str, bool, float | None], Bucket] = {}
        self._lock = threading.Lock()
        self._copy_condition = CopyCondition(settings.endpoint or "S3", None if settings.endpoint else True)
        #: How fast the service is asked.
        self.pace = Pace(settings.endpoint or "S3")

    @property
    def protocol(self) -> str:
        """Scheme of the store's URIs."""
        return "s3"

    def list(self, path: str) -> Listing:
        """List one directory."""
        import obstore

        root = path.strip("/")
        bucket, prefix = _split(root)
        client = self._bucket(bucket)
        result = self._ask(f"list s3://{root}", lambda: obstore.list_with_delimiter(client, prefix or None))
        files = tuple(self._stored_files(bucket, prefix, result["objects"]))
        start = len(prefix) + 1 if prefix else 0
        return Listing(files, tuple(sorted(p.strip("/")[start:] for p in result["common_prefixes"])))

    def walk(self, path: str) -> Iterator[StoredFile]:
        """List all files below ``path``: one request for each thousand."""
        root = path.strip("/")
        bucket, prefix = _split(root)
        return self._stored_files(bucket, prefix, self._entries(bucket, prefix))

    def _entries(self, bucket: str, prefix: str) -> Iterator[Any]:
        import obstore

        client = self._bucket(bucket)
        stream: Iterator[Any] | None = None
        last: str | None = None

        def page() -> Any:
            nonlocal stream
            if stream is None:  # after a refusal it resumes after the last key received
                stream = iter(obstore.list(client, prefix or None, offset=last, chunk_size=1000))
            try:
                return next(stream, None)
            except BaseException:
                stream = None
                raise

        while (found := self._ask(f"list s3://{bucket}/{prefix}".rstrip("/"), page)) is not None:
            yield from found
            last = found[-1]["path"] if found else last

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        import obstore

        bucket, key = _split(path)
        client = self._bucket(bucket)
        return self._ask(f"read s3://{path}", lambda: bytes(obstore.get(client, key).bytes()))

    def read_at_most(self, path: str, most: int) -> bytes:
        """Return the content of a file that may have so many bytes: one request, whose answer is not read where it has more."""
        import obstore

        bucket, key = _split(path)
        client = self._bucket(bucket)

        def get() -> bytes | None:
            found = obstore.get(client, key)
            return None if found.meta["size"] > most else bytes(found.bytes())

        if (content := self._ask(f"read s3://{path}", get)) is None:
            raise self.too_large(path, most)
        return content

    def read_part(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a file."""
        import obstore

        bucket, key = _split(path)
        client = self._bucket(bucket)
        try:
            return self._ask(
                f"read s3://{path}", lambda: bytes(obstore.get_range(client, key, start=start, length=length))
            )
        except StorageError:
            if self.ends_before(path, start):
                return b""
            raise

    def find(self, path: str) -> StoredFile | None:
        """Return one file as a listing shows it now: one request."""
        import obstore

        bucket, key = _split(path)
        client = self._bucket(bucket)
        try:
            return _stored_file(bucket, self._ask(f"read s3://{path}", lambda: obstore.head(client, key)))
        except FileNotFoundError:
            return None

    @changes_store
    def create(self, path: str, data: bytes) -> None:
        """Write a new file: one request with ``If-None-Match: *``."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        bucket, key = _split(path)
        client = self._bucket(bucket, writes=True)
        tried = 0

        def put() -> None:
            nonlocal tried
            self.write_check()
            tried += 1
            obstore.put(client, key, data, mode="create", use_multipart=False)

        with _written(f"create s3://{path}"):
            try:
                self.pace.ask(f"create s3://{path}", put)
            except AlreadyExistsError as e:
                # The answer to our own first try may have been lost.
                if tried == 1 or self.read(path) != data:
                    raise FileExistsError(path) from e

    @changes_store
    def replace(self, path: str, data: bytes) -> None:
        """Write a file over whatever is there. A check is called before each part of a large one."""
        import obstore

        bucket, key = _split(path)
        parts = len(data) >= _MULTIPART_FROM
        fenced = self.write_check.timeout is not None
        client = self._bucket(bucket, in_parts=parts and not fenced, writes=True)

        def put() -> None:
            self.write_check()
            if parts and fenced:
                self._put_in_parts(client, key, data)
            else:
                obstore.put(client, key, data, use_multipart=parts)

        with _written(f"write s3://{path}"):
            self.pace.ask(f"write s3://{path}", put)

    def _put_in_parts(self, client: Bucket, key: str, data: bytes) -> None:
        import obstore

        # Not in a "with": that would also complete an upload which is not to be.
        writer = obstore.open_writer(client, key, buffer_size=_PART)
        for start in range(0, len(data), _PART):
            self.write_check()
            writer.write(data[start : start + _PART])
        self.write_check()
        writer.close()

    @changes_store
    def replace_listed(self, file: StoredFile, data: bytes) -> StoredFile | None:
        """Write a file over the one that was listed: one request with ``If-Match``."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        if file.identity is None:
            return super().replace_listed(file, data)
        bucket, key = _split(file.path)
        client = self._bucket(bucket, writes=True)
        condition: UpdateVersion = {"e_tag": if_match(file.identity)}

        def put() -> PutResult | None:
            self.write_check()
            try:
                return obstore.put(client, key, data, mode=condition, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):  # the first where two such requests race at AWS
                return None

        action = f"write s3://{file.path}"
        for _ in range(TIMES):
            try:
                if (written := self._ask(action, put)) is not None:
                    mark = f"etag:{(written['e_tag'] or '').strip(chr(34))}"
                    return StoredFile(file.path, len(data), mark, mark)
            except FileNotFoundError:
                pass
            found = self.find(file.path)
            # The answer to our own first try may have been lost.
            if found is not None and found.size == len(data) and self.read(file.path) == data:
                return found
            self.require_same(file, found)
        raise refused(action)

    @changes_store
    def delete(self, path: str) -> None:
        """Delete a file; a missing one is fine."""
        import obstore

        bucket, key = _split(path)
        client = self._bucket(bucket, writes=True)
        self._ask(f"delete s3://{path}", self.write_check.before(lambda: obstore.delete(client, key)))

    def delete_listed(self, file: StoredFile) -> None:
        """Delete a file if it is still the one that was listed: one request with ``If-Match``, through s3fs."""
        self._beyond().delete_listed(file)

    def remove_empty_directories(self, path: str) -> None:
        """Nothing to do: S3 has no directories."""

    @changes_store
    def copy(self, source: str, target: str, size: int) -> None:
        """Copy inside the service, also from one bucket to another: one request with ``If-None-Match: *``."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        if size >= _ONE_REQUEST:
            self._beyond().copy(source, target, size)
            return
        source_bucket, source_key = _split(source)
        target_bucket, target_key = _split(target)
        client = self._bucket(target_bucket, source_bucket, writes=True)

        def request() -> None:
            try:
                obstore.copy(client, source_key, target_key, overwrite=False)
            except AlreadyExistsError as e:
                raise FileExistsError(target) from e

        def copy() -> None:
            self._ask(f"copy s3://{source} to s3://{target}", self.write_check.before(request))

        self._copy_condition.copy(copy)

    def copies_if_absent(self, size: int) -> bool:
        """Whether the service refuses a copy over a file: AWS does, of any other the first copy shows it. Not from 5 GiB on."""
        return size < _ONE_REQUEST and self._copy_condition.holds is True

    def copy_new(self, source: StoredFile, target: str) -> None:
        """Copy a file that was listed to one that does not exist yet: one request with both conditions, through s3fs.

        From 5 GiB on a copy is many requests without conditions, after a check of both.
        """
        self._beyond().copy_new(source, target)

    def why_no_locks(self, path: str) -> str | None:
        """Why files below ``path`` cannot be locked: one request, through s3fs."""
        return self._beyond().why_no_locks(path)

    def lock(self, path: str, until: datetime) -> None:
        """Lock a file until a time: one request, through s3fs."""
        self._beyond().lock(path, until)

    def locked_until(self, path: str) -> datetime | None:
        """Until when a file is locked: one request, through s3fs."""
        return self._beyond().locked_until(path)

    def same_as(self, other: Store) -> bool:
        """Whether both reach the same service as the same identity."""
        return isinstance(other, S3Store) and self.settings.same_identity(other.settings)

    def fenced(self, check: Callable[[], None], *, request_timeout: float | None) -> Store:
        """The same store with a check before each request that changes it. obstore ends such a request by itself in time.

        Of an upload in parts each part and its completion are requests of their own.
        """
        fenced = with_check(self, check, request_timeout)
        fenced._open_beyond = lambda: self._beyond().fenced(check, request_timeout=request_timeout)
        fenced._opened_beyond = None
        return fenced

    def _beyond(self) -> Store:
        """The same place through s3fs."""
        with self._lock:
            opened = self._opened_beyond
        if opened is None:
            opened = self._open_beyond()
            with self._lock:
                opened = self._opened_beyond = self._opened_beyond or opened
        return opened

    def _bucket(
        self, bucket: str, copy_source: str | None = None, *, in_parts: bool = False, writes: bool = False
    ) -> Bucket:
        """Obstore's client of a bucket.

        :param bucket: the bucket that requests go to.
        :param copy_source: the bucket that copies come from. obstore puts its ``bucket`` into the copy's source header
            only, once the address that requests go to is given whole: so one client copies between two buckets.
        :param in_parts: for uploads in parts.
        :param writes: for requests that change the store, which a check can give a time-out.
        """
        global _in_process
        names = (bucket, copy_source or bucket, in_parts, self.write_check.timeout if writes else None)
        if not obstore_works_here():
            raise StorageError(
                f"s3://{bucket} was opened before this process was forked off",
                hint="open it in the new process, by open_location or location_of",
            )
        _in_process = os.getpid()
        with self._lock:
            if names not in self._buckets:
                self._buckets[names] = self._open(*names)
            return self._buckets[names]

    def _open(self, bucket: str, copy_source: str, in_parts: bool, timeout: float | None) -> Bucket:
        from obstore.store import S3Store as Bucket

        if not bucket:
            raise StorageError("the address names no bucket", hint="write it as s3://bucket/path")
        settings = self.settings
        url, region = settings.bucket_url(bucket)
        longest = WriteCheck(timeout=timeout).limited
        client: ClientConfig = {
            "connect_timeout": _milliseconds(longest(_CONNECT)),
            "read_timeout": _milliseconds(longest(_SILENT)),
            "timeout": _milliseconds(longest(_WHOLE)),
            "pool_max_idle_per_host": "64",
            "allow_http": url.startswith("http://"),
            "allow_invalid_certificates": not settings.verify,
        }
        config: S3Config = {
            # Both, as obstore would prefer the second from the environment.
            "endpoint": url,
            "aws_endpoint_url_s3": url,
            "virtual_hosted_style_request": True,
            "region": region,
            "skip_signature": settings.credentials is None,
            "copy_if_not_exists": _COPY_IF_ABSENT,
            # Not every service has the request that deletes many at once, and one is all we delete.
            "disable_bulk_delete": True,
        }
        provider: Any = settings.credentials
        retry = _RETRY_OF_PARTS if in_parts else _RETRY
        return Bucket(
            copy_source, config=config, client_options=client, retry_config=retry, credential_provider=provider
        )

    def _stored_files(self, bucket: str, prefix: str, entries: Iterable[Any]) -> Iterator[StoredFile]:
        """Turn a listing into files, without the marker objects that S3A leaves for directories.

        A marker's key ends in a slash, which obstore strips. It is empty, so every empty one that is not plainly a
        directory (it has files in it) is asked for under the name without a slash, when all else is known.
        """
        start = f"{prefix}/" if prefix else ""
        parents: set[str] = set()
        empty: list[Any] = []
        for entry in entries:
            key: str = entry["path"]
            if not key.startswith(start):
                continue
            parent = key.rpartition("/")[0]
            while parent and parent not in parents:
                parents.add(parent)
                parent = parent.rpartition("/")[0]
            if entry["size"] == 0:
                empty.append(entry)
            else:
                yield _stored_file(bucket, entry)
        for entry in empty:
            if entry["path"] not in parents and self.find(f"{bucket}/{entry['path']}"):
                yield _stored_file(bucket, entry)

    def _ask(self, action: str, request: Callable[[], Answer]) -> Answer:
        with translated(action):
            return self.pace.ask(action, request)


@contextmanager
def _written(action: str) -> Iterator[None]:
    """As :func:`translated`; and what a write does not find is never a file, but a bucket."""
    try:
        with translated(action):
            yield
    except FileNotFoundError as e:
        raise storage_error(action, e) from e


def _milliseconds(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"


def _split(path: str) -> tuple[str, str]:
    bucket, _, key = path.strip("/").partition("/")
    return bucket, key


def _stored_file(bucket: str, entry: Any) -> StoredFile:
    etag = entry["e_tag"].strip('"') if entry["e_tag"] else None
    mark = f"etag:{etag}" if etag else None
    return StoredFile(f"{bucket}/{entry['path']}", entry["size"], mark, mark, entry["last_modified"])
