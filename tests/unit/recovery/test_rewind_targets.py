"""Batches that the backups of a stream can be rewound to."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_ckpt_provider.backup.manifest import PINNED_AT
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.recovery.query_ids import read_query_ids
from airflow_ckpt_provider.recovery.rewind.targets import targets_of_backups, targets_of_manifest
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import back_up, repository, stream
from tests.support.watched_stores import watched


def test_a_backup_with_a_damaged_manifest_is_left_out(place: Location) -> None:
    """No rewind was possible any more, though the other backups were whole."""
    old, new = (back_up(place, stream(newest)).manifest for newest in (4, 6))
    (place / "backups").replace(old.path, b"{broken")
    found = targets_of_backups(repository(place), "orders", query_ids=None)
    assert [(target.batch_id, target.backup) for target in found] == [(6, new)]


def test_query_ids_of_backups_that_the_store_does_not_give_out_are_not_passed_over(place: Location) -> None:
    """After one refused read a plan lacked a former query id, and the sink was judged without it."""
    manifest = back_up(place, stream(4)).manifest

    def refuse(operation: str, path: str) -> None:
        if "read" in operation and path.endswith(manifest.path):
            raise StorageError("503 slow down")

    held, _ = watched(place / "backups", refuse)
    with pytest.raises(StorageError, match="503 slow down"):
        read_query_ids(
            "another", place=place / "orders", repository=Repository.open(held), name="orders", becomes=manifest
        )


def test_the_newest_batch_had_ended_when_the_position_was_read(place: Location) -> None:
    """Not hours later, when the backup was finished."""
    manifest = back_up(place, stream(4)).manifest
    pinned = manifest.created - timedelta(hours=5)
    [target] = targets_of_manifest(replace(manifest, facts={**manifest.facts, PINNED_AT: pinned.isoformat()}))
    assert target.ended == pinned
