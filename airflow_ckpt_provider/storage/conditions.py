"""What conditional requests to S3 have in common, whichever client sends them."""

from __future__ import annotations

from airflow_ckpt_provider.errors import StorageError

#: How often a request is repeated that the service refused though its condition holds; AWS does so where two requests race.
TIMES = 5


def if_match(identity: str) -> str:
    """The value of ``If-Match`` for a file of this identity."""
    return '"' + identity.removeprefix("etag:") + '"'


def refused(action: str) -> StorageError:
    """The error where a request was refused so often though its condition holds.

    :param action: what is being done to which place, to follow "could not".
    """
    return StorageError(
        f"could not {action}: the service refused it {TIMES} times, though the file is the one that was listed",
        hint="find out who else writes there, then run the same command again",
    )
