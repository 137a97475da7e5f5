"""From a URI and an Airflow connection to a place in a store.

The core below takes filesystems and knows nothing of Airflow; this module is the only one that asks Airflow for one.
It goes through ``ObjectStoragePath``, so that every connection Airflow's providers understand works here as well.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.exceptions import AirflowProviderDeprecationWarning
from airflow.providers.common.compat.sdk import AirflowNotFoundException, mask_secret
from airflow.sdk import BaseHook, Connection, ObjectStoragePath

from airflow_ckpt_provider.errors import MissingExtraError, RefusedError
from airflow_ckpt_provider.json_text import load_rendered
from airflow_ckpt_provider.redaction import secrets_in
from airflow_ckpt_provider.storage.location import Location

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.driver_logs import DriverLogs
    from airflow_ckpt_provider.storage.signatures import Signing

#: In the extra of a connection: the key of the repository that is reached by it. Airflow hides the value of an extra whose name
#: has one of its words in it, here ``secret``.
_KEY = "ckpt_repository_secret_key"
#: Its name in version 0.1, which Airflow showed in clear.
_OLD_KEY = "ckpt_repository_key"
#: And its id, which another repository at the address does not have.
_ID = "ckpt_repository_id"
#: And the key that signs its documents, and the public ones of which one has to have signed them.
_SIGNING_KEY = "ckpt_signing_secret_key"
_TRUSTED_KEYS = "ckpt_trusted_keys"
#: The type of a connection that names a repository, its keys, and the connection that reaches its store.
REPOSITORY = "ckpt_repository"
#: Spark's spelling of a scheme -> the one Airflow's providers register.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}
#: Scheme -> the extra of this package that brings Airflow's filesystem for it.
_EXTRAS = {"s3": "amazon", "gs": "google", "abfs": "azure", "adl": "azure"}
#: In the extra of a connection to HDFS, beside what Airflow's WebHDFSHook reads: arguments of fsspec's WebHDFS.
_OF_WEBHDFS = ("kerberos", "kerb_kwargs", "token", "proxy_to", "data_proxy")


def open_place(uri: str, conn_id: str | None = None) -> Location:
    """Open the place that a URI names, with the credentials of an Airflow connection.

    No connection to the store is made here: wrong credentials and missing buckets show at the first read.

    :param uri: a path, or a URI such as ``s3://bucket/checkpoints/orders``; ``s3a://`` is understood, and so is
        Airflow's ``s3://<conn_id>@bucket/…``.
    :param conn_id: id of an Airflow connection; ``None``: what the store's client finds by itself (environment,
        instance profile).
    :raises RefusedError: there is no such connection; there are credentials before the bucket of the URI.
    :raises MissingExtraError: Airflow has no filesystem for the scheme; the message has the ``pip install`` line.
    """
    from airflow_ckpt_provider.storage.hdfs_store import HDFS_SCHEMES
    from airflow_ckpt_provider.storage.opening import location_of, open_location, refuse_no_bucket, refuse_password

    mask_credentials(uri)
    refuse_password(uri)
    refuse_no_bucket(uri)
    connection = _connection(uri, conn_id) if conn_id else None
    if connection and connection.conn_type == REPOSITORY:
        reached_by = connection.extra_dejson.get("storage_conn_id")
        return replace(open_place(uri, reached_by or None), **_of_repository(connection))
    scheme, rest = address(uri)
    if scheme == "file" and not conn_id:
        return open_location(uri)
    if scheme in HDFS_SCHEMES:
        return _open_hdfs(f"{scheme}://{rest}", conn_id)
    path = ObjectStoragePath(f"{scheme}://{rest}", conn_id=conn_id)
    of_repository = _of_repository(connection or _connection(uri, path.conn_id)) if path.conn_id else {}
    try:
        return replace(location_of(path.fs, path.path), **of_repository)
    except (ImportError, ValueError) as e:
        if isinstance(e, ValueError) and "No filesystem registered" not in str(e):
            raise
        if not path.conn_id and scheme not in _EXTRAS:
            return open_location(uri)  # schemes that fsspec has and Airflow has not, such as memory://
        extra = _EXTRAS.get(scheme)
        raise MissingExtraError(
            f"{uri}: Airflow has no filesystem for {scheme}:// ({e})",
            hint=f"pip install 'airflow-ckpt-provider[{extra}]'"
            if extra
            else f"install the Airflow provider that brings {scheme}://, or leave the connection id out",
        ) from e


def repository_uri(conn_id: str | None) -> str | None:
    """The repository that a connection of type ``ckpt_repository`` names; ``None``: it is of another type, or names none.

    :param conn_id: id of the connection; ``None``: there is none.
    :raises RefusedError: there is no such connection.
    """
    connection = _connection("the repository", conn_id) if conn_id else None
    if connection is None or connection.conn_type != REPOSITORY:
        return None
    found = connection.extra_dejson.get("repository")
    return str(found).strip() if found else None


def open_logs(progress_log: str | None, error_log: str | None, conn_id: str | None = None) -> DriverLogs | None:
    """Open the logs of a driver; ``None`` where neither is given.

    :param progress_log: URI of its progress lines.
    :param error_log: URI of its text log.
    :param conn_id: Airflow connection to reach both, see :func:`open_place`.
    """
    from airflow_ckpt_provider.checkpoint.driver_logs import DriverLogs

    if not (progress_log or error_log):
        return None
    return DriverLogs(
        open_place(progress_log, conn_id) if progress_log else None,
        open_place(error_log, conn_id) if error_log else None,
    )


def _open_hdfs(uri: str, conn_id: str | None) -> Location:
    """HDFS, of which Airflow has a connection type and no filesystem."""
    from airflow_ckpt_provider.storage.opening import open_location

    scheme, _, rest = uri.partition("://")
    authority, slash, path = rest.partition("/")
    of_address, _, authority = authority.rpartition("@")
    conn_id = conn_id or of_address
    uri = f"{scheme}://{authority}{slash}{path}"
    if not conn_id:
        return open_location(uri)
    connection = _connection(uri, conn_id)
    extra = connection.extra_dejson
    options: dict[str, Any] = {
        "host": connection.host,
        "port": connection.port,
        "user": connection.login,
        "password": connection.password,
        "use_https": str(extra.get("use_ssl", "")).lower() == "true",
        "session_verify": extra.get("verify", True),
        "session_cert": (extra["cert"], extra["key"]) if extra.get("cert") and extra.get("key") else extra.get("cert"),
    } | {name: extra[name] for name in _OF_WEBHDFS if name in extra}
    mask_credentials(options)
    return replace(open_location(uri, storage_options=options), **_of_repository(connection))


def _connection(uri: str, conn_id: str) -> Connection:
    """Find a connection; without one some of Airflow's filesystems quietly continue as nobody."""
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as e:
        raise RefusedError(
            f"{uri}: there is no Airflow connection {conn_id!r}",
            hint=f"create it (airflow connections add {conn_id} …), or leave the connection id out",
        ) from e


