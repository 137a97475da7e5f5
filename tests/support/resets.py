"""What tests of resets have in common."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.recovery.reset.apply import ResetOutcome, apply_reset
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.recovery.undo import UndoOutcome, undo
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.checkpoints import Files, batch_metadata, commit_log, metadata, offsets_log
from tests.support.stopped import STOPPED

NEWEST = 6
#: A shorter one, where every write is a life of its own.
SHORT = 2
KEEP, SCRATCH, RENAME = ResetWay
SEED = "sources/0/0"


def file_sink(path: Path, newest: int) -> Location:
    (path / "_spark_metadata").mkdir(parents=True)
    for batch in range(newest + 1):
        entry = {"path": f"file://{path}/part-{batch}.json", "size": 2, "action": "add"}
        (path / "_spark_metadata" / str(batch)).write_text("v1\n" + json.dumps(entry))
        (path / f"part-{batch}.json").write_text("{}")
    return open_location(str(path))


def repository(orders: Location) -> Repository:
    return Repository.open_or_create(default_repository(orders))


def plan_of(orders: Location, way: ResetWay | None = KEEP, **options: Any) -> ResetPlan:
    options.setdefault("sink", Sink(kind="foreachBatch"))
    return plan_reset(orders, way, **options)


def reset(
    orders: Location,
    way: ResetWay = KEEP,
    *,
    accept: Collection[str] = (),
    held: Repository | None = None,
    **options: Any,
) -> ResetOutcome:
    plan = plan_of(orders, way, **options)
    return apply_reset(plan, orders, held or repository(orders), accept=accept, rest=STOPPED)


def undone(orders: Location, held: Repository | None = None) -> UndoOutcome:
    return undo(orders, held or repository(orders), rest=STOPPED)


def seeded_files(orders: Location) -> list[str]:
    lines = orders.read(SEED).decode().splitlines()
    assert lines[0] == "v1"
    return [json.loads(line)["path"] for line in lines[1:]]


def kafka_and_delta(newest: int = 2, *, index: int = -1) -> Files:
    files = {"metadata": metadata()}
    for batch in range(newest + 1):
        kafka = json.dumps({"orders": {"0": 10 * batch, "1": 5 * batch}})
        delta = json.dumps(
            {
                "sourceVersion": 1,
                "reservoirId": "t",
                "reservoirVersion": batch + 1,
                "index": index,
                "isStartingVersion": False,
            }
        )
        files[f"offsets/{batch}"] = offsets_log(kafka, delta, metadata=batch_metadata(batch))
        files[f"commits/{batch}"] = commit_log()
    return files
