"""From a URI, or an fsspec filesystem and a root, to a :class:`Location`."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_ckpt_provider.errors import MissingExtraError, RefusedError, StorageError, package_with
from airflow_ckpt_provider.redaction import has_password
from airflow_ckpt_provider.storage.fsspec_store import FsspecStore
from airflow_ckpt_provider.storage.hdfs_store import HDFS_SCHEMES, hdfs_of, open_hdfs
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.memory_store import MemoryStore
from airflow_ckpt_provider.storage.s3_settings import settings_of_filesystem, settings_of_options
from airflow_ckpt_provider.storage.s3_store import S3Store, obstore_works_here
from airflow_ckpt_provider.storage.store import Store

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: Spark's spelling of a scheme -> fsspec's.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "wasb": "abfs", "wasbs": "abfs", "abfss": "abfs", "gs": "gcs"}
#: ``s3:/bucket`` and ``dbfs:/mnt``; of one letter it would be a drive.
_ONE_SLASH = re.compile(r"([A-Za-z][\w+.-]+):/(?!/)")
#: In front of a bucket there is no place for a password: the client would take all of it for the bucket's name.
_OF_BUCKETS = frozenset({"s3", "gcs", "abfs", "adl"})
#: Connections of s3fs where it is opened here; botocore's ten are few for 64 threads.
_CONNECTIONS = 64
#: fsspec protocol -> the extra of this package that brings its client.
_EXTRAS = {"s3": "amazon", "gcs": "google", "abfs": "azure"}


def open_location(uri: str, *, storage_options: dict[str, Any] | None = None) -> Location:
    """Open the place that a URI names.

    :param uri: a path, or a URI with a scheme that fsspec knows; ``s3a://`` and the like are understood.
    :param storage_options: arguments of the fsspec filesystem, such as ``key``, ``secret`` and ``endpoint_url``.
    :raises MissingExtraError: the store's client is not installed; the message has the ``pip install`` line.
    :raises RefusedError: there are credentials before the bucket of the URI, or a zero byte in it; a scheme is followed by one
        slash; a ``file://`` names another machine; it is no URI.
    :raises StorageError: the scheme is unknown or the client refuses its arguments.
    """
    refuse_zero_byte(uri)
    scheme = _scheme(uri)
    if not scheme and (slip := _ONE_SLASH.match(uri)):
        # Of a path of this machine a repository would be made, and backups would be found nowhere else.
        on_cluster = ", or on a cluster of Databricks /dbfs/…" if slip[1] == "dbfs" else ""
        raise RefusedError(
            f"{uri} is no address: two slashes follow a scheme",
            hint=f"write {slip[1]}://…{on_cluster}; for a directory of this machine that has this name ./{uri}",
        )
    if scheme in ("", "file"):
        # Taken as it stands: in a Hadoop path neither "%" nor "#" nor "?" has a meaning of its own.
        path = uri[len("file:") :] if scheme else uri
        path = _without_host(uri, path.removeprefix("//")) if path.startswith("//") and scheme else path
        if not path:
            raise RefusedError(
                f"{uri!r} is no address: it names no directory", hint="name one; the current directory is ."
            )
        root = os.path.abspath(os.path.expanduser(path))
        return Location(LocalStore(root), root)
    if not uri.isascii() and uri != uri.encode(errors="replace").decode():
        raise RefusedError(f"{uri!r} is no address: it is no UTF-8", hint="correct the address")
    if scheme in HDFS_SCHEMES:
        return open_hdfs(uri, storage_options or {})
    protocol = _SCHEMES.get(scheme, scheme)
    refuse_password(uri)
    refuse_no_bucket(uri)
    address = f"{protocol}{uri[len(scheme) :]}"
    options = storage_options or {}
    if protocol == "s3" and obstore_works_here() and (settings := settings_of_options(options, os.environ)):
        # Without fsspec, s3fs and botocore, which take longer to load than the rest of the command line.
        path = uri.partition("://")[2].rstrip("/")
        tuned = options | {"config_kwargs": {"max_pool_connections": _CONNECTIONS} | options.get("config_kwargs", {})}
        store = S3Store(settings, beyond=lambda: FsspecStore(_filesystem(uri, address, tuned)[0]))
        return Location(store, path)
    return location_of(*_filesystem(uri, address, options))


def _scheme(uri: str) -> str:
    """The scheme of a URI; empty for a path."""
    try:
        return urlsplit(uri).scheme if "://" in uri or uri.startswith("file:") else ""
    except ValueError as e:
        raise RefusedError(f"{uri} is no address: {e}", hint="correct the address") from e


def _without_host(uri: str, rest: str) -> str:
    """The path of a ``file://`` that is of this machine.

    :param rest: what follows ``file://``.
    """
    host, slash, path = rest.partition("/")
    if host.lower() in ("", "localhost") and (slash or not host):
        return slash + path
    # Of its host a directory below the current one would be made, and backups would be found nowhere else.
    raise RefusedError(
        f"{uri} is no address: {host} is read as the name of a machine",
        hint=f"write file:///{rest}, with three slashes",
    )


def refuse_password(uri: str) -> None:
    """See that there are no credentials before the bucket of a URI: they would be sent and logged as its name.

    :param uri: the URI of a place.
    :raises RefusedError: there are.
    """
    scheme = uri.partition("://")[0].lower()
    if _SCHEMES.get(scheme, scheme) in _OF_BUCKETS and has_password(uri):
        raise RefusedError(
            f"{uri}: credentials do not belong in the address of a bucket",
            hint="give them by an Airflow connection, by --storage-option, or by the environment",
        )


def refuse_no_bucket(uri: str) -> None:
    """See that a URI names a bucket: in ``s3:///orders`` of a variable that is not set, the client takes ``orders`` for it.

    :param uri: the URI of a place.
    :raises RefusedError: it does not.
    """
    scheme, _, rest = uri.partition("://")
    if _SCHEMES.get(scheme.lower(), scheme.lower()) in _OF_BUCKETS and rest[:1] in ("", "/"):
        raise RefusedError(f"{uri} is no address: it names no bucket", hint=f"write {scheme}://BUCKET/PATH")


def refuse_zero_byte(uri: str) -> None:
    """See that an address has no zero byte, which no store takes in a name.

    :param uri: the address.
    :raises RefusedError: it has.
    """
    if "\0" in uri:
        raise RefusedError(f"{uri!r} is no address: it has a zero byte", hint="correct the address")


def _filesystem(uri: str, address: str, options: dict[str, Any]) -> tuple[AbstractFileSystem, str]:
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(address, **options)
    except ImportError as e:
        protocol = address.partition(":")[0]
        extra = _EXTRAS.get(protocol)
        package = package_with(extra) if extra else str(e)
        raise MissingExtraError(
            f"{uri}: the client for {protocol}:// is not installed ({e})", hint=f"pip install '{package}'"
        ) from e
    except (ValueError, TypeError) as e:
        raise StorageError(f"{uri}: {e}", hint="use a path, or a scheme and options that fsspec knows") from e
    return fs, path


def location_of(fs: AbstractFileSystem, root: str) -> Location:
    """Wrap an fsspec filesystem and a root path, as a notebook or Airflow's ``ObjectStoragePath`` has them.

    :param fs: the filesystem, already authenticated.
    :param root: the path in it, with or without the scheme.
    """
    refuse_zero_byte(root)
    stripped = str(fs._strip_protocol(root)).rstrip("/")
    if "webhdfs" in fs.protocol:
        return hdfs_of(fs, stripped)
    return Location(store_for(fs, stripped), stripped)


def store_for(fs: AbstractFileSystem, root: str | None = None) -> Store:
    """Choose the implementation for a filesystem.

    :param root: a path that it is used for.
    """
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.implementations.memory import MemoryFileSystem

    if isinstance(fs, LocalFileSystem):
        return LocalStore(root)
    if isinstance(fs, MemoryFileSystem):
        return MemoryStore(fs)
    if _is_s3fs(fs) and obstore_works_here() and (settings := settings_of_filesystem(fs)):
        return S3Store(settings, beyond=lambda: FsspecStore(fs))
    return FsspecStore(fs)


def _is_s3fs(fs: AbstractFileSystem) -> bool:
    return any(f"{c.__module__}.{c.__name__}" == "s3fs.core.S3FileSystem" for c in type(fs).__mro__)
