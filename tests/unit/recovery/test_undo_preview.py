"""Whether a rewind could be taken back is said in its plan; each word is held against an undo that is carried out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.set_aside import default_repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifiers import Specifier
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.report import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.stopped import STOPPED
from tests.unit.backup.backups import stream
from tests.unit.checkpoint.builders import contents, plant
from tests.unit.operators.test_upgrade_begin import FEATURES, PROTOCOL, edit_first, file_sink
from tests.unit.recovery.tables import delta_table
from tests.unit.recovery.test_rewind import NEWEST

STARTED = "only until the stream is started: then rewind again instead"


@pytest.fixture
def orders(tmp_path: Path) -> Location:
    return plant(open_location(str(tmp_path / "orders")), stream(NEWEST))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return Path(delta_table(tmp_path / "table", range(NEWEST + 1)).uri)


def planned(
    orders: Location, sink: Sink, policy: SinkPolicy | None = SinkPolicy.ROLLBACK, batch: int = 4
) -> RewindPlan:
    return plan_rewind(Checkpoint.at(orders), Specifier("to_batch", str(batch)), sink=sink, sink_exit=policy, guards=())


def undo_of(plan: RewindPlan) -> tuple[bool, list[str]]:
    assert plan.undo
    return plan.undo["possible"], plan.undo["reasons"]


def carried_out_and_back(orders: Location, plan: RewindPlan, sink: Sink) -> None:
    before = contents(orders)
    repository = Repository.open_or_create(default_repository(orders))
    apply_rewind(plan, Checkpoint.at(orders), repository, sink=sink, rest=STOPPED)
    undo(orders, repository, sink=sink, rest=STOPPED)
    assert contents(orders) == before


def test_a_table(orders: Location, table: Path) -> None:
    sink = Sink(place=open_location(str(table)))
    plan = planned(orders, sink)
    assert undo_of(plan) == (True, [STARTED, "nobody may write into the table before"])
    assert f"| undo | possible: {STARTED}; " in plan.to_markdown()
    rows = DeltaTable(str(table)).to_pyarrow_table().num_rows
    carried_out_and_back(orders, plan, sink)
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == rows


def test_a_file_sink(orders: Location, tmp_path: Path) -> None:
    sink = Sink(place=open_location(str(file_sink(tmp_path / "out", NEWEST))))
    plan = planned(orders, sink)
    possible, reasons = undo_of(plan)
    assert possible
    assert reasons[1].startswith("4 files of the sink are set aside in the repository")
    carried_out_and_back(orders, plan, sink)
    assert len([*(tmp_path / "out").glob("part-*")]) == NEWEST + 1


def test_only_spark_brings_it_forward(orders: Location, table: Path) -> None:
    edit_first(table, lambda text: text.replace(PROTOCOL, FEATURES))
    place = open_location(str(table))
    plan = planned(orders, Sink(place=place))
    assert undo_of(plan) == (
        False,
        [f"{table} has the feature deletionVectors: only Spark brings it forward again, and no Spark is named"],
    )
    assert "| undo | **not possible**: " in plan.to_markdown()
    possible, reasons = undo_of(planned(orders, Sink(place=place, by_spark=lambda target, expected: None)))
    assert possible
    assert "name it as for the rewind" in reasons[-1]


def test_files_that_a_vacuum_deletes_at_once(orders: Location, table: Path) -> None:
    retention = '"configuration":{"delta.deletedFileRetentionDuration":"interval 0 hours"}'
    edit_first(table, lambda text: text.replace('"configuration":{}', retention))
    possible, reasons = undo_of(planned(orders, Sink(place=open_location(str(table)))))
    assert possible
    assert reasons[-1].startswith("a VACUUM deletes files interval 0 hours after they left the table")


def test_rows_that_stay(orders: Location) -> None:
    sink = Sink(kind="foreachBatch")
    plan = planned(orders, sink, SinkPolicy.ACCEPT)
    assert undo_of(plan) == (True, [STARTED])
    carried_out_and_back(orders, plan, sink)


def test_nothing_to_take_back(orders: Location) -> None:
    assert undo_of(planned(orders, Sink(kind="kafka"), SinkPolicy.ACCEPT, NEWEST)) == (
        True,
        ["there is nothing to take back"],
    )


def test_it_is_kept_with_the_plan_and_older_plans_are_read(orders: Location, table: Path) -> None:
    plan = planned(orders, Sink(place=open_location(str(table))))
    document: dict[str, Any] = json.loads(json.dumps(plan.document()))
    assert RewindPlan.of_document(document).undo == plan.undo
    del document["undo"]
    assert RewindPlan.of_document(document).undo is None
