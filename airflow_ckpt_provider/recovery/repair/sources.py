"""What a repair can take from elsewhere: files that backups of the same history hold, a query id that somebody knows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.content_checks import content_damage, read_content
from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.id_changes import IdChange, id_changes, restores_done
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.unchanged import COMMIT_FILE, is_same_commit, is_same_writing
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.doctor.examination import Examination
from airflow_ckpt_provider.checkpoint.doctor.leftovers import files_beyond
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE, parse_query_id
from airflow_ckpt_provider.errors import DamagedBackupError, RefusedError, StorageError, UnreadableLogError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile
from airflow_ckpt_provider.units import zoned_time

log = logging.getLogger(__name__)

#: A file that is not in the checkpoint, and what reads its content.
Elsewhere = tuple[StoredFile, Callable[[], bytes]]


@dataclass(frozen=True, slots=True)
class Backups:
    """Files of the backups that tell the same history as the checkpoint: those of this run first, of them the newest backup.

    :param entries: path -> each content that it has in backups: its entry, and the id of the newest backup that has it. A
        backup copies what is damaged as well as what is whole, so the newest content need not be the right one.
    :param of_this_run: ids of the backups whose newest batch is the very one that the checkpoint has. The files of others may
        be of a run that was rewound: an exact replay with other code writes the same log entries, and another state.
    :param query_id: the id that the query has in the first of them; ``None``: there is none.
    """

    repository: Repository
    entries: dict[str, list[tuple[FileEntry, str]]]
    of_this_run: frozenset[str] = frozenset()
    query_id: str | None = None

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


def backups_of_same_history(
    repository: Repository, seen: Examination, *, name: str | None, query_id: str | None = None
) -> Backups:
    """Find the backups whose files may be put back into a checkpoint, but for what is known to be damaged.

    A backup of the same query is not enough: after a rewind the same batch can have read other data. Every log entry that both
    have must be the same, byte for byte, and there must be one.

    :param repository: the repository.
    :param seen: the checkpoint.
    :param name: name of the stream; by default all in the repository are read.
    :param query_id: the query's id, where ``metadata`` is lost and somebody knows it.
    """
    known_id = query_id_in(seen) or query_id
    names = repository.names() if name is None else (name,)
    entries: dict[str, list[tuple[FileEntry, str]]] = {}
    damaged = {path for n in names for path in read_damaged(repository.location, n).objects}
    manifests = [repository.read_manifest(n, id_) for n in names for id_ in repository.backup_ids(n)]
    same = []
    for manifest in manifests:
        if known_id in (None, manifest.query_id) and _same_history(repository, manifest, seen):
            same.append(manifest)
        else:
            log.debug("backup %s of %s is of another history", manifest.backup_id, manifest.name)
    restored = _restored(repository, seen)
    of_this_run = frozenset(
        m.backup_id for m in same if (m.backup_id, m.batch_id) in restored or _is_of_this_run(m, seen)
    )
    same.sort(key=lambda m: (m.backup_id in of_this_run, m.backup_id), reverse=True)
    for manifest in same:
        for entry in manifest.files:
            of_path = entries.setdefault(entry.path, [])
            if entry.object not in damaged and all(entry.object != known.object for known, _ in of_path):
                of_path.append((entry, manifest.backup_id))
    found = {path: of_path for path, of_path in entries.items() if of_path}
    return Backups(repository, found, of_this_run, same[0].query_id if same else None)


def id_given_since(query_id: str, place: Location, repository: Repository) -> IdChange | None:
    """The newest reset or rewind that has given a query another id, of which a repository knows or the one beside the checkpoint.

    :param query_id: the id before.
    :param place: the checkpoint.
    :param repository: the repository.
    :return: ``None``: none is known; or the checkpoint was restored too, and which came last only clocks could say.
    """
    try:
        beside = Repository.open_if_there(default_repository(place))
    except RefusedError:  # the checkpoint is a whole bucket: nothing can be beside it
        beside = None
    canonical = place.store.canonical
    known = [each for each in (repository, beside) if each]
    if any(canonical(done.target) == canonical(place.uri) for each in known for done in restores_done(each)):
        return None
    made = {
        change.old: change
        for each in known
        for change in id_changes(each)
        if change.stands and canonical(change.checkpoint) == canonical(place.uri)
    }
    newest = None
    while change := made.pop(newest.new if newest else query_id, None):
        newest = change
    return newest


def _restored(repository: Repository, seen: Examination) -> set[tuple[str, int]]:
    """Backup and batch of each restore of the checkpoint whose commit still is the very file that the restore wrote."""
    place = seen.tree.location
    canonical = place.store.canonical
    found = set()
    for record in repository.records():
        if record.get("kind") != "restore" or canonical(str(record.get("checkpoint"))) != canonical(place.uri):
            continue
        plan = record.get("plan")
        if not isinstance(plan, dict) or type(plan.get("batch_id")) is not int:
            continue
        commit = seen.tree.get(f"{COMMITS}/{plan['batch_id']}")
        if commit is not None and is_same_writing(record.get(COMMIT_FILE), commit, zoned_time(record["at"])):
            found.add((str(plan.get("backup_id")), plan["batch_id"]))
    return found


def _is_of_this_run(manifest: Manifest, seen: Examination) -> bool:
    """Whether a file that the backup's newest batch wrote still is the very file: its commit, or a change of its state."""
    commit = seen.tree.get(f"{COMMITS}/{manifest.batch_id}")
    if commit is not None and is_same_commit(seen.tree.location, manifest, commit):
        return True
    held = {entry.path: entry for entry in manifest.files}
    for _, file in files_beyond(seen.tree, manifest.batch_id):
        # An identity that is made of the content says nothing of who wrote it; a snapshot may be older than the batch.
        if file.identity in (None, file.checksum) or not file.path.endswith((".delta", ".changelog")):
            continue
        if (entry := held.get(file.path)) and (entry.size, entry.identity) == (file.size, file.identity):
            return True
    return False


def _identity(entry: FileEntry) -> str:
    return f"backup:{entry.object}"


def _same_history(repository: Repository, manifest: Manifest, seen: Examination) -> bool:
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


def query_id_in(seen: Examination) -> str | None:
    """The id in the checkpoint's ``metadata``; ``None`` where it is missing or cannot be read."""
    file = seen.tree.get(METADATA_FILE)
    try:
        return parse_query_id(seen.tree.read(file)) if file else None
    except UnreadableLogError:
        return None
