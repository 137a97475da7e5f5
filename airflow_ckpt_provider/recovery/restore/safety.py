"""Before anything is replaced: a safety backup, or a copy set aside of what is too broken to be backed up."""

from __future__ import annotations

import logging

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import SAFETY_SUFFIX, Repository
from airflow_ckpt_provider.change.set_aside import SetAside
from airflow_ckpt_provider.change.target import Target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import (
    BackupRunningError,
    HistoryRewrittenError,
    MissingFileError,
    RefusedError,
    UnreadableLogError,
)

log = logging.getLogger(__name__)


def keep_what_is_there(repository: Repository, target: Target, *, name: str, plan_id: str, made_by: str) -> str:
    """Keep the content of a target that is about to be replaced; return where, as text.

    Asked again for the same plan, it finds what it kept the first time: by then the target may be half replaced.

    :param name: name of the stream that is restored.
    """
    kept = kept_for(repository, name=name, plan_id=plan_id)
    if kept:
        return kept
    if target.is_checkpoint:
        try:
            result = create_backup(
                Checkpoint.at(target.location),
                repository,
                name=name + SAFETY_SUFFIX,
                tags={"plan": plan_id},
                reason=f"safety backup before plan {plan_id}",
                made_by=made_by,
            )
            return f"backup {result.backup_id} of {result.name}"
        except BackupRunningError:
            raise
        except (RefusedError, MissingFileError, UnreadableLogError, HistoryRewrittenError) as e:
            log.info("%s is too broken to be backed up (%s): copying it as it is", target.location, e.message)
    return _set_aside(repository, target, name=name, plan_id=plan_id)


def kept_for(repository: Repository, *, name: str, plan_id: str) -> str | None:
    """Where a plan kept what it replaces, or ``None`` if it has not got so far."""
    aside = SetAside(repository, name, plan_id)
    if aside.sizes is not None:
        return aside.place
    for backup_id in reversed(repository.backup_ids(name + SAFETY_SUFFIX)):
        manifest = repository.read_manifest(name + SAFETY_SUFFIX, backup_id)
        if manifest.tags.get("plan") == plan_id:
            return f"backup {manifest.backup_id} of {manifest.name}"
    return None


def _set_aside(repository: Repository, target: Target, *, name: str, plan_id: str) -> str:
    aside = SetAside(repository, name, plan_id)
    aside.keep(target.location, target.visible.values())
    return aside.place
