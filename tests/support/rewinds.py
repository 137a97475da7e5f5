"""Rewinds of sample checkpoints."""

from __future__ import annotations

from typing import Any

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.rewind.apply import RewindOutcome, apply_rewind
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import stream
from tests.support.checkpoints import Files
from tests.support.stopped import STOPPED

NEWEST = 6


def rewound(files: Files, batch: int) -> set[str]:
    """What of a stream is left: batch + 1 is planned already and runs again; RocksDB's own tables do no harm."""
    planned = {f"offsets/{batch + 1}", f"sources/0/{batch + 1}"}
    return {*stream(batch), *planned, *(path for path in files if "/SSTs/" in path)}


def repository(orders: Location) -> Repository:
    return Repository.open_or_create(default_repository(orders))


def rewind(
    orders: Location, kind: str, value: object = "", *, table: Location | None = None, **options: Any
) -> RewindOutcome:
    sink = Sink(place=table) if table else Sink(kind="foreachBatch")
    options.setdefault("sink_exit", SinkPolicy.ROLLBACK if table else SinkPolicy.ACCEPT)
    options.setdefault("guards", ())  # its input files are not real
    plan = plan_rewind(Checkpoint.at(orders), Specifier(kind, str(value)), sink=sink, **options)
    return apply_rewind(plan, Checkpoint.at(orders), repository(orders), sink=sink, rest=STOPPED)
