"""A stream whose query id was changed, by a reset or a rewind by Spark: what later changes do to its Delta table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.fleet.backups import BackupsOfFleet
from airflow_ckpt_provider.recovery.query_ids import read_query_ids
from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.restore.sink import sink_says
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind, reachable
from airflow_ckpt_provider.recovery.rewind.replay_proof import prove_replay
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.delta_history import read_table_history
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import stream
from tests.support.checkpoints import QUERY_ID, plant
from tests.support.delta_batches import append, batches_in, delta_table
from tests.support.rewinds import repository, rewind
from tests.support.stopped import ACCEPTED, STOPPED


@pytest.fixture
def orders(place: Location) -> Location:
    """A stream with batches 0 to 4 committed."""
    return plant(place / "orders", stream(4))


@pytest.fixture
def table(tmp_path: Path) -> Location:
    """Its sink."""
    return delta_table(tmp_path / "table", range(5))


def query_id(orders: Location) -> str:
    return str(json.loads(orders.read("metadata"))["id"])


def new_query_id(orders: Location, table: Location) -> str:
    plan = plan_reset(orders, ResetWay.NEW_QUERY_ID, sink=Sink(place=table))
    apply_reset(plan, orders, repository(orders), accept=ACCEPTED, rest=STOPPED)
    assert plan.new_query_id == query_id(orders)
    return plan.new_query_id


def run(orders: Location, table: Location, *batches: int) -> None:
    """Run batches as Spark does: what the table remembers of the query's id is skipped."""
    own = query_id(orders)
    for batch in batches:
        there = set(orders.walk())
        plant(orders, {path: data for path, data in stream(batch).items() if path not in there})
        remembered = DeltaTable(table.uri).transaction_version(own)
        if remembered is None or remembered < batch:
            append(table.uri, batch, app_id=own)


def twice(*batches: int) -> list[int]:
    """Each batch has two rows."""
    return sorted([*batches] * 2)


def plan_of(orders: Location, batch: int, table: Location, **options: object):  # type: ignore[no-untyped-def]
    options.setdefault("sink_exit", SinkPolicy.ROLLBACK)
    return plan_rewind(
        Checkpoint.at(orders),
        Specifier("to_batch", str(batch)),
        sink=Sink(place=table),
        guards=(),
        **options,  # type: ignore[arg-type]
    )


def ids_of(orders: Location, table: Location | None = None) -> QueryIds:
    found = read_query_ids(
        query_id(orders),
        place=orders,
        repository=repository(orders),
        name=orders.name,
        histories=[read_table_history(table)] if table else [],
        tree=Checkpoint.at(orders).tree(),
    )
    assert found
    return found


