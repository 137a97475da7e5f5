"""A stream whose query id was changed: what a later rewind past the change does to the Delta table."""

from __future__ import annotations

from pathlib import Path

from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.reset.plan import ResetWay
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from tests.unit.backup.backups import stream
from tests.unit.checkpoint.builders import plant
from tests.unit.recovery.test_rewind import append, batches_in, delta_table, repository, rewind


def new_query_id(orders: Location, table: Location) -> str:
    sink = Sink(place=table)
    plan = plan_reset(orders, ResetWay.NEW_QUERY_ID, sink=sink)
    apply_reset(plan, orders, repository(orders), accept=plan.verdict, quiet_for=0)
    assert plan.new_query_id
    return plan.new_query_id


def test_rewind_past_an_id_change(place: Location, tmp_path: Path) -> None:
    orders = plant(place / "orders", stream(4))
    table = delta_table(tmp_path / "table", range(5))
    newer = new_query_id(orders, table)
    plant(orders, {p: d for p, d in stream(6).items() if p != "metadata"})
    for batch in (5, 6):
        append(table.uri, batch, app_id=newer)
    rewind(orders, "to_batch", 2, table=table)
    assert batches_in(table) == [0, 0, 1, 1, 2, 2]
