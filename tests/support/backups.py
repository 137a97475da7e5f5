"""A stream and its backups, for tests that need some."""

from __future__ import annotations

import functools
import json
import subprocess
from typing import Any

from airflow_ckpt_provider.backup.create import BackupResult, create_backup
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import Files, contents, plant, rocksdb_aggregation


def stream(newest: int = 4, *, partitions: int = 2) -> Files:
    """An aggregation in RocksDB with changelog, a snapshot at version 3, batches 0 to ``newest`` committed."""
    return rocksdb_aggregation(newest, partitions=partitions)


def repository(place: Location) -> Repository:
    return Repository.open_or_create(place / "backups")


def back_up(place: Location, files: Files | None = None, **options: Any) -> BackupResult:
    """Back up ``place/orders`` into ``place/backups``."""
    checkpoint = place / "orders"
    if files is not None:
        plant(checkpoint, files)
    return create_backup(Checkpoint.at(checkpoint), repository(place), **options)


def files_in(manifest: Manifest, place: Location) -> Files:
    """What a backup holds, by the path in the checkpoint."""
    return {entry.path: (place / "backups").read(entry.object) for entry in manifest.files}


def entry_of(manifest: Manifest, path: str) -> FileEntry:
    return next(entry for entry in manifest.files if entry.path == path)


def visible(place: Location) -> Files:
    """The files of a checkpoint that Spark sees."""
    return {path: data for path, data in contents(place).items() if "/." not in f"/{path}"}


@functools.cache
def dead_pid() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def bury(place: Location) -> None:
    """Make the process that holds a lease a dead one: in these tests it is our own, which lives on."""
    backups = place / "backups"
    for path in backups.walk("running"):
        held = json.loads(backups.read(path))
        backups.replace(path, json.dumps({**held, "pid": dead_pid()}).encode())


def closure_of(files: Files, place: Location, batch_id: int) -> Files:
    """What a checkpoint of these files needs for a batch, resolved where nothing moves."""
    still = plant(place / "still" / str(batch_id), files)
    return {file.path: files[file.path] for file in Checkpoint.at(still).closure(batch_id).files}
