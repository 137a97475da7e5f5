"""Restores of a Delta table that are not what their commit says, or that write no row of the batch they remember."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

from airflow_ckpt_provider.sinks.delta import inspect_delta
from airflow_ckpt_provider.sinks.delta_history import read_table_history
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.checkpoints import QUERY_ID
from tests.support.delta_batches import append, batches_in, delta_table


@pytest.mark.parametrize("cut", [False, True])
def test_a_version_whose_first_commits_are_gone(cut: bool, tmp_path: Path) -> None:
    """delta-rs restores it all the same, with the files that the commits that are left name; Spark refuses."""
    table = delta_table(tmp_path / "table", range(6))
    append(tmp_path / "table", 100, app_id=None)
    DeltaTable(table.uri).restore(5)  # which writes the schema into a commit that is left
    append(tmp_path / "table", 6)
    if cut:
        DeltaTable(table.uri).create_checkpoint()
        for version in (0, 1):
            table.delete(f"_delta_log/{version:020}.json")
    DeltaTable(table.uri).restore(7)
    assert set(batches_in(table)) == set(range(2 if cut else 0, 6))
    append(tmp_path / "table", 6)
    found = look(table, 6)
    assert found.verdict is (Verdict.UNKNOWN if cut else Verdict.SAFE)
    assert not cut or "restored to a version that its log does not have" in found.reasons[0]


@pytest.mark.parametrize("app_id", ["app", QUERY_ID])
def test_a_rollback_to_a_batch_without_rows(app_id: str, tmp_path: Path) -> None:
    """``foreachBatch`` commits none of it. The rollback has the table remember it, which shows no rows of it."""
    table = delta_table(tmp_path / "table", [0, 1, 2, 4, 5], app_id=app_id)
    own = CommitProperties(app_transactions=[Transaction(app_id, 3)], custom_metadata={"airflowCkptPlan": "a1b2c3d4"})
    DeltaTable(table.uri).restore(2, commit_properties=own)
    for batch in (4, 5):
        append(tmp_path / "table", batch, app_id=app_id)
    found = look(table, 5, app_id)
    # Delta's own sink commits every batch: a batch of it that is not there is missing.
    assert found.verdict is (Verdict.SAFE if app_id == "app" else Verdict.UNKNOWN), found.reasons


def look(table: Location, batch: int, app_id: str = QUERY_ID) -> SinkReport:
    ids = QueryIds.of(QUERY_ID, app_id=None if app_id == QUERY_ID else app_id)
    return inspect_delta(read_table_history(table), ids, batch)
