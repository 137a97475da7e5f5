"""What tests of restores have in common."""

from __future__ import annotations

from typing import Any

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.seal import parse_seal
from airflow_ckpt_provider.recovery.restore.apply import RestoreOutcome, apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import repository
from tests.support.checkpoints import Files
from tests.support.stopped import STOPPED


def wanted(place: Location, manifest: Manifest, batch: int | None = None) -> Files:
    """The files that a restore leaves: the batch's, and no others."""
    entries = manifest.files_of(manifest.batch_id if batch is None else batch)
    return {e.path: (place / "backups").read(e.object) for e in sorted(entries, key=lambda e: e.path)}


def restore(place: Location, manifest: Manifest, target: Location | None = None, **options: Any) -> RestoreOutcome:
    plan = plan_restore(repository(place), manifest, target or place / "target", **options)
    return apply_restore(plan, rest=STOPPED, made_by="me", reason="a test")


def loud_seal(target: Location) -> bool:
    """Whether the newest file in ``offsets/`` is a seal, so that no Spark starts."""
    numbers = [b for p in target.walk("offsets") if (b := batch_id_of(p.partition("/")[2])) is not None]
    return bool(numbers) and parse_seal(target.read(f"offsets/{max(numbers)}"), batch_id=max(numbers)) is not None


def module_create(checkpoint: Checkpoint, repo: Repository) -> Any:
    from airflow_ckpt_provider.backup.create import create_backup

    return create_backup(checkpoint, repo)
