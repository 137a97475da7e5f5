"""The repositories beside a checkpoint: where its changes are kept when nobody names a repository.

``<checkpoint>.repairs`` keeps what repairs take away, ``<checkpoint>.rewinds`` what all other changes do. A whole bucket has no
place beside it: ``s3://orders.rewinds`` is another bucket, perhaps of somebody else.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.location import Location

#: What follows the name of the checkpoint.
_REWINDS, _REPAIRS = ".rewinds", ".repairs"


def default_repository(checkpoint: Location) -> Location:
    """Where changes of a checkpoint are kept, but repairs.

    :raises RefusedError: the checkpoint is a whole bucket.
    """
    return _beside(checkpoint, _REWINDS)


def repair_place(checkpoint: Location) -> Location:
    """Where repairs of a checkpoint are kept.

    :raises RefusedError: the checkpoint is a whole bucket.
    """
    return _beside(checkpoint, _REPAIRS)


def is_beside(repository: Repository, checkpoint: str) -> bool:
    """Whether changes of a checkpoint are kept in a repository when none is named.

    :param checkpoint: its URI.
    """
    return repository.location.uri in {checkpoint.rstrip("/") + ending for ending in (_REWINDS, _REPAIRS)}


def has_room_beside(checkpoint: Location) -> bool:
    """Whether there can be something beside a checkpoint: not if it is a whole bucket."""
    return "/" in checkpoint.root.rstrip("/")


def those_beside(checkpoint: Location) -> Iterator[Repository]:
    """Those that are there, that of repairs last.

    :raises RepositoryError: one is there, and cannot be opened.
    """
    for place in (default_repository, repair_place) if has_room_beside(checkpoint) else ():
        if repository := Repository.open_if_there(place(checkpoint)):
            yield repository


def repository_at(place: Location | None, checkpoint: Location) -> Repository | None:
    """Open the repository that somebody named, else the one beside a checkpoint; ``None`` if that is not made yet.

    :param place: the repository; ``None``: nobody named one.
    :raises RepositoryError: the place that was named holds no repository.
    :raises RefusedError: nobody named one, and the checkpoint is a whole bucket.
    """
    if place is None:
        return Repository.open_if_there(default_repository(checkpoint))
    if place.uri == checkpoint.uri.rstrip("/") + _REWINDS:
        return Repository.open_if_there(place)
    return Repository.open(place)


def repository_for_change(place: Location | None, checkpoint: Location) -> Repository:
    """As :func:`repository_at`, for a change that is carried out: the one beside a checkpoint is made."""
    found = repository_at(place, checkpoint) or Repository.open_or_create(place or default_repository(checkpoint))
    found.refuse_unsigned()
    return found


def _beside(checkpoint: Location, ending: str) -> Location:
    if not has_room_beside(checkpoint):
        raise RefusedError(
            f"there is no place beside {checkpoint} to keep what is taken away", hint="give a repository (--repository)"
        )
    return Location(checkpoint.store, checkpoint.root.rstrip("/") + ending)
