"""What the old code left when it was drained, and whether anybody has continued the checkpoint since.

The new code may run although ``release`` did not let it: somebody lifts the seal by hand, or marks a task as successful, or a
note is lost. Only what was noted before, or the backup of the drained checkpoint, then shows what the new code has written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.poll import Logs, list_logs
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import NoSuchBackupError
from airflow_ckpt_provider.upgrade.record import Event, Upgrade


@dataclass(frozen=True, slots=True)
class Drained:
    """What a way back restores.

    :param batch_id: the newest committed batch of the old code.
    :param backup_id: the backup of the drained checkpoint.
    """

    batch_id: int
    backup_id: str


def drained_of(repository: Repository, upgrade: Upgrade) -> Drained | None:
    """The drained batch of an upgrade and its backup, as ``release`` noted them; else the newest backup with its tags.

    :return: ``None``: nobody has noted it, and there is no backup of the drained checkpoint.
    :raises DamagedBackupError: that backup cannot be read.
    """
    if upgrade.has(Event.RELEASED):
        batch_id, backup_id = (upgrade.fact(Event.RELEASED, key) for key in ("batch_id", "backup_id"))
        return Drained(int(batch_id), str(backup_id))
    manifest = _tagged(repository, upgrade)
    return Drained(manifest.batch_id, manifest.backup_id) if manifest else None


def tags_of(upgrade_id: str) -> dict[str, str]:
    """The tags of the backup of the drained checkpoint.

    :param upgrade_id: the run that upgrades; a template of it as well.
    """
    return {"upgrade": upgrade_id, "drained": "true"}


def _tagged(repository: Repository, upgrade: Upgrade) -> Manifest | None:
    begun = datetime.fromisoformat(str(upgrade.fact(Event.BEGUN, "at")))
    for backup_id in reversed(repository.backup_ids(upgrade.name)):
        try:
            manifest = repository.read_manifest(upgrade.name, backup_id, with_files=False)
        except NoSuchBackupError:  # removed since it was listed
            continue
        if manifest.created < begun:
            return None
        if tags_of(upgrade.upgrade_id).items() <= manifest.tags.items():
            return manifest
    return None


def facts_of_seal(checkpoint: Checkpoint, mark: Seal) -> dict[str, Any]:
    """What the record keeps of the seal on the way forward: no batch of the old code has its number or a higher one.

    :param mark: the seal.
    """
    return {"batch_id": mark.batch_id, "last_commit": _newest_commit(list_logs(checkpoint.location))}


def _newest_commit(logs: Logs) -> Mapping[str, Any] | None:
    newest = logs.latest_committed
    modified = None if newest is None else logs.commits[newest].modified
    return {"batch_id": newest, "at": modified.isoformat()} if modified else None


def has_continued(checkpoint: Checkpoint, upgrade: Upgrade, drained: Drained | None) -> bool | None:
    """Whether somebody has continued the checkpoint since it was drained.

    :param drained: what the old code left, as far as it is known.
    :return: ``None``: UNKNOWN. The record does not have the number of the seal, and there is no backup.
    """
    logs = list_logs(checkpoint.location)
    committed = -1 if logs.latest_committed is None else logs.latest_committed
    begun = checkpoint.progress().latest_begun
    newest = -1 if begun is None else begun
    seal, commit = (upgrade.fact(Event.SEALED, key) for key in ("batch_id", "last_commit"))
    if seal is None:
        return None if drained is None else newest != drained.batch_id or committed != drained.batch_id
    if newest >= int(seal) or (drained is not None and committed != drained.batch_id):
        return True
    if commit is None or committed > int(commit["batch_id"]):
        return False  # the old code ended the batch in which it met the seal
    # The commit itself: a new checkpoint at the place has its numbers again.
    return bool(_newest_commit(logs) != commit)
