"""How far a query may have written: an earlier change has set its checkpoint back, and the rows are in the sink all the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.manifest import Manifest, batch_in_id
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.chains.stream import ChainStream, read_stream
from airflow_ckpt_provider.recovery.flows.flow import flow_named, flows_of
from airflow_ckpt_provider.recovery.flows.reset import apply_flow_reset, plan_flow_reset
from airflow_ckpt_provider.recovery.flows.restore import apply_flow_restore, plan_flow_restore
from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.plan import RestorePlan
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.restore.sink import sink_says
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.samples.archives import sample
from tests.support.backups import repository
from tests.support.checkpoints import logs, metadata, plant
from tests.support.flows import stateless
from tests.support.replaced_queries import OTHER, begin
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.watched_stores import watched

SINK = Sink(kind="foreachBatch")
DOUBLED = "foreachBatch keeps no memory of batches: the rows of {} are written again"


class Stream:
    """A stream without state that ran to batch 20, with backups of batches 5, 10 and 20.

    :param place: holds its checkpoint and its repository.
    """

    def __init__(self, place: Location) -> None:
        self.place, self.orders = place, place / "orders"
        self.held = repository(place)
        self.backups = {newest: self.back_up(newest) for newest in (5, 10, 20)}

    def back_up(self, newest: int) -> Manifest:
        plant(self.orders, logs(range(newest + 1)))
        return create_backup(Checkpoint.at(self.orders), self.held).manifest

    def restore(self, batch: int, target: Location | None = None) -> RestorePlan:
        manifest, target = self.backups[batch], target or self.orders
        sink = sink_says(SINK, manifest, target, repository=self.held)
        return plan_restore(self.held, manifest, target, replace=True, sink=sink)

    def restored(self, batch: int) -> None:
        apply_restore(self.restore(batch), accept=ACCEPTED, rest=STOPPED)

    def rewind(self, to: str, value: str = "", **options: Any) -> RewindPlan:
        options = {"repository": self.held.location, **options}
        return plan_rewind(Checkpoint.at(self.orders), Specifier(to, value), sink=SINK, guards=(), **options)

    def rewound(self, batch: int, **options: Any) -> None:
        plan = self.rewind("to_batch", str(batch), **options)
        held = Repository.open_or_create(
            options.get("repository", self.held.location) or default_repository(self.orders)
        )
        apply_rewind(plan, Checkpoint.at(self.orders), held, sink=SINK, accept=ACCEPTED, rest=STOPPED)

    def reset(self, way: ResetWay = ResetWay.KEEP_POSITION) -> ResetPlan:
        return plan_reset(self.orders, way, sink=SINK, repository=self.held.location)

    def has_been_reset(self, way: ResetWay = ResetWay.KEEP_POSITION) -> None:
        apply_reset(self.reset(way), self.orders, self.held, accept=ACCEPTED, rest=STOPPED)

    def runs_as(self, query_id: str, newest: int) -> None:
        plant(self.orders, {**logs(range(newest + 1)), "metadata": metadata(query_id)})


@pytest.fixture
def made(place: Location) -> Stream:
    return Stream(place)


def says(plan: RestorePlan | RewindPlan | ResetPlan, batches: str) -> None:
    """The plan says that the rows of these batches are doubled."""
    assert plan.verdict in (Verdict.WILL_DUPLICATE, Verdict.UNKNOWN)
    assert "sink_duplicates" in {risk.word for risk in plan.risks}
    assert any(DOUBLED.format(batches) in reason for reason in plan.reasons), plan.reasons


def sink_is_safe(made: Stream) -> None:
    """Nothing of it is doubled by a rewind to the newest batch, or by a reset."""
    assert made.rewind("to_latest").sink_verdict is Verdict.SAFE
    assert made.reset().cutover.verdict is Verdict.SAFE


class TestSetBack:
    def test_nothing_was_changed(self, made: Stream) -> None:
        assert made.restore(20).verdict is Verdict.SAFE
        sink_is_safe(made)

    def test_after_a_restore(self, made: Stream) -> None:
        made.restored(5)
        says(made.restore(10), "batches 11 to 20")
        assert made.restore(5).already_done
        says(made.rewind("to_batch", "10"), "batches 11 to 20")
        says(made.rewind("to_latest"), "batches 6 to 20")
        assert made.reset().cutover.verdict is Verdict.WILL_DUPLICATE
        assert made.reset().cutover.doubled == {"batches": 15}

    @pytest.mark.parametrize("beside", [True, False])
    def test_after_a_rewind_which_no_backup_shows(self, made: Stream, beside: bool) -> None:
        plant(made.orders, logs(range(24)))
        made.rewound(20, repository=None if beside else made.held.location)
        says(made.restore(20), "batches 21 to 23")
        says(made.rewind("to_latest"), "batches 21 to 23")
        assert made.reset().cutover.doubled == {"batches": 3}

    def test_until_it_has_caught_up(self, made: Stream) -> None:
        made.restored(5)
        plant(made.orders, logs(range(21)))
        sink_is_safe(made)

    def test_plans_alone_show_it(self, made: Stream) -> None:
        made.restored(5)
        for backup_id in (made.backups[10].backup_id, made.backups[20].backup_id):
            made.held.location.delete(f"backups/orders/{backup_id}.json")
        says(made.rewind("to_latest"), "batches 6 to 20")

    def test_it_was_lost(self, made: Stream) -> None:
        """After a restore nothing shows any more that it was: the second look said that it is safe."""
        for path in made.orders.walk():
            made.orders.delete(path)
        says(made.restore(10), "batches 11 to 20")
        says(made.restore(20), "batch 21")
        made.restored(20)
        again = made.restore(20)
        assert again.already_done
        says(again, "batch 21")
        assert "no checkpoint showed how far the query came" in again.reasons[-1]
        says(made.rewind("to_latest"), "batch 21")
        plant(made.orders, logs(range(22)))
        sink_is_safe(made)

    def test_somebody_else_has_set_it_back(self, made: Stream) -> None:
        begin(made.orders, newest=5)
        plant(made.orders, logs(range(6)))
        says(made.rewind("to_batch", "10"), "batches 11 to 20")
        plan = made.restore(20)
        says(plan, "batch 21")
        assert plan.reasons[-1] == (
            "at least one batch after 20 is assumed: nothing shows how far the query came after batch 20: its checkpoint is at 5"
        )

    def test_an_undone_change_leaves_it(self, made: Stream) -> None:
        made.has_been_reset()
        undo(made.orders, made.held, rest=STOPPED)
        assert made.restore(20).verdict is Verdict.SAFE
        sink_is_safe(made)

    def test_a_chain_asks_the_same(self, made: Stream) -> None:
        made.restored(5)
        stream = read_stream(ChainStream("orders", made.orders, (SINK,), (None,), made.held.location))
        (report,) = stream.reports(5)
        assert (report.verdict, stream.newest) == (Verdict.WILL_DUPLICATE, 5)
        assert DOUBLED.format("batches 6 to 20") in report.reasons[0]


class TestOtherNumbers:
    def test_the_query_after_a_reset_is_there(self, made: Stream) -> None:
        made.has_been_reset()
        made.runs_as(OTHER, 3)
        says(made.restore(10), "batches 11 to 20")
        plan = made.restore(20)
        says(plan, "batch 21")
        assert any(f"query {OTHER} has run at {made.orders}, with batch numbers of its own" in r for r in plan.reasons)

    def test_it_was_there(self, made: Stream) -> None:
        made.has_been_reset()
        made.runs_as(OTHER, 3)
        made.restored(20)
        says(made.rewind("to_latest"), "batch 21")
        assert made.reset().cutover.verdict is Verdict.WILL_DUPLICATE

    def test_nobody_said_that_it_is_the_same_stream(self, made: Stream) -> None:
        begin(made.orders, OTHER, 3)
        made.restored(20)
        says(made.rewind("to_latest"), "batch 21")

    def test_only_backups_show_it(self, made: Stream) -> None:
        begin(made.orders, OTHER, 3)
        create_backup(Checkpoint.at(made.orders), made.held, new_life=True)
        made.restored(20)
        says(made.rewind("to_latest"), "batch 21")

    @pytest.mark.parametrize("way", [ResetWay.KEEP_POSITION, ResetWay.FROM_SCRATCH])
    def test_the_numbers_of_before_do_not_count_for_the_new_query(self, made: Stream, way: ResetWay) -> None:
        made.has_been_reset(way)
        made.runs_as(OTHER, 3)
        made.backups[3] = create_backup(Checkpoint.at(made.orders), made.held).manifest
        assert made.restore(3).verdict is Verdict.SAFE
        sink_is_safe(made)

    def test_a_new_query_id_alone_changes_no_number(self, made: Stream) -> None:
        made.has_been_reset(ResetWay.NEW_QUERY_ID)
        sink_is_safe(made)
        made.restored(5)
        says(made.rewind("to_latest"), "batches 6 to 20")
        assert made.reset().cutover.doubled == {"batches": 15}


@pytest.mark.parametrize("kind", ["rate_async_progress", "rate_continuous"])
class TestUnlogged:
    """A query in continuous mode, and one with asynchronous progress tracking, write rows that their logs do not have yet."""

    @pytest.fixture
    def ran(self, kind: str, tmp_path: Path) -> Location:
        checkpoint = sample("4.0.0", kind).unpack(tmp_path / "ran")
        logged = Checkpoint.at(open_location(str(checkpoint))).progress().logged
        if kind == "rate_async_progress" and len(logged) == logged[-1] - logged[0] + 1:
            (checkpoint / "offsets" / str(logged[1])).unlink()  # this run logged each of its batches
            (checkpoint / "commits" / str(logged[1])).unlink(missing_ok=True)
        return open_location(str(checkpoint))

    def test_a_rewind_to_the_newest_batch(self, ran: Location) -> None:
        plan = plan_rewind(Checkpoint.at(ran), Specifier("to_current"), sink=SINK)
        says(plan, f"batch {plan.batch_id + 1}")

    def test_a_reset(self, ran: Location) -> None:
        assert plan_reset(ran, ResetWay.NEW_QUERY_ID, sink=SINK).cutover.verdict is not Verdict.SAFE

    def test_a_restore_of_the_newest_batch(self, ran: Location, kind: str, place: Location) -> None:
        manifest = create_backup(Checkpoint.at(ran), repository(place)).manifest
        answer = sink_says(SINK, manifest, ran)
        assert answer is not None
        assert answer.verdict is Verdict.WILL_DUPLICATE
        why = "in continuous mode" if kind == "rate_continuous" else "offsets/ lacks batches between"
        assert why in answer.reasons[-1]


class TestDamage:
    @pytest.fixture
    def others(self, made: Stream) -> Stream:
        """The repository has a damaged plan of another stream, too."""
        payments = begin(made.place / "payments", OTHER)
        other = plan_reset(payments, ResetWay.NEW_QUERY_ID, repository=made.held.location)
        apply_reset(other, payments, made.held, accept=ACCEPTED, rest=STOPPED)
        made.held.location.replace(f"plans/{other.plan_id}.json", b"{")
        return made

    def test_of_another_stream(self, others: Stream) -> None:
        assert others.reset().cutover.verdict is Verdict.SAFE

    def test_a_plan(self, made: Stream) -> None:
        made.restored(5)
        plant(made.orders, logs(range(21)))
        sink_is_safe(made)
        (plan,) = made.held.whole_files("plans")
        made.held.location.replace(plan, b"{")
        assert made.reset().cutover.verdict is not Verdict.SAFE

    def test_a_backup(self, made: Stream) -> None:
        made.held.location.replace(made.backups[5].path, b"{")
        assert made.restore(20).verdict is Verdict.SAFE
        begin(made.orders, newest=10)
        made.held.location.replace(made.backups[20].path, b"{")
        plan = made.restore(10)
        says(plan, "batch 11")
        assert "at least one batch after 10 is assumed: " in plan.reasons[-1]
        assert made.reset().cutover.verdict is not Verdict.SAFE


def test_what_it_costs(made: Stream) -> None:
    """Nothing was changed before: listings alone, and no plan of another checkpoint is read."""
    payments = begin(made.place / "payments", OTHER)
    other = plan_reset(payments, ResetWay.NEW_QUERY_ID, repository=made.held.location)
    apply_reset(other, payments, made.held, accept=ACCEPTED, rest=STOPPED)
    seen, store = watched(made.place)
    plan_reset(seen / "orders", ResetWay.KEEP_POSITION, sink=SINK, repository=seen / "backups")
    asked = [path for _, path in store.requests]
    assert not [path for path in asked if "/plans/" in path]
    assert len([path for path in asked if "/changes/" in path]) == 3
    assert len([path for path in asked if "/backups/backups/orders" in path and not path.endswith(".json")]) <= 3


@pytest.mark.parametrize(
    ("backup_id", "batch"), [("20261121T083000Z-b000223", 223), ("20261121T083000Z", None), ("x-b", None)]
)
def test_ids_name_batches(backup_id: str, batch: int | None) -> None:
    assert batch_in_id(backup_id) == batch


class TestFlows:
    PATH = "pipeline/_checkpoints/spark_catalog/default/orders/ingest"

    @pytest.fixture
    def backups(self, place: Location) -> dict[int, Manifest]:
        """Version 0 ran to batch 9; backups of batches 3, 6 and 9."""
        made = {}
        for newest in (3, 6, 9):
            live = plant(place / f"{self.PATH}/0", stateless(newest))
            made[newest] = create_backup(Checkpoint.at(live), repository(place)).manifest
        return made

    @pytest.fixture
    def restore(self, place: Location, backups: dict[int, Manifest]) -> Callable[[int], Any]:
        def plan(batch: int) -> Any:
            flow = flow_named(flows_of(place / "pipeline"), "ingest")
            return plan_flow_restore(flow, repository(place), backups[batch], sink=SINK)

        return plan

    def test_after_a_restore(self, place: Location, restore: Callable[[int], Any]) -> None:
        assert restore(9).verdict is Verdict.SAFE
        apply_flow_restore(restore(3), accept=ACCEPTED, rest=STOPPED)
        plan = restore(6)
        assert plan.verdict is Verdict.WILL_DUPLICATE
        assert DOUBLED.format("batches 7 to 9") in plan.cutover.reasons[0]
        flow = flow_named(flows_of(place / "pipeline"), "ingest")
        assert plan_flow_reset(flow, keep_position=True, sink=SINK).reset.cutover.doubled == {"batches": 6}

    def test_after_a_reset(self, place: Location, restore: Callable[[int], Any]) -> None:
        flow = flow_named(flows_of(place / "pipeline"), "ingest")
        made = apply_flow_reset(plan_flow_reset(flow, keep_position=True, sink=SINK), rest=STOPPED)
        plant(place / f"{self.PATH}/1", {**stateless(2), "metadata": metadata(made.query_id or "")})
        flow = flow_named(flows_of(place / "pipeline"), "ingest")
        assert plan_flow_reset(flow, keep_position=True, sink=SINK).reset.cutover.verdict is Verdict.SAFE
        assert restore(9).verdict is Verdict.WILL_DUPLICATE
        apply_flow_restore(restore(9), accept=ACCEPTED, rest=STOPPED)
        flow = flow_named(flows_of(place / "pipeline"), "ingest")
        assert json.loads(flow.version(2).read("metadata"))["id"] == flow.progress.query_id  # type: ignore[union-attr]
        assert plan_flow_reset(flow, keep_position=True, sink=SINK).reset.cutover.verdict is Verdict.WILL_DUPLICATE
