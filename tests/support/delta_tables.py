"""Small Delta tables, written by delta-rs, and checkpoints of streams that read them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from airflow_ckpt_provider.storage.opening import open_location
from tests.support.checkpoints import batch_metadata, commit_log, compact, metadata, offsets_log, plant

#: Rows in each version of :func:`new_table`.
ROWS = 10


def new_table(place: Path, versions: int, *, configuration: dict[str, str] | None = None) -> Path:
    """A table of so many versions, each of which appends ten rows in one file."""
    for version in range(versions):
        more: dict[str, Any] = {"configuration": configuration} if version == 0 and configuration else {}
        write_deltalake(place, rows(version), mode="append", **more)
    return place


def rows(version: int) -> pa.Table:
    return pa.table({"id": pa.array(range(version * ROWS, version * ROWS + ROWS), pa.int64())})


def id_of(table: Path) -> str:
    return str(DeltaTable(table).metadata().id)


def offset(table_id: str, version: int, index: int = -1, *, initial: bool = False) -> str:
    value = {"sourceVersion": 1, "reservoirId": table_id, "reservoirVersion": version, "index": index}
    return compact({**value, "isStartingVersion": initial})


def delta_checkpoint(
    place: Path,
    table: Path,
    version: int,
    index: int = -1,
    *,
    before: int | None = 1,
    initial: bool = False,
    files: tuple[Path, ...] = (),
) -> Path:
    """A stream that has read a table up to a version, in two batches, and files in its second source if there are any.

    :param before: the version it had read up to in the first of them; ``None``: there was one batch only.
    :param files: the first two are read, the others planned and not committed.
    """
    table_id = id_of(table)
    ends = [offset(table_id, before)] if before is not None else []
    ends.append(offset(table_id, version, index, initial=initial))
    content = {"metadata": metadata()}
    for batch, end in enumerate(ends):
        second = [compact({"logOffset": batch})] if files else []
        content[f"offsets/{batch}"] = offsets_log(end, *second, metadata=fresh(batch))
        content[f"commits/{batch}"] = commit_log()
    for log_id, file in enumerate(files):
        stamp = int(file.stat().st_mtime * 1000)
        line = json.dumps({"path": file.as_uri(), "timestamp": stamp, "batchId": log_id})
        content[f"sources/1/{log_id}"] = f"v1\n{line}".encode()
    plant(open_location(str(place)), content)
    return place


def fresh(batch: int) -> dict[str, Any]:
    """Batch metadata of a batch that was planned long after any table was written."""
    return {**batch_metadata(batch), "batchTimestampMs": 4_000_000_000_000 + batch}


def put(place: Path, *ids: int) -> tuple[Path, ...]:
    """Input files with times a second apart."""
    place.mkdir(parents=True, exist_ok=True)
    made = []
    for i in ids:
        file = place / f"f {i}.json"
        file.write_text(json.dumps({"id": i}) + "\n")
        os.utime(file, (1704067200 + i,) * 2)
        made.append(file)
    return tuple(made)
