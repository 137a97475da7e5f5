"""What a stream's part of the repository holds: the objects that are there, and the ones that manifests list."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from airflow_ckpt_provider.backup.damaged import DamagedObjects
from airflow_ckpt_provider.backup.file_entry import OBJECTS, FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.names import checked_name
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import CkptError, NoSuchBackupError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.packs import Moved, file_of, pack_size, read_moved
from airflow_ckpt_provider.storage.store import StoredFile

_NOTHING_MOVED = Moved()


@dataclass(frozen=True, slots=True)
class Listed:
    """What the manifests of a stream list.

    :param name: name of the stream.
    :param objects: paths of objects; of contents in packs as the manifests have them.
    :param claims: the claims that its backups were made under.
    :param backup_ids: its backups.
    :param unreadable: manifests that cannot be read, in words. What they list is not known.
    :param entries: path of each object that was asked for -> a file that has it, or ``None`` where backups say different things
        of it; those of the newest backup last.
    """

    name: str
    objects: frozenset[str]
    claims: frozenset[str]
    backup_ids: frozenset[str]
    unreadable: tuple[str, ...]
    entries: Mapping[str, FileEntry | None] = field(default_factory=dict)


#: How many names an error lists at most.
_NAMES = 20


def stream_names(repository: Repository, only: str | None = None) -> tuple[str, ...]:
    """Names of streams that have backups, or objects that no backup lists.

    :param only: a name that somebody gave: it alone.
    :raises NoSuchBackupError: nothing is there of that name.
    """
    names = {*repository.names(), *repository.names_in(OBJECTS)}
    if only is not None and only not in names:
        raise no_backup_of(repository, only)
    return tuple(sorted(names)) if only is None else (only,)


def no_backup_of(repository: Repository, name: str) -> NoSuchBackupError:
    """The error for a name of which a repository has no backup."""
    there = [each for each in repository.names() if each != name]
    more = f" and {len(there) - _NAMES:,} others" if len(there) > _NAMES else ""
    known = f"backups of {', '.join(there[:_NAMES])}{more}" if there else "no backups of any stream"
    return NoSuchBackupError(f"{repository.location} holds no backup of {name}", hint=f"it has {known}")


def objects_there(repository: Repository, name: str) -> dict[str, StoredFile]:
    """The objects of a stream by their path."""
    return repository.whole_files(f"objects/{checked_name(name)}")


@dataclass(frozen=True, slots=True)
class Places:
    """Where the contents of a stream are.

    :param there: paths of the files that are there.
    :param moved: where contents have been moved to.
    :param damaged: paths of objects that are known to be damaged.
    """

    there: Collection[str]
    moved: Moved = _NOTHING_MOVED
    damaged: Collection[str] = ()

    def of(self, path: str) -> str:
        """The place of an object that has to stay: the last one that is there and not known to be damaged."""
        if path not in self.moved.paths:
            return path
        there = [each for each in self.moved.chain(path) if file_of(each) in self.there]
        return next((each for each in reversed(there) if each not in self.damaged), there[-1] if there else path)

    def files_needed(self, objects: Iterable[str]) -> set[str]:
        """The files that hold objects."""
        return {file_of(self.of(path)) for path in objects}

    @classmethod
    def read(cls, repository: Repository, name: str, there: Collection[str], damaged: DamagedObjects) -> Places:
        """Read where contents are; no request if no pack is there, for then nothing was moved.

        Not by the format of the repository: it may have been raised since it was opened.
        """
        has_packs = any(pack_size(path) is not None for path in there)
        moved = read_moved(repository.location, name) if has_packs else _NOTHING_MOVED
        return cls(there, moved, damaged.objects.keys())


def listed_by(
    repository: Repository, name: str, *, without: Collection[str] = (), entries_of: Collection[str] = ()
) -> Listed:
    """Read all manifests of a stream; of each only what is needed is kept.

    :param without: ids of backups that are left out.
    :param entries_of: paths of objects of which it is asked what backups say of them.
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
    entries: dict[str, FileEntry | None] = {}

    def note(entry: FileEntry) -> None:
        before = entries.pop(entry.object, entry)
        same = before is not None and (before.size, before.sha256, before.checksum) == (
            entry.size,
            entry.sha256,
            entry.checksum,
        )
        entries[entry.object] = entry if same else None

    for start in range(0, len(ids), 64):  # so that the manifests of a year are not in memory at once
        for found in in_parallel(read, ids[start : start + 64]):
            if isinstance(found, Manifest):
                for entry in found.files:
                    objects.add(entry.object)
                    if entry.object in entries_of:
                        note(entry)
                claims.add(found.claim)
            elif found is not None:
                unreadable.append(found)
    return Listed(name, frozenset(objects), frozenset(claims), frozenset(ids), tuple(unreadable), entries)
