"""A Delta table, a checkpoint that reads it, and what the guard says of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.guards.delta import DeltaGuard
from airflow_ckpt_provider.guards.query import from_checkpoint, guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.guards.report import SourceReport
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.delta_tables import new_table


def judge(checkpoint: Path, table: Path | None, **settings: Any) -> SourceReport:
    options: dict[str, Any] = {"options": {"0": settings.pop("reader", {})}}
    if table is not None:
        options["tables"] = {"0": str(table)}
    told = GuardSettings(options={"delta": options}, **settings)
    return guard_query(from_checkpoint(open_location(str(checkpoint))), told, guards=[DeltaGuard(told)]).sources[0]


def commit(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


def clean(table: Path, below: int) -> None:
    """What log clean-up does: a checkpoint, and the commits before it gone."""
    DeltaTable(table).create_checkpoint()
    for version in range(below):
        commit(table, version).unlink()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return new_table(tmp_path / "table", 4)


@pytest.fixture
def ck(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def feed(table: Path, value: str) -> None:
    properties = {"delta.enableChangeDataFeed": value}
    DeltaTable(table).alter.set_table_properties(properties, raise_if_not_exists=False)
