"""S3 through obstore: a Rust client without botocore, which many threads can use at full speed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.failures import storage_error, translated
from airflow_ckpt_provider.storage.s3_settings import S3Settings
from airflow_ckpt_provider.storage.store import Listing, Store, StoredFile

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config
    from obstore.store import S3Store as Bucket

#: The largest object that one request may copy or put.
_ONE_REQUEST = 5 * 1024**3
#: From here on an upload goes in parts. Below, one request makes one ETag of the whole content.
_MULTIPART_FROM = 256 * 1024**2
_CLIENT: ClientConfig = {
    "connect_timeout": "5s",
    "read_timeout": "120s",
    "timeout": "30m",
    "pool_max_idle_per_host": "64",
}
_RETRY: RetryConfig = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
}


#: The process whose threads obstore has started. They do not survive a fork, and obstore then waits for them forever.
_in_process: int | None = None


def obstore_works_here() -> bool:
    """Whether obstore is installed, and was not in use before this process was forked off."""
    return _in_process in (None, os.getpid()) and find_spec("obstore") is not None


class S3Store(Store):
    """An S3 service. Paths are ``bucket/key``.

    :param settings: where it is and who asks.
    :param beyond: opens the same place through s3fs, for the few things that obstore cannot do: to copy more than 5 GiB.
    """

    creates_if_absent = True
    copies_within = True

    def __init__(self, settings: S3Settings, beyond: Callable[[], Store]) -> None:
        self.settings = settings
        self._beyond = beyond
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._lock = threading.Lock()

    @property
    def protocol(self) -> str:
        """Scheme of the store's URIs."""
        return "s3"

    def list(self, path: str) -> Listing:
        """List one directory."""
        import obstore

        root = path.strip("/")
        bucket, prefix = _split(root)
        with translated(f"list s3://{root}"):
            result = obstore.list_with_delimiter(self._bucket(bucket), prefix or None)
            files = tuple(self._stored_files(bucket, prefix, result["objects"]))
        start = len(prefix) + 1 if prefix else 0
        return Listing(files, tuple(sorted(p.strip("/")[start:] for p in result["common_prefixes"])))

    def walk(self, path: str) -> tuple[StoredFile, ...]:
        """List all files below ``path``: one request for each thousand."""
        import obstore

        root = path.strip("/")
        bucket, prefix = _split(root)
        with translated(f"list s3://{root}"):
            found = obstore.list(self._bucket(bucket), prefix or None, chunk_size=1000).collect()
            return tuple(self._stored_files(bucket, prefix, found))

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        import obstore

        bucket, key = _split(path)
        with translated(f"read s3://{path}"):
            return bytes(obstore.get(self._bucket(bucket), key).bytes())

    def create(self, path: str, data: bytes) -> None:
        """Write a new file: one request with ``If-None-Match: *``."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        bucket, key = _split(path)
        with _written(f"create s3://{path}"):
            try:
                obstore.put(self._bucket(bucket), key, data, mode="create", use_multipart=False)
            except AlreadyExistsError as e:
                raise FileExistsError(path) from e

    def replace(self, path: str, data: bytes) -> None:
        """Write a file over whatever is there."""
        import obstore

        bucket, key = _split(path)
        with _written(f"write s3://{path}"):
            obstore.put(self._bucket(bucket), key, data, use_multipart=len(data) >= _MULTIPART_FROM)

    def delete(self, path: str) -> None:
        """Delete a file; a missing one is fine."""
        import obstore

        bucket, key = _split(path)
        with translated(f"delete s3://{path}"):
            obstore.delete(self._bucket(bucket), key)

    def remove_empty_directories(self, path: str) -> None:
        """Nothing to do: S3 has no directories."""

    def copy(self, source: str, target: str, size: int) -> None:
        """Copy inside the service, also from one bucket to another."""
        import obstore

        if size >= _ONE_REQUEST:
            self._beyond().copy(source, target, size)
            return
        source_bucket, source_key = _split(source)
        target_bucket, target_key = _split(target)
        with translated(f"copy s3://{source} to s3://{target}"):
            obstore.copy(self._bucket(target_bucket, source_bucket), source_key, target_key, overwrite=True)

    def same_as(self, other: Store) -> bool:
        """Whether both reach the same service as the same identity."""
        return isinstance(other, S3Store) and self.settings.same_identity(other.settings)

    def _bucket(self, bucket: str, copy_source: str | None = None) -> Bucket:
        """Obstore's client of a bucket.

        :param bucket: the bucket that requests go to.
        :param copy_source: the bucket that copies come from. obstore puts its ``bucket`` into the copy's source header
            only, once the address that requests go to is given whole: so one client copies between two buckets.
        """
        global _in_process
        names = (bucket, copy_source or bucket)
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

    def _open(self, bucket: str, copy_source: str) -> Bucket:
        from obstore.store import S3Store as Bucket

        if not bucket:
            raise StorageError("the address names no bucket", hint="write it as s3://bucket/path")
        settings = self.settings
        url, region = settings.bucket_url(bucket)
        client: ClientConfig = {
            **_CLIENT,
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
            # Not every service has the request that deletes many at once, and one is all we delete.
            "disable_bulk_delete": True,
        }
        provider: Any = settings.credentials
        return Bucket(
            copy_source, config=config, client_options=client, retry_config=_RETRY, credential_provider=provider
        )

    def _stored_files(self, bucket: str, prefix: str, entries: Iterable[Any]) -> Iterator[StoredFile]:
        """Turn a listing into files, without the marker objects that S3A leaves for directories.

        A marker's key ends in a slash, which obstore strips. It is empty, so every empty one that is not plainly a
        directory (it has files in it) is asked for under the name without a slash.
        """
        listed = list(entries)
        start = f"{prefix}/" if prefix else ""
        parents: set[str] | None = None
        for entry in listed:
            key: str = entry["path"]
            if not key.startswith(start):
                continue
            if entry["size"] == 0:
                if parents is None:
                    parents = {parent for e in listed for parent in _parents(e["path"])}
                if key in parents or not self._exists(bucket, key):
                    continue
            etag = entry["e_tag"].strip('"') if entry["e_tag"] else None
            mark = f"etag:{etag}" if etag else None
            yield StoredFile(f"{bucket}/{key}", entry["size"], mark, mark, entry["last_modified"])

    def _exists(self, bucket: str, key: str) -> bool:
        import obstore

        try:
            obstore.head(self._bucket(bucket), key)
        except FileNotFoundError:
            return False
        return True


@contextmanager
def _written(action: str) -> Iterator[None]:
    """As :func:`translated`; and what a write does not find is never a file, but a bucket."""
    try:
        with translated(action):
            yield
    except FileNotFoundError as e:
        raise storage_error(action, e) from e


def _split(path: str) -> tuple[str, str]:
    bucket, _, key = path.strip("/").partition("/")
    return bucket, key


def _parents(key: str) -> Iterator[str]:
    while "/" in key:
        key = key.rpartition("/")[0]
        yield key
