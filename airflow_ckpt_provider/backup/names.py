"""What a stream can be called in a repository."""

from __future__ import annotations

import re

from airflow_ckpt_provider.errors import RefusedError

#: Of names of streams, so that every name that is made of one fits on disks and HDFS (255 bytes).
LONGEST_NAME = 240
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=-]*")


def is_name(name: str) -> bool:
    """Whether a stream can have a name: it cannot leave its directory, and can be typed."""
    return _NAME.fullmatch(name) is not None and ".." not in name


def name_of(directory: str, given: str | None = None) -> str:
    """Return the name of a stream: the one that it was given, else that of its directory.

    :param directory: the last segment of the checkpoint's path.
    :param given: ``None`` or empty: none was.
    :raises RefusedError: no stream can have that name.
    """
    if given:
        return checked_name(given)
    if not is_name(directory):
        raise RefusedError(
            f"the directory {directory!r} cannot be the name of a stream",
            hint="give the stream a name: name / --name, of letters, digits, '.', '_', '-' and '='",
        )
    return directory


def checked_name(name: str) -> str:
    """Return the name of a stream if it can be one.

    :raises RefusedError: it could leave its directory, or is hard to type.
    """
    if not is_name(name):
        raise RefusedError(
            f"{name!r} cannot be the name of a stream",
            hint="use letters, digits, '.', '_', '-' and '=', beginning with a letter, a digit or '_', without '..' or '/'",
        )
    return name
