"""Whether a rewind could be undone is said in its plan; each word is held against an undo that is carried out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.writing import FileWriter
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.sink import RollBack
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.undo import UndoOutcome, undo
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import stream
from tests.support.checkpoints import QUERY_ID, contents, plant
from tests.support.delta_batches import delta_table
from tests.support.iceberg_tables import Table
from tests.support.rewinds import NEWEST
from tests.support.stopped import STOPPED
from tests.support.upgrade_beginnings import FEATURES, PROTOCOL, edit_first, file_sink

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


def test_a_roll_back_by_spark_that_a_txn_app_id_outlives_is_refused_in_the_plan(
    orders: Location, tmp_path: Path
) -> None:
    """The table would still know the batches by the id in the query's code, which no new query id changes."""
    table = Path(delta_table(tmp_path / "named", range(NEWEST + 1), app_id="orders").uri)
    edit_first(table, lambda text: text.replace(PROTOCOL, FEATURES))
    sink = Sink(open_location(str(table)), app_id="orders", by_spark=lambda target, expected: None)
    with pytest.raises(RefusedError, match="still remembers the batches of txnAppId orders"):
        planned(orders, sink)
    assert planned(orders, sink, SinkPolicy.ACCEPT).sink_verdict is Verdict.WILL_SKIP


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


class TestIceberg:
    """The tag is all that an undo has: without it the checkpoint came forward and the table did not."""

    @pytest.fixture
    def lake(self, tmp_path: Path) -> Table:
        return Table(tmp_path / "lake").batch(*range(NEWEST + 1), query=QUERY_ID)

    def rewind(self, orders: Location, lake: Table, batch: int) -> RewindPlan:
        plan = planned(orders, lake.sink, batch=batch)
        repository = Repository.open_or_create(default_repository(orders))
        apply_rewind(plan, Checkpoint.at(orders), repository, sink=lake.sink, rest=STOPPED)
        return plan

    def undo(self, orders: Location, lake: Table, plan: RewindPlan | None = None) -> UndoOutcome:
        repository = Repository.open_or_create(default_repository(orders))
        return undo(orders, repository, plan_id=plan.plan_id if plan else None, sink=lake.sink, rest=STOPPED)

    def test_forward_again(self, orders: Location, lake: Table) -> None:
        held, plan = lake.held, planned(orders, lake.sink)
        assert undo_of(plan) == (
            True,
            [
                STARTED,
                "nobody may write into the table before",
                "a tag keeps the snapshot that leaves the table for 30 days, also from expire_snapshots: nobody may drop it "
                "before",
            ],
        )
        carried_out_and_back(orders, plan, lake.sink)
        assert lake.held == held

    def test_somebody_dropped_the_tag(self, orders: Location, lake: Table) -> None:
        held, former, before = lake.held, lake.head, contents(orders)
        plan = self.rewind(orders, lake, 4)
        rewound, left = contents(orders), lake.held
        lake.table.manage_snapshots().remove_tag(f"airflow-ckpt-{plan.plan_id}").commit()
        with pytest.raises(RefusedError) as refused:
            self.undo(orders, lake)
        assert refused.value.message == (
            f"iceberg:lake.sales.orders has no tag airflow-ckpt-{plan.plan_id} any more, which kept snapshot {former} for the "
            f"undo of rewind {plan.plan_id}, and the table is not at that snapshot: it expired or was dropped; nothing was "
            "changed"
        )
        assert "set main to it (CALL <catalog>.system.set_current_snapshot)" in (refused.value.hint or "")
        assert (contents(orders), lake.held) == (rewound, left)
        assert former is not None
        lake.table.manage_snapshots().set_current_snapshot(former).commit()  # what the hint says
        self.undo(orders, lake)
        assert (contents(orders), lake.held) == (before, held)

    def test_somebody_dropped_the_tag_of_a_rewind_that_was_killed(
        self, orders: Location, lake: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        plan = planned(orders, lake.sink)
        repository = Repository.open_or_create(default_repository(orders))
        with monkeypatch.context() as patch:
            patch.setattr(FileWriter, "remove", killed)
            with pytest.raises(KeyboardInterrupt):
                apply_rewind(plan, Checkpoint.at(orders), repository, sink=lake.sink, rest=STOPPED)
        lake.table.manage_snapshots().remove_tag(f"airflow-ckpt-{plan.plan_id}").commit()
        with pytest.raises(RefusedError, match="has no tag"):
            self.undo(orders, lake)
        assert len(lake.held) == 5

    def test_a_rewind_that_was_killed_before_the_table(
        self, orders: Location, lake: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def killed(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        plan, before = planned(orders, lake.sink), contents(orders)
        repository = Repository.open_or_create(default_repository(orders))
        with monkeypatch.context() as patch:
            patch.setattr(RollBack, "run", killed)
            with pytest.raises(KeyboardInterrupt):
                apply_rewind(plan, Checkpoint.at(orders), repository, sink=lake.sink, rest=STOPPED)
        held = lake.rows("of somebody else").held
        self.undo(orders, lake)
        assert (contents(orders), lake.held) == (before, held)

    def test_rows_of_others_leave_with_it(self, orders: Location, lake: Table) -> None:
        lake.batch(0, query="another")
        plan = planned(orders, lake.sink)
        assert plan.sink_verdict is Verdict.WILL_LOSE
        assert any(reason.startswith("sink: a rollback removes rows of others: snapshot ") for reason in plan.reasons)
        assert [risk.word for risk in plan.risks] == ["foreign_loss"]

    def test_one_after_the_other(self, orders: Location, lake: Table) -> None:
        held, before = lake.held, contents(orders)
        first, second = self.rewind(orders, lake, 4), self.rewind(orders, lake, 2)
        assert len(lake.held) == 3
        self.undo(orders, lake)
        assert len(lake.held) == 5
        again = self.undo(orders, lake)  # sent twice: it undoes one change
        assert (again.plan_id, again.already_done, len(lake.held)) == (second.plan_id, True, 5)
        self.undo(orders, lake, first)
        assert (contents(orders), lake.held) == (before, held)
        third = self.rewind(orders, lake, 3)
        assert len(lake.held) == 4
        self.undo(orders, lake, third)
        assert (contents(orders), lake.held) == (before, held)


def test_rows_that_stay(orders: Location) -> None:
    sink = Sink(kind="foreachBatch")
    plan = planned(orders, sink, SinkPolicy.ACCEPT)
    assert undo_of(plan) == (True, [STARTED])
    carried_out_and_back(orders, plan, sink)


def test_nothing_to_take_back(orders: Location) -> None:
    assert undo_of(planned(orders, Sink(kind="kafka"), SinkPolicy.ACCEPT, NEWEST)) == (
        True,
        ["there is nothing to undo"],
    )


def test_it_is_kept_with_the_plan_and_older_plans_are_read(orders: Location, table: Path) -> None:
    plan = planned(orders, Sink(place=open_location(str(table))))
    document: dict[str, Any] = json.loads(json.dumps(plan.document()))
    assert RewindPlan.of_document(document).undo == plan.undo
    del document["undo"]
    assert RewindPlan.of_document(document).undo is None
