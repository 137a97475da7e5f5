"""Where earlier versions of this package kept what a restore replaced: a backup of its own, or a copy set aside."""

from __future__ import annotations

from airflow_ckpt_provider.backup.repository import SAFETY_SUFFIX, Repository
from airflow_ckpt_provider.change.set_aside import SetAside


def kept_by_earlier_version(repository: Repository, *, name: str, plan_id: str) -> str | None:
    """Where a restore that was begun by an earlier version kept what it replaces; ``None`` where it did not.

    :param repository: the repository.
    :param name: name of the stream that is restored.
    :param plan_id: the plan, as the seal names it.
    """
    aside = SetAside(repository, name, plan_id)
    if aside.sizes is not None:
        return aside.place
    for backup_id in reversed(repository.backup_ids(name + SAFETY_SUFFIX)):
        manifest = repository.read_manifest(name + SAFETY_SUFFIX, backup_id, with_files=False)
        if manifest.tags.get("plan") == plan_id:
            return f"backup {manifest.backup_id} of {manifest.name}"
    return None
