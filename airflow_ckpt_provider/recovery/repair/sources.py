"""What a repair can take from elsewhere: files that backups of the same history hold, a query id that somebody knows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from airflow_ckpt_provider.backup.content_checks import content_damage, read_content
from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.doctor.examination import Examination
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE, parse_query_id
from airflow_ckpt_provider.errors import DamagedBackupError, StorageError, UnreadableLogError
from airflow_ckpt_provider.storage.store import StoredFile

log = logging.getLogger(__name__)

#: A file that is not in the checkpoint, and what reads its content.
Elsewhere = tuple[StoredFile, Callable[[], bytes]]


@dataclass(frozen=True, slots=True)
class Backups:
    """Files of the backups that tell the same history as the checkpoint, the newest backup first.

    :param entries: path -> each content that it has in backups: its entry, and the id of the newest backup that has it. A
        backup copies what is damaged as well as what is whole, so the newest content need not be the right one.
    """

    repository: Repository
    entries: dict[str, list[tuple[FileEntry, str]]]

    def files(self) -> list[Elsewhere]:
        """All of them, each with what reads it."""
        return [
            (StoredFile(path, entry.size, identity=_identity(entry)), partial(self.read, entry))
            for path, entries in self.entries.items()
            for entry, _ in entries
        ]

    def entry(self, file: StoredFile) -> tuple[FileEntry, str] | None:
        """The entry that one of :meth:`files` was made of, and the id of its backup."""
        of_path = self.entries.get(file.path, ())
        return next((found for found in of_path if _identity(found[0]) == file.identity), None)

    def read(self, entry: FileEntry) -> bytes:
        """Content of a file.

        :raises StorageError: it is not what was backed up.
        """
        try:
            return read_content(self.repository, entry)
        except DamagedBackupError as e:
            raise StorageError(e.findings[0], hint="repair without this repository, or from another one") from e


def backups_of_same_history(repository: Repository, seen: Examination, *, name: str | None) -> Backups:
    """Find the backups whose files may be put back into a checkpoint, but for what is known to be damaged.

    A backup of the same query is not enough: after a rewind the same batch can have read other data. Every log entry that both
    have must be the same, byte for byte, and there must be one.

    :param repository: the repository.
    :param seen: the checkpoint.
    :param name: name of the stream; by default all in the repository are read.
    """
    names = repository.names() if name is None else (name,)
    entries: dict[str, list[tuple[FileEntry, str]]] = {}
    damaged = {path for n in names for path in read_damaged(repository.location, n).objects}
    manifests = [repository.read_manifest(n, id_) for n in names for id_ in repository.backup_ids(n)]
    for manifest in sorted(manifests, key=lambda m: m.backup_id, reverse=True):
        if _same_history(repository, manifest, seen):
            for entry in manifest.files:
                of_path = entries.setdefault(entry.path, [])
                if entry.object not in damaged and all(entry.object != known.object for known, _ in of_path):
                    of_path.append((entry, manifest.backup_id))
        else:
            log.debug("backup %s of %s is of another history", manifest.backup_id, manifest.name)
    return Backups(repository, {path: found for path, found in entries.items() if found})


def _identity(entry: FileEntry) -> str:
    return f"backup:{entry.object}"


def _same_history(repository: Repository, manifest: Manifest, seen: Examination) -> bool:
    query_id = _query_id(seen)
    if query_id is not None and query_id != manifest.query_id:
        return False
    common = [
        (entry, file)
        for entry in manifest.files
        if entry.path.startswith((f"{OFFSETS}/", f"{COMMITS}/"))
        and entry.path not in seen.unreadable
        and (file := seen.tree.get(entry.path)) is not None
        and (seen.seal is None or entry.path != seen.seal.path)
    ]

    def is_same(entry: FileEntry, file: StoredFile) -> bool:
        content = seen.tree.read(file)
        if not entry.is_computable:
            return content == repository.location.read(entry.object)
        return content_damage(entry, content) is None

    return bool(common) and all(is_same(entry, file) for entry, file in common)


def _query_id(seen: Examination) -> str | None:
    file = seen.tree.get(METADATA_FILE)
    try:
        return parse_query_id(seen.tree.read(file)) if file else None
    except UnreadableLogError:
        return None