class TestRewind:
    @pytest.mark.parametrize("target", range(6))
    def test_past_one_change(self, orders: Location, table: Location, target: int) -> None:
        new_query_id(orders, table)
        run(orders, table, 5, 6)
        rewind(orders, "to_batch", target, table=table)
        assert batches_in(table) == twice(*range(target + 1))
        run(orders, table, *range(target + 1, 7))
        assert batches_in(table) == twice(*range(7))
        assert prove_replay(Checkpoint.at(orders), target, sink=Sink(place=table)).ok

    @pytest.mark.parametrize("target", range(8))
    def test_past_two_changes(self, orders: Location, table: Location, target: int) -> None:
        second = new_query_id(orders, table)
        run(orders, table, 5, 6)
        third = new_query_id(orders, table)
        run(orders, table, 7, 8)
        assert [(link.query_id, link.from_batch) for link in ids_of(orders).links] == [
            (QUERY_ID, None),
            (second, 5),
            (third, 7),
        ]
        plan = plan_of(orders, target, table)
        assert plan.sink.query_ids == (QUERY_ID, second, third)
        assert plan.to_json()["sink"]["query_ids"] == [QUERY_ID, second, third]
        apply_rewind(plan, Checkpoint.at(orders), repository(orders), sink=Sink(place=table), rest=STOPPED)
        run(orders, table, *range(target + 1, 9))
        assert batches_in(table) == twice(*range(9))

    def test_without_the_records_it_is_refused(self, orders: Location, table: Location, place: Location) -> None:
        """The finding, for somebody who names another repository: nothing is changed."""
        new_query_id(orders, table)
        run(orders, table, 5, 6)
        Repository.open_or_create(place / "elsewhere")
        plan = plan_of(orders, 2, table, sink_exit=None, repository=place / "elsewhere")
        assert plan.sink.verdict is Verdict.WILL_SKIP
        with pytest.raises(RefusedError, match="no known id of the query explains batches 3 to 4") as e:
            plan_of(orders, 2, table, repository=place / "elsewhere")
        assert "give the repository that has the records" in e.value.message
        assert batches_in(table) == twice(*range(7))

    def test_without_the_records_the_older_id_can_be_named(
        self, orders: Location, table: Location, place: Location
    ) -> None:
        new_query_id(orders, table)
        run(orders, table, 5, 6)
        sink = Sink(place=table, app_id=QUERY_ID)
        checkpoint = Checkpoint.at(orders)
        to = Specifier("to_batch", "2")
        Repository.open_or_create(place / "elsewhere")
        plan = plan_rewind(
            checkpoint, to, sink=sink, sink_exit=SinkPolicy.ROLLBACK, guards=(), repository=place / "elsewhere"
        )
        apply_rewind(plan, checkpoint, repository(orders), sink=sink, rest=STOPPED)
        run(orders, table, *range(3, 7))
        assert batches_in(table) == twice(*range(7))

    def test_before_the_new_id_has_written(self, orders: Location, table: Location) -> None:
        new_query_id(orders, table)
        plan = plan_of(orders, 2, table, sink_exit=None)
        assert plan.sink.verdict is Verdict.WILL_DUPLICATE
        rewind(orders, "to_batch", 2, table=table)
        run(orders, table, 3, 4)
        assert batches_in(table) == twice(*range(5))

    def test_undo_puts_back_what_the_table_remembers_of_every_id(self, orders: Location, table: Location) -> None:
        newer = new_query_id(orders, table)
        run(orders, table, 5, 6)
        rewind(orders, "to_batch", 2, table=table)
        remembered = DeltaTable(table.uri).transaction_version
        assert (remembered(QUERY_ID), remembered(newer)) == (2, 2)
        undo(orders, repository(orders), sink=Sink(place=table), rest=STOPPED)
        assert batches_in(table) == twice(*range(7))
        remembered = DeltaTable(table.uri).transaction_version
        assert (remembered(QUERY_ID), remembered(newer)) == (4, 6)

    def test_undo_before_the_new_id_has_written(self, orders: Location, table: Location) -> None:
        """A batch that was logged and not written is not remembered by mistake."""
        new_query_id(orders, table)
        plant(orders, {path: data for path, data in stream(5).items() if path != "metadata"})
        orders.delete("commits/5")
        rewind(orders, "to_batch", 2, table=table)
        undo(orders, repository(orders), sink=Sink(place=table), rest=STOPPED)
        run(orders, table, 5)
        assert batches_in(table) == twice(*range(6))

    def test_to_a_version_of_the_table(self, orders: Location, table: Location) -> None:
        new_query_id(orders, table)
        run(orders, table, 5)
        assert rewind(orders, "to_table_version", 3, table=table).batch_id == 3

    def test_forward_to_what_the_older_id_wrote(self, orders: Location, table: Location) -> None:
        create_backup(Checkpoint.at(orders), repository(orders))
        rewind(orders, "to_batch", 2, table=table, sink_exit=SinkPolicy.ACCEPT)
        new_query_id(orders, table)
        outcome = rewind(orders, "to_current", table=table, sink_exit=SinkPolicy.FORWARD)
        assert outcome.batch_id == 4
        assert query_id(orders) == QUERY_ID, "it comes with the backup"
        run(orders, table, 5)
        assert batches_in(table) == twice(*range(6))