def _of_repository(connection: Connection) -> dict[str, Any]:
    """What the extra of a connection says of the repository that is reached by it: its keys, and the id that it has to have."""
    repository_id = connection.extra_dejson.get(_ID)
    return {
        "key": _key_of(connection),
        "repository_id": str(repository_id).strip() if repository_id else None,
        "signing": _signing_of(connection),
    }


def _signing_of(connection: Connection) -> Signing | None:
    from airflow_ckpt_provider.storage.keys import parse_key
    from airflow_ckpt_provider.storage.signatures import Signing

    extra = connection.extra_dejson
    text, trusted = extra.get(_SIGNING_KEY), extra.get(_TRUSTED_KEYS) or []
    if text:
        mask_secret(str(text))
    keys = trusted.replace(",", " ").split() if isinstance(trusted, str) else list(map(str, trusted))
    if not text and not keys:
        return None
    name = f"{_SIGNING_KEY} of connection {connection.conn_id!r}"
    return Signing.of(parse_key(str(text), name=name, signs=True) if text else None, keys)


def _key_of(connection: Connection) -> bytes | None:
    from airflow_ckpt_provider.storage.keys import parse_key

    extra = connection.extra_dejson
    mask_secret([str(extra[name]) for name in (_KEY, _OLD_KEY) if extra.get(name)])
    if extra.get(_OLD_KEY):
        warnings.warn(
            f"The extra `{_OLD_KEY}` of connection {connection.conn_id!r} is deprecated, and Airflow shows its value in clear. "
            f"Use `{_KEY}` instead.",
            AirflowProviderDeprecationWarning,
            stacklevel=2,
        )
    name = _KEY if extra.get(_KEY) else _OLD_KEY
    text = extra.get(name)
    return parse_key(str(text), name=f"{name} of connection {connection.conn_id!r}") if text else None


def mask_credentials(given: object) -> None:
    """Have Airflow hide the credentials in what a task was given, in its logs and on its pages.

    :param given: a URI, options of a store by their names, arguments of a command; a list of these, or JSON of one. Anything
        else has none.
    """
    if isinstance(given, str) and given.lstrip()[:1] in ("[", "{"):
        with suppress(ValueError):
            given = load_rendered(given)
    if found := secrets_in(given):
        mask_secret(list(found))


def address(uri: str) -> tuple[str, str]:
    """Split a URI into scheme and the rest, both in the one spelling that this package's own URIs have."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return "file", uri
    scheme = _SCHEMES.get(scheme, scheme)
    if scheme == "abfs":
        # abfss://container@account.dfs.core.windows.net/path: what stands before the @ is no connection here, and
        # the connection knows the account.
        parts = urlsplit(f"{scheme}://{rest}")
        if parts.username and "." in (parts.hostname or ""):
            rest = f"{parts.username}{parts.path}"
    return scheme, rest
