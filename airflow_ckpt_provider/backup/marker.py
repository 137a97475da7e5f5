"""What shows that a directory is a repository, and that a place lies inside one, or inside a checkpoint.

A backup of a checkpoint carries what lies in it, and a restore replaces it; a repository is copied, expired and deleted as a
whole. So each has a directory of its own. ``streams.yaml`` is checked for that by its addresses alone
(:mod:`~airflow_ckpt_provider.streams.streams`); here the directories above are read.
"""

from __future__ import annotations

import json
import logging
import uuid

from airflow_ckpt_provider.backup.file_entry import OBJECTS
from airflow_ckpt_provider.checkpoint.query_id import is_checkpoint
from airflow_ckpt_provider.errors import CkptError, RepositoryError, StorageError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.signatures import SIGNATURES
from airflow_ckpt_provider.storage.store import Listing

log = logging.getLogger(__name__)

MARKER = "repository.json"
FORMAT = "airflow-ckpt-repository"
_OWN_PLACE = "choose a place beside it: each repository and each checkpoint needs a directory of its own"


def is_repository(location: Location, listing: Listing) -> bool:
    """Whether a directory is a repository, of whatever version; asks only where its listing has a file of that name.

    :param location: the directory.
    :param listing: what it holds.
    """
    return any(file.path == MARKER for file in listing.files) and _has_marker(location)


def refuse_inside(place: Location, *, of_checkpoints: bool = True) -> None:
    """See that no directory above a place is a repository or a checkpoint, as far as they can be read.

    A request or two for each directory above: for what is done once.

    :param place: a repository, or a checkpoint.
    :param of_checkpoints: ``False``: a checkpoint may be above, whose own doctor warns of it.
    :raises RepositoryError: one is.
    """
    kinds = {"repository": _has_marker, **({"checkpoint": is_checkpoint} if of_checkpoints else {})}
    for above in Location(place.store.plain, place.store.canonical(place.root)).parents:
        try:
            kind = next((kind for kind, is_one in kinds.items() if is_one(above)), None)
        except (OSError, CkptError) as e:  # somebody else's directory, which these credentials may not read
            log.debug("%s could not be read for a repository or checkpoint: %s", above, e)
            continue
        if kind:
            raise RepositoryError(f"{place} lies inside the {kind} {above}", hint=_OWN_PLACE)


def refuse_nested(one: Location, other: Location) -> None:
    """See that of two repositories none lies inside the other.

    :raises RepositoryError: one does.
    """
    for outer, inner in ((one, other), (other, one)):
        if outer.contains(inner):
            raise RepositoryError(f"{inner} lies inside the repository {outer}", hint=_OWN_PLACE)


def _has_marker(location: Location) -> bool:
    try:
        return FORMAT.encode() in location.read_document(MARKER)
    except FileNotFoundError:
        return False


def streams_in(location: Location) -> list[str]:
    """The streams whose backups a place holds, whether it has a marker or not; whoever may not list finds none."""
    try:
        backups = set(location.list("backups").directories)
        return sorted(backups & set(location.list(OBJECTS).directories)) if backups else []
    except StorageError:
        return []


def way_back(location: Location, stream: str, *, version: int) -> str:
    """How a repository that has lost its marker gets one, as a hint.

    :param location: the repository.
    :param stream: a stream that has backups in it.
    :param version: of the marker, for repositories without packs.
    """
    hint = (
        "put the file back from an earlier version of the bucket or a copy of its files; that of an encrypted one from an "
        "export too: airflow-ckpt key import REPOSITORY --file EXPORT"
    )
    if not _may_be_written_again(location, stream):
        return hint
    again = {"format": FORMAT, "version": version, "id": location.repository_id or str(uuid.uuid4())}
    return (
        f"{hint}. Without any of these, write {location}/{MARKER} again (version 2 if names below {OBJECTS}/ end in .pack; any "
        f"id will do): {json.dumps(again)}"
    )


def _may_be_written_again(location: Location, stream: str) -> bool:
    """Whether a new marker does: nothing is encrypted with a key that only the old one has, or signed for an id that is gone."""
    if location.key is not None:
        return False
    try:
        signed = location.list(SIGNATURES)
        if not location.repository_id and (location.signing or signed.files or signed.directories):
            return False
        manifests = location.list(f"backups/{stream}").files
        return bool(manifests) and location.read_document(manifests[0].path).startswith(b"{")
    except (OSError, CkptError):
        return False