class TestBackups:
    def test_those_of_an_older_id_are_targets(self, orders: Location, table: Location) -> None:
        backup = create_backup(Checkpoint.at(orders), repository(orders))
        new_query_id(orders, table)
        run(orders, table, 5, 6)
        orders.delete("offsets/4")
        targets = {t.batch_id: t.where for t in reachable(Checkpoint.at(orders), repository(orders))}
        assert targets[4] == backup.backup_id
        outcome = rewind(orders, "to_batch", 4, table=table)
        assert (outcome.batch_id, query_id(orders)) == (4, QUERY_ID)
        run(orders, table, 5, 6, 7)
        assert batches_in(table) == twice(*range(8))

    def test_everything_as_in_a_backup_of_the_older_id(self, orders: Location, table: Location) -> None:
        backup = create_backup(Checkpoint.at(orders), repository(orders))
        newer = new_query_id(orders, table)
        run(orders, table, 5, 6)
        plan = plan_of(orders, 4, table, backup=backup.backup_id, sink_exit=None)
        assert (plan.sink.verdict, plan.query_id, plan.app_id) == (Verdict.WILL_DUPLICATE, QUERY_ID, QUERY_ID)
        assert plan.sink.memories == {newer: 6}
        rewind(orders, "to_batch", 4, table=table, backup=backup.backup_id)
        run(orders, table, 5, 6, 7)
        assert batches_in(table) == twice(*range(8))

    def test_of_a_query_that_was_begun_anew(self, orders: Location, table: Location) -> None:
        """Somebody deleted the checkpoint: numbers begin at 0, and nothing joins the two but the place."""
        backup = create_backup(Checkpoint.at(orders), repository(orders))
        for path in list(orders.walk()):
            orders.delete(path)
        anew = {
            path: data.replace(b"1700", b"1800") if path.startswith("offsets") else data
            for path, data in stream(2).items()
        }
        plant(orders, anew | {"metadata": b'{"id":"again"}'})
        for batch in range(3):
            append(table.uri, batch, app_id="again")
        assert ids_of(orders, table).all == ("again",)
        plan = plan_of(orders, 4, table, backup=backup.backup_id, sink_exit=None)
        assert plan.sink.query_ids == (QUERY_ID,)
        assert plan.sink.verdict is Verdict.WILL_DUPLICATE
        rewind(orders, "to_batch", 4, table=table, backup=backup.backup_id)
        assert batches_in(table) == twice(*range(5))

    def test_an_id_that_was_changed_by_hand(self, orders: Location, table: Location) -> None:
        """No plan knows it. A backup has batches of the same numbers and times: it is the same stream."""
        backup = create_backup(Checkpoint.at(orders), repository(orders))
        orders.replace("metadata", b'{"id":"by-hand"}')
        run(orders, table, 5, 6)
        ids = ids_of(orders, table)
        assert [(link.query_id, link.known_by) for link in ids.links] == [
            (QUERY_ID, f"backup {backup.backup_id}"),
            ("by-hand", "metadata"),
        ]
        rewind(orders, "to_batch", 2, table=table)
        run(orders, table, *range(3, 7))
        assert batches_in(table) == twice(*range(7))

    def test_a_restore_asks_by_every_id(self, orders: Location, table: Location) -> None:
        backup = create_backup(Checkpoint.at(orders), repository(orders))
        newer = new_query_id(orders, table)
        run(orders, table, 5, 6)
        manifest = repository(orders).manifest(backup.backup_id)
        sink = Sink(place=table)
        verdict, reasons, _ = sink_says(sink, manifest, orders, repository=repository(orders)) or (None, (), ())
        assert verdict is Verdict.WILL_DUPLICATE
        assert f"as batches of {newer}, and the query's id will be {QUERY_ID}" in reasons[0]
        copy = Location(orders.store, f"{orders.root}-copy")
        elsewhere, *_ = sink_says(sink, manifest, copy, repository=repository(orders)) or (None, (), ())
        assert elsewhere is Verdict.WILL_DUPLICATE
        unknown, *_ = sink_says(sink, manifest, copy) or (None, (), ())
        assert unknown is Verdict.UNKNOWN


