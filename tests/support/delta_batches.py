"""Delta tables that tests of recovery write to: two rows of each batch, as Spark commits them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.checkpoints import QUERY_ID


def delta_table(path: Path, batches: range | list[int], *, app_id: str = QUERY_ID) -> Location:
    """A table with some batches; where they do not begin with 0, the first one has all rows up to it."""
    for batch in batches:
        begins_later = batch > 0 and not (path / "_delta_log").exists()
        append(path, batch, app_id=app_id, mode="overwrite" if begins_later else "append")
    return open_location(str(path))


def append(
    path: Path | str,
    batch: int,
    *,
    app_id: str | None = QUERY_ID,
    value: int = 0,
    mode: Literal["append", "overwrite"] = "append",
) -> None:
    rows = pa.table({"batch": [batch, batch], "value": [value, value + 1]})
    transactions = [Transaction(app_id, batch)] if app_id else []
    write_deltalake(str(path), rows, mode=mode, commit_properties=CommitProperties(app_transactions=transactions))


def batches_in(table: Location) -> list[int]:
    return sorted(DeltaTable(table.uri).to_pyarrow_table()["batch"].to_pylist())
