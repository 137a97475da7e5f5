"""Whether a new backup could hold anything that the newest one does not.

A batch is committed or it is not: as long as the newest committed batch, its entries in the logs and the query are those that a
backup was taken of, a new one would hold the same position of the same stream. That takes four listings and a few small reads,
however big the checkpoint is; a backup has to list all of it.

The entries can be equal byte for byte although the batch ran again: an exact replay with corrected code writes the same commit
and another state. So the commit has to be the very file that was backed up, by what its store says of each writing: inode, id or
generation, or the time. Where that is the time in whole seconds, and the backup was taken within the second, the files of the
backup are compared with those in the checkpoint.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.closure import Closure
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.poll import list_log
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import DamagedBackupError, NoSuchBackupError
from airflow_ckpt_provider.parallel import in_parallel, side_by_side
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile

log = logging.getLogger(__name__)

_LOGS, _ASKED, COMMIT_FILE = "log_sha256", "restorable_asked", "commit_file"
#: A time in whole seconds distinguishes two writes that are this far apart, also where two clocks are not quite the same.
_RESOLUTION = timedelta(seconds=2)


def position_facts(tree: Tree, newest: Closure, restorable_batches: int) -> dict[str, Any]:
    """What a manifest says of a position, for :func:`unchanged_backup` to know it again.

    :param tree: the checkpoint's files.
    :param newest: the closure of the newest batch.
    :param restorable_batches: how many batches were to be restorable.
    """
    found: dict[str, str] = {}
    for file in filter(None, map(tree.get, _paths(newest.batch_id))):
        with suppress(FileNotFoundError):  # purged since it was listed, and not in hand: it is not known again then
            found[file.path] = _hash(tree.read_once(file))
    return {_LOGS: found, _ASKED: restorable_batches, COMMIT_FILE: written_as(tree.get(f"{COMMITS}/{newest.batch_id}"))}


def unchanged_backup(
    checkpoint: Checkpoint,
    repository: Repository,
    name: str,
    *,
    restorable_batches: int = 1,
    with_sources: bool = False,
) -> Manifest | None:
    """The newest backup of a stream, if nothing was committed since it was taken, and it can do what a new one could.

    ``None`` where a new one has to be taken: something was committed, committed again, rewound or replaced, or that cannot be
    known; there is no backup, or it is known to be damaged, or it is of another place; it was to have fewer restorable batches;
    an earlier version of this package took it. Its objects are not read here: verifying does that.

    :param checkpoint: the checkpoint; its stream may run.
    :param repository: where the backups are.
    :param name: name of the stream.
    :param restorable_batches: how many batches are to be restorable.
    :param with_sources: whether a backup is wanted that says what the live sources were.
    :raises StorageError: reading failed.
    """
    place = checkpoint.location
    ids, committed = side_by_side(lambda: repository.backup_ids(name), lambda: list_log(place, COMMITS))
    # Ids of backups name their batch: where it is another one, nothing more need be asked.
    if not ids or not committed or not ids[-1].endswith(f"-b{max(committed):06d}"):
        return None
    commit = committed[max(committed)]

    def same() -> Manifest | None:
        newest = _read(repository, name, ids[-1])
        if newest is None or newest.batch_id != max(committed) or not _is_of(checkpoint, newest):
            return None
        asked = newest.facts.get(_ASKED)
        if type(asked) is not int or asked < restorable_batches or (with_sources and "sources" not in newest.facts):
            return None
        hashes, is_same = side_by_side(
            lambda: _hashes(place, newest.batch_id), lambda: is_same_commit(place, newest, commit)
        )
        return newest if is_same and hashes == newest.facts.get(_LOGS) else None

    found, damaged = side_by_side(same, lambda: read_damaged(repository.location, name))
    return None if found is None or damaged.of(found) else found


def written_as(commit: StoredFile | None) -> dict[str, str] | None:
    """What a store says of a writing of a commit; ``None``: nothing."""
    said = {}
    if commit and commit.identity:
        said["identity"] = commit.identity
    if commit and commit.modified:
        said["modified"] = commit.modified.isoformat()
    return said or None


def is_same_writing(before: object, commit: StoredFile, seen_at: datetime | None) -> bool | None:
    """Whether a commit is the very file that it was.

    :param before: what :func:`written_as` said of it.
    :param commit: the file that the checkpoint has of that commit now.
    :param seen_at: when that was said, in UTC.
    :return: ``None``: it has the same content, and what the store says may be of another writing within the same second.
    """
    if before is None or before != written_as(commit):
        return False
    if commit.identity is not None and commit.identity != commit.checksum:
        return True
    # An identity that is made of the content is the same for the same content, whenever it was written.
    if commit.modified is None:
        return False
    return True if commit.modified.microsecond or (seen_at and seen_at - commit.modified >= _RESOLUTION) else None


def is_same_commit(place: Location, backup: Manifest, commit: StoredFile) -> bool:
    """Whether the newest commit of a backup was not written again since it was backed up.

    :param place: the checkpoint.
    :param backup: the backup.
    :param commit: the file that the checkpoint has of that commit now.
    :return: ``False`` also where that cannot be known.
    """
    is_same = is_same_writing(backup.facts.get(COMMIT_FILE), commit, backup.pinned_at)
    if is_same is not None:
        return is_same
    there = place.walk()
    files = ((entry, there.get(entry.path)) for entry in backup.files)
    return all(file and file.identity and (file.size, file.identity) == (e.size, e.identity) for e, file in files)


def _read(repository: Repository, name: str, backup_id: str) -> Manifest | None:
    try:
        return repository.read_manifest(name, backup_id, with_files=False)
    except NoSuchBackupError:
        return None  # expired since it was listed
    except DamagedBackupError as e:
        log.warning("%s", e)
        return None


def _is_of(checkpoint: Checkpoint, manifest: Manifest) -> bool:
    canonical = checkpoint.location.store.canonical
    return canonical(manifest.checkpoint) == canonical(checkpoint.location.uri)


def _hashes(place: Location, batch_id: int) -> dict[str, str]:
    def read(path: str) -> bytes | None:
        try:
            return place.read(path)
        except FileNotFoundError:  # it never was there, or was purged since it was listed
            return None

    paths = _paths(batch_id)
    contents = in_parallel(read, paths, workers=len(paths))
    return {path: _hash(data) for path, data in zip(paths, contents, strict=True) if data is not None}


def _paths(batch_id: int) -> tuple[str, ...]:
    return METADATA_FILE, f"{OFFSETS}/{batch_id}", f"{COMMITS}/{batch_id}"


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
