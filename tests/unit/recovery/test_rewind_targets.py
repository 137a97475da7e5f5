"""Batches that the backups of a stream can be rewound to."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from airflow_ckpt_provider.backup.manifest import PINNED_AT
from airflow_ckpt_provider.recovery.rewind.targets import targets_of_backups, targets_of_manifest
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import back_up, repository, stream


def test_a_backup_with_a_damaged_manifest_is_left_out(place: Location) -> None:
    """No rewind was possible any more, though the other backups were whole."""
    old, new = (back_up(place, stream(newest)).manifest for newest in (4, 6))
    (place / "backups").replace(old.path, b"{broken")
    found = targets_of_backups(repository(place), "orders", query_ids=None)
    assert [(target.batch_id, target.backup) for target in found] == [(6, new)]


def test_the_newest_batch_had_ended_when_the_position_was_read(place: Location) -> None:
    """Not hours later, when the backup was finished."""
    manifest = back_up(place, stream(4)).manifest
    pinned = manifest.created - timedelta(hours=5)
    [target] = targets_of_manifest(replace(manifest, facts={**manifest.facts, PINNED_AT: pinned.isoformat()}))
    assert target.ended == pinned
