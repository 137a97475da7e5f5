"""rewind and undo, stopped after every write: the same command ends them, or they are undone."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.seal import SEAL_PREFIX
from airflow_ckpt_provider.errors import SealedError
from airflow_ckpt_provider.recovery.rewind.apply import RewindOutcome, apply_rewind
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import stream
from tests.support.checkpoints import QUERY_ID, contents, plant
from tests.support.delta_batches import batches_in, delta_table
from tests.support.restores import loud_seal
from tests.support.rewinds import NEWEST, repository, rewind, rewound
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed, Life, forget_all, lives, watched


class TestStoppedAnywhere:
    """After every single write: Spark is refused, or nothing has begun, or all is done; the same command ends it."""

    def test_a_rewind(self, place: Location, tmp_path: Path) -> None:
        for life in lives(range(200), least=10):
            orders = plant(place / f"r{life.writes}" / "orders", stream(NEWEST))
            table = delta_table(tmp_path / f"t{life.writes}", range(4, NEWEST + 1))
            dying, _ = watched(orders, life.before)
            held, _ = watched(default_repository(orders), life.before)
            sink = Sink(place=table)
            with suppress(Killed):
                repository(orders)
                plan = plan_rewind(
                    Checkpoint.at(dying),
                    Specifier("to_batch", "4"),
                    sink=sink,
                    sink_exit=SinkPolicy.ROLLBACK,
                    guards=(),
                )
                apply_rewind(plan, Checkpoint.at(dying), Repository.open(held), sink=sink, rest=STOPPED)
            if not life.dead:
                continue
            untouched = set(contents(orders)) == set(stream(NEWEST)) and batches_in(table)[-1] == NEWEST
            done = (
                Checkpoint.at(orders).progress().seal is None and Checkpoint.at(orders).progress().latest_committed == 4
            )
            assert loud_seal(orders) or untouched or done, f"after write {life.writes}"
            if not done:
                rewind(orders, "to_batch", 4, table=table)
            assert set(contents(orders)) == rewound(stream(NEWEST), 4)
            assert batches_in(table) == [4, 4]
            assert DeltaTable(table.uri).version() == 3

    def test_an_undo(self, place: Location, tmp_path: Path) -> None:
        before = stream(NEWEST)
        for life in lives(range(200), least=5):
            orders = plant(place / f"u{life.writes}" / "orders", before)
            table = delta_table(tmp_path / f"t{life.writes}", range(4, NEWEST + 1))
            rewind(orders, "to_batch", 4, table=table)
            dying, _ = watched(orders, life.before)
            held, _ = watched(default_repository(orders), life.before)
            with suppress(Killed):
                undo(dying, Repository.open(held), sink=Sink(place=table), rest=STOPPED)
            if not life.dead:
                continue
            not_begun = set(contents(orders)) == rewound(stream(NEWEST), 4)
            done = contents(orders) == contents(plant(place / "same", before))
            assert loud_seal(orders) or not_begun or done, f"after write {life.writes}"
            undo(orders, repository(orders), sink=Sink(place=table), rest=STOPPED)
            assert contents(orders) == contents(plant(place / "same", before))
            assert batches_in(table) == [4, 4, 5, 5, 6, 6]
            assert DeltaTable(table.uri).transaction_version(QUERY_ID) == NEWEST
            assert DeltaTable(table.uri).version() == 4

    def test_a_rewind_to_a_backup_that_is_newer_than_the_checkpoint(self, place: Location, tmp_path: Path) -> None:
        """The seal has to be put higher on the way: stopped in between, there are two of them."""
        two_seals = 0
        for life in lives(range(200), least=10):
            orders = plant(place / f"b{life.writes}" / "orders", stream(3))
            manifest = create_backup(Checkpoint.at(orders), repository(orders)).manifest
            wanted = {entry.path: orders.read(entry.path) for entry in manifest.files_of(3)}
            for path in list(orders.walk()):
                orders.delete(path)
            before = contents(plant(orders, stream(1)))
            dying, _ = watched(orders, life.before)
            held, _ = watched(default_repository(orders), life.before)
            sink = Sink(kind="foreachBatch")

            def again(at: Location, kept: Repository, sink: Sink = sink) -> RewindOutcome:
                to, accept = Specifier("to_batch", "3"), SinkPolicy.ACCEPT
                plan = plan_rewind(
                    Checkpoint.at(at), to, sink=sink, sink_exit=accept, repository=kept.location, guards=()
                )
                return apply_rewind(plan, Checkpoint.at(at), kept, sink=sink, rest=STOPPED)

            with suppress(Killed):
                again(dying, Repository.open(held))
            if not life.dead:
                continue
            now = contents(orders)
            two_seals += sum(data.startswith(SEAL_PREFIX) for data in now.values()) == 2
            assert loud_seal(orders) or now in (before, wanted), f"after write {life.writes}"
            again(orders, repository(orders))
            assert contents(orders) == wanted
            forget_all()  # listings in memory walk over everything
        assert two_seals == 1

    def test_a_rewind_that_was_killed_can_be_taken_back(self, place: Location) -> None:
        for writes in range(3, 40, 4):
            orders = plant(place / f"h{writes}" / "orders", stream(NEWEST))
            dying, _ = watched(orders, Life(writes).before)
            repository(orders)
            try:
                rewind(dying, "to_batch", 2)
                break
            except Killed:
                pass
            undo(orders, repository(orders), rest=STOPPED)
            assert set(contents(orders)) == set(stream(NEWEST))

    def test_another_plan_is_refused_meanwhile(self, orders: Location) -> None:
        dying, _ = watched(orders, Life(5).before)
        with pytest.raises(Killed):
            rewind(dying, "to_batch", 2)
        with pytest.raises(SealedError, match=r"is sealed by plan \w+, a rewind \(to-batch 2\) that was not ended"):
            rewind(orders, "to_batch", 3)
        assert rewind(orders, "to_batch", 2).batch_id == 2
