"""The name of a stream in a repository, where nobody gives one: the one that its checkpoint has there, else a new one.

A new name is the shortest ending of the checkpoint's path that no stream of the repository has: ``orders``, then
``payments.orders``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.names import LONGEST_NAME, name_of
from airflow_ckpt_provider.backup.repository import SAFETY_SUFFIX, Repository
from airflow_ckpt_provider.backup.streams import is_place
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.location import Location

#: Last segments that say nothing of the stream: the one before them does.
_GENERIC = frozenset({"_checkpoint", "_checkpoints", "checkpoint", "checkpoints", "ckpt", "_ckpt", "_chk", "chk"})
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._=-]")


def stream_name(
    repository: Repository | None, checkpoint: Location, name: str | None = None, *, query_id: str | None = None
) -> str:
    """The name of a stream: the given one, else the one that its checkpoint has in a repository, else a new one.

    One listing, and for each name that could be the one a listing and a read. Where the checkpoint has no name yet, that is every
    name of the repository.

    :param repository: the repository; ``None``: there is none, and the name is the last segment of the path.
    :param checkpoint: the checkpoint.
    :param name: the name that was given.
    :param query_id: id of its query. A name of the same query at another place comes before a new one.
    :raises RefusedError: the name cannot be that of a stream.
    """
    if name is not None or repository is None:
        return name_of(checkpoint.name, name)
    names = repository.names()
    known = known_endings(names, checkpoint)
    moved = None
    for ending in reversed(known):
        newest = newest_readable(repository, ending)
        if newest and is_place(checkpoint, newest.checkpoint):
            return ending
        if newest and query_id in newest.lives:
            moved = moved or ending
    others = [other for other in names if other not in known and not other.endswith(SAFETY_SUFFIX)]
    found = in_parallel(lambda other: newest_readable(repository, other), others)
    given = (newest.name for newest in found if newest and is_place(checkpoint, newest.checkpoint))
    return next(given, None) or moved or new_name(names, checkpoint)


def likely_name(repository: Repository, checkpoint: Location) -> str:
    """The name that :func:`stream_name` finds, as far as one listing shows; whether it is right shows the newest backup."""
    known = known_endings(repository.names(), checkpoint)
    return known[-1] if known else stream_name(repository, checkpoint)


def new_name(names: Collection[str], checkpoint: Location) -> str:
    """A name that no stream has.

    :param names: those of the repository.
    """
    shortest = name_of(checkpoint.name)
    marked = f"{shortest[: LONGEST_NAME - 9]}-{path_mark(checkpoint.uri)}"
    return next((ending for ending in _endings(_segments(checkpoint.root)) if ending not in names), marked)


def known_endings(names: Collection[str], checkpoint: Location) -> list[str]:
    """Those endings of a checkpoint's path that are names of a repository, the shortest first."""
    there = set(names)
    endings = {*_endings(_segments(checkpoint.root)), *_endings(telling_segments(checkpoint.root))}
    return sorted(endings & there, key=lambda ending: (len(ending), ending))


def newest_readable(repository: Repository, name: str) -> Manifest | None:
    """The newest manifest of a name that can be read; ``None`` if there is none."""
    return next(repository.newest_first(name), None)


def telling_segments(path: str) -> list[str]:
    """The segments of a path without those at its end that say nothing of the stream."""
    segments = _segments(path)
    while len(segments) > 1 and segments[-1] in _GENERIC:
        segments.pop()
    return segments or ["root"]


def joined_name(segments: Sequence[str]) -> str:
    """A name made of segments of a path; what cannot be in a name is replaced."""
    words = [word for i, word in enumerate(segments) if i == 0 or word != segments[i - 1]]
    name = _NOT_IN_NAMES.sub("_", ".".join(words))
    while ".." in name:
        name = name.replace("..", "._")
    if name.endswith(SAFETY_SUFFIX):  # such a name is that of safety backups, which nothing takes for the newest
        name = name.removesuffix(SAFETY_SUFFIX) + SAFETY_SUFFIX.replace(".", "_")
    return name if re.match(r"[A-Za-z0-9_]", name) else f"_{name}"


def path_mark(path: str) -> str:
    """A few characters that tell a path from any other."""
    return hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:8]


def _segments(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment]


def _endings(segments: Sequence[str]) -> Iterator[str]:
    """Names of the last segments, the shortest first. The shortest is the last segment as it is."""
    if segments:
        yield segments[-1]
    for count in range(2, len(segments) + 1):
        name = joined_name(segments[-count:])
        if len(name) <= LONGEST_NAME:
            yield name
