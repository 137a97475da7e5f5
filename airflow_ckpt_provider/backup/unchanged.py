"""Whether a new backup could hold anything that the newest one does not.

A batch is committed or it is not: as long as the newest committed batch, its entries in the logs and the query are those that a
backup was taken of, a new one would hold the same position of the same stream. That takes three listings and a few small reads,
however big the checkpoint is; a backup has to list all of it.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from typing import Any

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import Verified, verifications
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.transfer import in_parallel, side_by_side
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.closure import Closure
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.poll import list_log
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import DamagedBackupError, NoSuchBackupError
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)

_LOGS, _ASKED = "log_sha256", "restorable_asked"


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
    return {_LOGS: found, _ASKED: restorable_batches}


def unchanged_backup(
    checkpoint: Checkpoint,
    repository: Repository,
    name: str,
    *,
    restorable_batches: int = 1,
    with_sources: bool = False,
) -> Manifest | None:
    """The newest backup of a stream, if nothing was committed since it was taken, and it can do what a new one could.

    ``None`` where a new one has to be taken: something was committed, rewound or replaced; there is no backup, or verifying found
    it damaged, or it is of another place; it was to have fewer restorable batches; an earlier version of this package took it.
    Its objects are not looked at here, and nor is the checkpoint's state: verifying and the doctor do that.

    :param checkpoint: the checkpoint; its stream may run.
    :param repository: where the backups are.
    :param name: name of the stream.
    :param restorable_batches: how many batches are to be restorable.
    :param with_sources: whether a backup is wanted that says what the live sources were.
    :raises StorageError: reading failed.
    """
    place = checkpoint.location
    newest, committed = side_by_side(lambda: _newest(repository, name), lambda: list_log(place, COMMITS))
    if newest is None or newest.batch_id != max(committed, default=None):
        return None
    if not _is_of(checkpoint, newest) or newest.facts.get(_ASKED, 0) < restorable_batches:
        return None
    if with_sources and "sources" not in newest.facts:
        return None
    hashes, verified = side_by_side(
        lambda: _hashes(place, newest.batch_id),
        lambda: verifications(repository, name, backup_id=newest.backup_id).get(newest.backup_id),
    )
    return newest if hashes == newest.facts.get(_LOGS) and verified is not Verified.DAMAGED else None


def _newest(repository: Repository, name: str) -> Manifest | None:
    ids = repository.backup_ids(name)
    if not ids:
        return None
    try:
        return repository.read_manifest(name, ids[-1], with_files=False)
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
