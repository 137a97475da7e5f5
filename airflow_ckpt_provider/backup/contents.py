"""What a stream's part of the repository holds: the objects that are there, and the ones that manifests list."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from airflow_ckpt_provider.backup.file_entry import OBJECTS
from airflow_ckpt_provider.backup.manifest import Manifest, checked_name
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.transfer import in_parallel
from airflow_ckpt_provider.errors import CkptError, NoSuchBackupError
from airflow_ckpt_provider.storage.packs import Moved, file_of, part_of, read_moved
from airflow_ckpt_provider.storage.store import StoredFile


@dataclass(frozen=True, slots=True)
class Listed:
    """What the manifests of a stream list.

    :param objects: paths of objects; of contents in packs as the manifests have them.
    :param claims: the claims that its backups were made under.
    :param backup_ids: its backups.
    :param unreadable: manifests that cannot be read, in words. What they list is not known.
    """

    objects: frozenset[str]
    claims: frozenset[str]
    backup_ids: frozenset[str]
    unreadable: tuple[str, ...]


def stream_names(repository: Repository) -> tuple[str, ...]:
    """Names of streams that have backups, or objects that no backup lists."""
    names = {*repository.names(), *repository.names_in(OBJECTS)}
    return tuple(sorted(names))


def objects_there(repository: Repository, name: str) -> dict[str, StoredFile]:
    """The objects of a stream by their path."""
    return repository.whole_files(f"objects/{checked_name(name)}")


def files_needed(objects: Iterable[str], there: Collection[str], moved: Moved) -> set[str]:
    """The files that hold objects: the pack of a content, or the one that it has been moved to, if that is there.

    :param objects: paths of objects.
    :param there: paths of the files that are there.
    :param moved: where contents are whose packs were packed anew.
    """
    found = set()
    for path in objects:
        now = moved.now(path)
        found.add(file_of(now if file_of(now) in there else path))
    return found


def moved_of(repository: Repository, name: str, objects: Iterable[str]) -> Moved:
    """Where contents of a stream have been moved to; no request if none of them is in a pack.

    Not by the format of the repository: it may have been raised since it was opened.

    :param objects: paths of objects that backups list.
    """
    return read_moved(repository.location, name) if any(map(part_of, objects)) else Moved()


def listed_by(repository: Repository, name: str, *, without: Collection[str] = ()) -> Listed:
    """Read all manifests of a stream; of each only what is needed is kept.

    :param without: ids of backups that are left out.
    """
    ids = [i for i in repository.backup_ids(name) if i not in without]

    def read(backup_id: str) -> Manifest | str | None:
        try:
            return repository.read_manifest(name, backup_id)
        except NoSuchBackupError:
            return None  # removed since it was listed
        except CkptError as e:
            return e.message

    objects: set[str] = set()
    claims: set[str] = set()
    unreadable: list[str] = []
    for start in range(0, len(ids), 64):  # so that the manifests of a year are not in memory at once
        for found in in_parallel(read, ids[start : start + 64]):
            if isinstance(found, Manifest):
                objects.update(entry.object for entry in found.files)
                claims.add(found.claim)
            elif found is not None:
                unreadable.append(found)
    return Listed(frozenset(objects), frozenset(claims), frozenset(ids), tuple(unreadable))