class TestTheChain:
    def test_an_undo_takes_a_link_back(self, orders: Location, table: Location) -> None:
        newer = new_query_id(orders, table)
        assert ids_of(orders).all == (QUERY_ID, newer)
        plan = plan_reset(orders, ResetWay.NEW_QUERY_ID, sink=Sink(place=table))
        apply_reset(plan, orders, repository(orders), accept=ACCEPTED, rest=STOPPED)
        undo(orders, repository(orders), plan_id=plan.plan_id, rest=STOPPED)
        assert ids_of(orders).all == (QUERY_ID, newer)

    def test_a_copy_has_the_ids_of_before(self, orders: Location, table: Location, place: Location) -> None:
        """The copy goes its own way: what the original becomes after it is no id of the copy."""
        newer = new_query_id(orders, table)
        backup = create_backup(Checkpoint.at(orders), repository(orders))
        copy = place / "copy"
        apply_restore(plan_restore(repository(orders), repository(orders).manifest(backup.backup_id), copy))
        new_query_id(orders, table)
        found = read_query_ids(newer, place=copy, repository=repository(orders), name="copy")
        assert found is not None
        assert found.all == (QUERY_ID, newer)

    def test_no_repository(self, orders: Location) -> None:
        found = read_query_ids(QUERY_ID, place=orders, repository=None, name="orders")
        assert found == QueryIds.of(QUERY_ID)
        assert read_query_ids(None, place=orders, repository=None, name="orders") is None

    def test_the_fleet_knows_a_copy_by_an_older_id(self, orders: Location, table: Location, place: Location) -> None:
        create_backup(Checkpoint.at(orders), repository(orders), name="orders")
        newer = new_query_id(orders, table)
        fleet = BackupsOfFleet(repository(orders), ["orders"])
        with pytest.raises(RefusedError, match="are of the same query in another place"):
            fleet.last_good("orders", place / "moved" / "orders", query_id=newer)
        with pytest.raises(RefusedError, match="are of another stream"):
            fleet.last_good("orders", place / "moved" / "orders", query_id="another")


class TestReplayProof:
    """It was green for a table that was doubled."""

    def doubled(self, orders: Location, table: Location) -> None:
        newer = new_query_id(orders, table)
        for batch in range(3, 7):
            append(table.uri, batch, app_id=newer)
        plant(orders, {path: data for path, data in stream(6).items() if path != "metadata"})
        assert batches_in(table) == twice(0, 1, 2, 3, 3, 4, 4, 5, 6)

    def test_every_id_counts(self, orders: Location, table: Location) -> None:
        self.doubled(orders, table)
        proof = prove_replay(Checkpoint.at(orders), 2, sink=Sink(place=table))
        assert proof.findings == tuple(
            f"the table has 2 commits of batch {batch}: its rows are doubled" for batch in (3, 4)
        )
        assert proof.rows == {3: 4, 4: 4, 5: 2, 6: 2}

    def test_it_is_not_green_without_the_records(self, orders: Location, table: Location, place: Location) -> None:
        self.doubled(orders, table)
        Repository.open_or_create(place / "elsewhere")
        proof = prove_replay(Checkpoint.at(orders), 2, sink=Sink(place=table), repository=place / "elsewhere")
        assert not proof.ok
        assert proof.findings[0].startswith(f"the table has batch 3, 4 of {QUERY_ID} too: if that is an older id")

    def test_after_a_rollback_it_is_green(self, orders: Location, table: Location) -> None:
        self.doubled(orders, table)
        rewind(orders, "to_batch", 2, table=table)
        run(orders, table, *range(3, 7))
        assert prove_replay(Checkpoint.at(orders), 2, sink=Sink(place=table)).ok


def test_documents_of_before(orders: Location, table: Location) -> None:
    document = plan_of(orders, 2, table).document()
    for name in ("query_ids", "memories", "doubts"):
        del document["sink"][name]
    assert RewindPlan.of_document(document).sink.query_ids == ()
