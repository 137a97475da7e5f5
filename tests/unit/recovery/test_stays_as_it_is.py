"""Plans that keep the logs of a checkpoint ask what Spark does with them: ``to_current``, and a new query id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import back_up, repository, stream
from tests.support.checkpoints import plant
from tests.support.delta_batches import batches_in, delta_table
from tests.support.stopped import STOPPED

SKIPS = r"the checkpoint cannot stay as it is \(WILL_SKIP\): batch 4 is the newest commit, 6 the newest logged"


@pytest.fixture
def skipping(place: Location) -> Location:
    """Two commits were deleted: Spark runs batch 6 again and never 5."""
    orders = plant(place / "orders", stream(6))
    for batch in (5, 6):
        orders.delete(f"commits/{batch}")
    return orders


@pytest.mark.parametrize("policy", [None, SinkPolicy.ROLLBACK, SinkPolicy.ACCEPT])
@pytest.mark.parametrize("held", [4, 6])
def test_a_batch_would_be_skipped(skipping: Location, tmp_path: Path, held: int, policy: SinkPolicy | None) -> None:
    sink = Sink(place=delta_table(tmp_path / "table", range(held + 1)))
    with pytest.raises(RefusedError, match=SKIPS) as refused:
        plan_rewind(Checkpoint.at(skipping), Specifier("to_current"), sink=sink, sink_exit=policy, guards=())
    assert "to_latest / --to-latest" in (refused.value.hint or "")


def test_the_way_that_the_refusal_names(skipping: Location, place: Location, tmp_path: Path) -> None:
    table = delta_table(tmp_path / "table", range(7))
    how = {"sink": Sink(place=table), "sink_exit": SinkPolicy.ROLLBACK, "guards": ()}
    plan = plan_rewind(Checkpoint.at(skipping), Specifier("to_latest"), **how)
    apply_rewind(plan, Checkpoint.at(skipping), repository(place), sink=how["sink"], rest=STOPPED)
    assert batches_in(table) == [batch for batch in range(5) for _ in range(2)]
    assert Checkpoint.at(skipping).resume_point().batch_id == 5
    assert plan_rewind(Checkpoint.at(skipping), Specifier("to_current"), **how).verdict is Verdict.SAFE


def test_only_a_backup_has_the_batch(place: Location) -> None:
    back_up(place, stream(6))
    orders = place / "orders"
    assert plan_of(orders, place).already_done
    orders.delete("commits/6")
    assert plan_of(orders, place).batch_id == 5  # planned and not committed: it runs again
    plant(orders, {"commits/6": stream(6)["commits/6"]})
    orders.delete("offsets/6")
    with pytest.raises(RefusedError, match=r"its batch 6 is not whole .*; a backup has it") as refused:
        plan_of(orders, place)
    assert "doctor" in (refused.value.hint or "")


def plan_of(orders: Location, place: Location) -> RewindPlan:
    return plan_rewind(Checkpoint.at(orders), Specifier("to_current"), repository=place / "backups", guards=())


@pytest.mark.parametrize(
    ("kind", "policy", "why"),
    [
        ("to_current", SinkPolicy.ROLLBACK, "to_current leaves the checkpoint, and backup .* replaces it"),
        ("to_current", None, "to_current leaves the checkpoint, and backup .* replaces it"),
        ("to_latest", SinkPolicy.FORWARD, "forward moves it to where the sink is, and backup .* replaces it"),
    ],
)
def test_with_a_backup(place: Location, tmp_path: Path, kind: str, policy: SinkPolicy | None, why: str) -> None:
    manifest = back_up(place, stream(3)).manifest
    orders = plant(place / "orders", stream(6))
    sink = Sink(place=delta_table(tmp_path / "table", range(7)))
    with pytest.raises(RefusedError, match=why):
        plan_rewind(
            Checkpoint.at(orders),
            Specifier(kind),
            sink=sink,
            sink_exit=policy,
            repository=place / "backups",
            backup=manifest.backup_id,
            guards=(),
        )


@pytest.mark.parametrize(
    ("directory", "held", "why"),
    [("commits", 4, r"after batch 4 \(WILL_SKIP\)"), ("offsets", 6, r"after batch 6 \(WILL_DUPLICATE\)")],
)
def test_a_new_query_id(place: Location, tmp_path: Path, directory: str, held: int, why: str) -> None:
    orders = plant(place / "orders", stream(6))
    sink = Sink(place=delta_table(tmp_path / "table", range(held + 1)))
    assert plan_reset(orders, ResetWay.NEW_QUERY_ID, sink=sink).new_query_id
    for batch in (5, 6):
        orders.delete(f"{directory}/{batch}")
    with pytest.raises(RefusedError, match=rf"does not continue {why}"):
        plan_reset(orders, ResetWay.NEW_QUERY_ID, sink=sink)


def test_a_rewind_sees_at_its_end_what_the_start_would_do(place: Location) -> None:
    """Whatever a plan leaves out: the seal is not lifted from a checkpoint that would skip a batch."""
    orders = plant(place / "orders", stream(6))
    plan = plan_rewind(Checkpoint.at(orders), Specifier("to_batch", "3"), guards=())
    plan = replace(plan, deletes=tuple(path for path in plan.deletes if path != "offsets/6"))
    with pytest.raises(StorageError, match=r"does not continue after batch 3 \(WILL_SKIP\)"):
        apply_rewind(plan, Checkpoint.at(orders), repository(place), rest=STOPPED, accept=["sink_unknown"])
    assert Checkpoint.at(orders).progress().seal
