"""Healthy tables and sources that Spark has written, with everything harmless that people do: SAFE.

Those that need no Spark: ``unit/guards/healthy.py``.

``HEALTHY`` and ``HEALTHY_SEED`` change how many and which.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from airflow_ckpt_provider.checkpoint.offsets import SourceOffset
from airflow_ckpt_provider.checkpoint.source_offsets import parse_offset
from airflow_ckpt_provider.guards.delta import DeltaGuard
from airflow_ckpt_provider.guards.iceberg import IcebergGuard
from airflow_ckpt_provider.guards.query import from_checkpoint, guard_query
from airflow_ckpt_provider.guards.registry import GuardedSource, GuardSettings, judge_source
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.checkpoints import compact
from tests.support.delta_history import History
from tests.support.delta_log_files import json_versions, new_commits
from tests.support.delta_tables import delta_checkpoint
from tests.support.healthy_sources import Said
from tests.support.iceberg_history import IcebergHistory, iceberg_host, line_of
from tests.support.streams.spark_host import SparkHost

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(3600)]

_SEED = int(os.environ.get("HEALTHY_SEED", "4711"))
#: What harms no stream that writes to the table, and of that what harms none that reads it.
_BESIDE_A_READER = ("append", "other stream", "property", "constraint", "column", "optimize", "clone", "vacuum")
_BESIDE = (*_BESIDE_A_READER, "merge", "delete", "update", "overwrite", "log clean-up")
_BESIDE_AN_ICEBERG_READER = (
    "append",
    "column",
    "property",
    "partitioning",
    "compaction",
    "manifests",
    "tag",
    "branch",
    "staged",
)
_BESIDE_ICEBERG = (*_BESIDE_AN_ICEBERG_READER, "merge", "delete", "expire")


def delta_sink(host: SparkHost, root: Path, chance: random.Random) -> Said | None:
    """A stream appends, and its newest batch is in the log still."""
    history = History(host, root, chance)
    for _ in range(chance.randint(2, 4)):
        history.run(chance.randint(1, 2))
        history.told += [history.others(*_BESIDE) for _ in range(chance.randint(0, 2))]
    left = [action for _, actions in new_commits(history.out, -1) for action in actions]
    if not any(action.get("txn", {}).get("appId") == history.id_in_table for action in left):
        return None  # UNKNOWN, as the log has nothing of the stream any more
    report = history.plan(history.newest, SinkPolicy.ACCEPT).sink
    return report.verdict, report.reasons, history.told


def delta_source(host: SparkHost, root: Path, chance: random.Random) -> Said:
    """A stream reads, and has read all there was when somebody vacuumed; a column was renamed before."""
    history = History(host, root, chance)
    if chance.random() < 0.5:
        table = f"ALTER TABLE delta.`{history.out}`"
        history.sql(
            f"{table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", f"{table} ADD COLUMNS (old INT)"
        )
        history.sql(f"{table} RENAME COLUMN old TO new")
        history.told.append("renamed")
    history.told += [history.others(*_BESIDE_A_READER) for _ in range(chance.randint(2, 4))]
    history.append()
    read = max(json_versions(history.out)) + 1
    while_down = tuple(name for name in _BESIDE_A_READER if name not in ("vacuum", "optimize"))
    history.told += ["|", *(history.others(*while_down) for _ in range(chance.randint(0, 3)))]
    place = delta_checkpoint(root / "reader", history.out, read, before=read - 1)
    settings = GuardSettings(options={"delta": {"tables": {"0": str(history.out)}}})
    report = guard_query(from_checkpoint(open_location(str(place))), settings, guards=[DeltaGuard(settings)])
    return report.verdict, report.reasons, history.told


def iceberg_sink(host: SparkHost, root: Path, chance: random.Random) -> Said | None:
    """A stream appends, and a snapshot of it is left."""
    history = IcebergHistory(host, root.parent, f"sink{root.name}", chance)
    for _ in range(2):
        history.run(chance.randint(1, 2))
        history.told += [history.others(*_BESIDE_ICEBERG) for _ in range(chance.randint(0, 3))]
    metadata = history.metadata()
    summaries = {int(s["snapshot-id"]): s["summary"] for s in metadata.get("snapshots") or ()}
    if not any("spark.sql.streaming.queryId" in summaries[id_] for id_ in line_of(metadata)):
        return None  # UNKNOWN: by MERGE, or expired
    report = history.plan(history.newest, SinkPolicy.ACCEPT).sink
    if report.verdict is Verdict.UNKNOWN and any(_replaced_every_file(summaries[id_]) for id_ in line_of(metadata)):
        return None  # a DELETE that copies every file looks like INSERT OVERWRITE (docs/sinks.md)
    return report.verdict, report.reasons, history.told


def _replaced_every_file(summary: Mapping[str, str]) -> bool:
    """Somebody else left no data file of before."""
    replaced = summary.get("operation") == "overwrite" and "spark.sql.streaming.queryId" not in summary
    return replaced and summary.get("total-data-files") == summary.get("added-data-files", "0")


def iceberg_source(host: SparkHost, root: Path, chance: random.Random) -> Said:
    """A stream reads; others compact, change columns and partitions, write beside main."""
    history = IcebergHistory(host, root.parent, f"source{root.name}", chance)
    history.append()
    history.told += [history.others(*_BESIDE_AN_ICEBERG_READER) for _ in range(chance.randint(1, 3))]
    at = history.metadata()["current-snapshot-id"]
    history.told += ["|", *(history.others(*_BESIDE_AN_ICEBERG_READER) for _ in range(chance.randint(1, 4)))]
    where = str(history.directory) if history.catalog == "lake" else f"iceberg:{history.table}"
    options = {"table.0": where, **{f"catalog.{key}": value for key, value in history.properties.items()}}
    text = compact({"version": 1, "snapshot_id": at, "position": 1, "scan_all_files": False})
    source = GuardedSource(SourceOffset("0", parse_offset(text)))
    report = judge_source(source, [IcebergGuard(GuardSettings(options={"iceberg": options}))])
    return report.verdict, report.reasons, history.told


MAKERS: tuple[Callable[[SparkHost, Path, random.Random], Said | None], ...] = (
    delta_sink,
    delta_source,
    iceberg_sink,
    iceberg_source,
)


def test_none_on_tables_of_spark(tmp_path: Path) -> None:
    host = iceberg_host(tmp_path)
    print(f"HEALTHY_SEED={_SEED}")
    found, judged = [], 0
    for number in range(int(os.environ.get("HEALTHY", "40"))):
        maker = MAKERS[number % len(MAKERS)]
        said = maker(host, tmp_path / str(number), random.Random(_SEED + number))
        if said is None:
            continue
        judged += 1
        verdict, reasons, told = said
        if verdict is not Verdict.SAFE:
            found.append(f"{number} {maker.__name__}: {verdict.value} {reasons}, after {told}")
            print(found[-1], flush=True)
    host.kill()
    assert found == []
    assert judged >= 20
