"""Is a repository what its manifests say? Listings, and what verifies have found; what objects hold is for these to read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.claims import open_claims
from airflow_ckpt_provider.backup.contents import Places, objects_there, stream_names
from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.prune_marks import read_marks
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import check_structure
from airflow_ckpt_provider.errors import CkptError, NoSuchBackupError, StorageError
from airflow_ckpt_provider.parallel import in_parallel

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DamagedBackup:
    """A backup that cannot be restored as it is.

    :param problems: what is wrong with it, a line for each file; or the one that its manifest cannot be read.
    :param is_unread: its manifest could not be read, and may be whole.
    """

    name: str
    backup_id: str
    problems: tuple[str, ...]
    is_unread: bool = False

    def to_json(self) -> dict[str, Any]:
        """The finding as plain JSON."""
        return {"name": self.name, "backup_id": self.backup_id, "problems": list(self.problems)}


@dataclass(frozen=True, slots=True)
class CheckedStream:
    """What was found of one stream.

    :param objects: objects that are there.
    :param unused_objects: of these, the ones that no backup lists. No fault: a prune removes them.
    :param at_work: who has begun a backup or restore and not ended it.
    :param unfinished_prunes: prunes that were not carried to their end.
    :param unreadable: records of moved contents that cannot be read, in words. They are ignored, and no prune deletes anything.
    """

    name: str
    backups: int
    objects: int
    bytes: int
    unused_objects: int
    unused_bytes: int
    damaged: tuple[DamagedBackup, ...]
    at_work: tuple[str, ...]
    unfinished_prunes: int
    unreadable: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The stream as plain JSON."""
        values = {name: getattr(self, name) for name in self.__slots__}
        lists = {"at_work": list(self.at_work), "unreadable": list(self.unreadable)}
        return {**values, **lists, "damaged": [d.to_json() for d in self.damaged]}


@dataclass(frozen=True, slots=True)
class RepositoryReport:
    """What a check found."""

    repository: str
    streams: tuple[CheckedStream, ...]

    @property
    def damaged(self) -> tuple[DamagedBackup, ...]:
        """Backups that cannot be restored as they are."""
        return tuple(d for s in self.streams for d in s.damaged)

    @property
    def ok(self) -> bool:
        """Whether every backup is whole, and every record of moved contents can be read."""
        return not self.damaged and not any(stream.unreadable for stream in self.streams)

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON."""
        return {"repository": self.repository, "ok": self.ok, "streams": [s.to_json() for s in self.streams]}


def check_repository(repository: Repository, *, name: str | None = None) -> RepositoryReport:
    """Compare all manifests with the objects that are there, and with what is known to be damaged.

    That takes for each stream a few listings, and a read of each manifest.

    :param name: only this stream.
    :raises NoSuchBackupError: nothing is there of that name.
    """
    names = stream_names(repository, name)
    return RepositoryReport(repository.location.uri, tuple(_checked(repository, each) for each in names))


def _checked(repository: Repository, name: str) -> CheckedStream:
    # The other way round, an object that a backup adds between the two listings would be missed.
    ids = repository.backup_ids(name)
    known = read_damaged(repository.location, name)
    damaged: list[DamagedBackup] = []
    listed: set[str] = set()
    claims: set[str] = set()
    there = None
    for found in readable(repository, name, ids):
        if isinstance(found, DamagedBackup):
            damaged.append(found)
            continue
        there = objects_there(repository, name) if there is None else there
        claims.add(found.claim)
        listed.update(entry.object for entry in found.files)
        files = list(found.files)
        problems = {**known.of(found), **{d.path: d for d in check_structure(repository, found, files, listed=there)}}
        if problems:
            damaged.append(DamagedBackup(name, found.backup_id, tuple(d.message for d in problems.values())))
    there = objects_there(repository, name) if there is None else there
    places = Places.read(repository, name, there, known)
    needed = places.files_needed(listed)
    unused = [file.size for path, file in there.items() if path not in needed]
    return CheckedStream(
        name=name,
        backups=len(ids),
        objects=len(there),
        bytes=sum(file.size for file in there.values()),
        unused_objects=len(unused),
        unused_bytes=sum(unused),
        damaged=tuple(damaged),
        at_work=tuple(claim.words(repository.location) for claim in open_claims(repository, name, finished=claims)),
        unfinished_prunes=len(read_marks(repository.location, name, for_prune=True).unfinished),
        unreadable=places.moved.unreadable,
    )


def readable(
    repository: Repository, name: str, ids: tuple[str, ...], *, with_files: bool = True
) -> Iterator[Manifest | DamagedBackup]:
    """Manifests that can be read, and what is wrong with the others; a few in memory at once.

    :param repository: the repository.
    :param name: name of the stream.
    :param ids: ids of its backups.
    :param with_files: as for :meth:`Repository.read_manifest`.
    """

    def read(backup_id: str) -> Manifest | DamagedBackup | None:
        try:
            return repository.read_manifest(name, backup_id, with_files=with_files)
        except NoSuchBackupError:
            return None  # removed since it was listed
        except CkptError as e:
            return DamagedBackup(name, backup_id, (e.message,), is_unread=isinstance(e, StorageError))

    for start in range(0, len(ids), 64):
        yield from (found for found in in_parallel(read, ids[start : start + 64]) if found is not None)


def readable_manifests(repository: Repository, name: str) -> Iterator[Manifest]:
    """The manifests of a stream, without their tables of files. One that is damaged is logged and left out.

    :param repository: the repository.
    :param name: name of the stream.
    :raises StorageError: one could not be read, and may be whole.
    """
    for found in readable(repository, name, repository.backup_ids(name), with_files=False):
        if isinstance(found, Manifest):
            yield found
        elif found.is_unread:
            raise StorageError("; ".join(found.problems), hint="repeat it")
        else:
            log.warning("backup %s of %s is left out: %s", found.backup_id, found.name, "; ".join(found.problems))
