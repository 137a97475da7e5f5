"""S3 Object Lock: locking a version of an object against deletion until a time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.failures import error_code, translated

#: Nobody can shorten or lift it; see :mod:`~airflow_ckpt_provider.backup.immutability`.
MODE = "COMPLIANCE"
#: How services say that a bucket, or an object, has no such thing; or that they do not know it.
_NONE = frozenset(
    {
        "ObjectLockConfigurationNotFoundError",
        "NoSuchObjectLockConfiguration",
        "InvalidRequest",
        "MethodNotAllowed",
        "NotImplemented",
    }
)

#: Sends a request of botocore's name with its parameters.
Send = Callable[..., Any]


def why_no_locks(send: Send, bucket: str) -> str | None:
    """Why files of a bucket cannot be locked; ``None``: they can.

    :raises StorageError: the service could not be asked.
    """
    action = f"read the Object Lock configuration of s3://{bucket}"
    with translated(action):
        try:
            found = send(action, "get_object_lock_configuration", Bucket=bucket)
        except Exception as e:
            if error_code(e) not in _NONE:
                raise
            return f"the bucket {bucket} was made without Object Lock"
    enabled = (found.get("ObjectLockConfiguration") or {}).get("ObjectLockEnabled")
    return None if enabled == "Enabled" else f"Object Lock is not enabled on the bucket {bucket}"


def locked_until(send: Send, bucket: str, key: str) -> datetime | None:
    """Until when an object is locked; ``None``: it is not, or does not exist.

    :raises StorageError: the service could not be asked.
    """
    action = f"read the retention of s3://{bucket}/{key}"
    try:
        with translated(action):
            try:
                found = send(action, "get_object_retention", Bucket=bucket, Key=key)
            except Exception as e:
                if error_code(e) not in _NONE:
                    raise
                return None
    except FileNotFoundError:
        return None
    until = (found.get("Retention") or {}).get("RetainUntilDate")
    return until.astimezone(UTC) if isinstance(until, datetime) else None


def lock(send: Send, bucket: str, key: str, until: datetime) -> None:
    """Lock an object until a time; a lock that lasts longer stays.

    :raises FileNotFoundError: there is no such object.
    :raises StorageError: it could not be locked.
    """
    action = f"lock s3://{bucket}/{key} until {until.isoformat(timespec='seconds')}"
    retention = {"Mode": MODE, "RetainUntilDate": until}
    try:
        with translated(action):
            send(action, "put_object_retention", Bucket=bucket, Key=key, Retention=retention)
    except StorageError as e:
        # A service refuses to shorten a lock in the words in which it refuses everything.
        there = locked_until(send, bucket, key)
        if there is None or there < until:
            e.add_hint("it takes the rights s3:PutObjectRetention and s3:GetObjectRetention")
            raise
