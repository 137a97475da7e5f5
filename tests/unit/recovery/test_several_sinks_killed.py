"""Several sinks of one query: a change of all of them, killed after every write, between them, and while others write."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.sealing import unseal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError, SealedError
from airflow_ckpt_provider.recovery.status import status_of
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.file_sink import inspect_file_sink
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import stream
from tests.support.checkpoints import plant
from tests.support.delta_batches import append, batches_in
from tests.support.file_sinks import entry
from tests.support.restores import loud_seal
from tests.support.rewinds import NEWEST, repository, rewound
from tests.support.rewound_sinks import KEEP, ROLLBACK, Sinks, carry_out, plan_of
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed, Life, lives, watched


class TestStoppedAnywhere:
    """After every single write, to the checkpoint, the repository or the file sink, and between the tables."""

    def dying(self, orders: Location, sinks: Sinks, life: Life) -> tuple[Location, Location, list[Sink]]:
        given = [*sinks.all[:2], Sink(place=watched(sinks.files, life.before)[0])]
        return watched(orders, life.before)[0], watched(default_repository(orders), life.before)[0], given

    @pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
    def test_a_rewind_is_resumed_or_taken_back(self, place: Location, tmp_path: Path, step: int) -> None:
        half_way = 0
        for life in lives(range(0, 400, step), least=20):
            orders = plant(place / f"r{life.writes}" / "orders", stream(NEWEST))
            sinks = Sinks(tmp_path / f"s{life.writes}")
            before = sinks.state()
            repository(orders)
            at, held, given = self.dying(orders, sinks, life)
            with suppress(Killed):
                carry_out(at, given, Repository.open(held))
            if not life.dead:
                continue
            done = Checkpoint.at(orders).progress().seal is None and len(orders.walk()) < len(stream(NEWEST))
            untouched = set(orders.walk()) == set(stream(NEWEST)) and sinks.state() == before
            assert loud_seal(orders) or untouched or done, f"after write {life.writes}"
            half_way += loud_seal(orders) and sinks.state() != before
            if life.writes % 2 and not untouched:
                undo(orders, repository(orders), sink=sinks.all, rest=STOPPED)
                assert sinks.state() == before
                assert set(orders.walk()) == set(stream(NEWEST))
            elif not done:
                carry_out(orders, sinks.all)
            if not life.writes % 2 or untouched:
                assert set(orders.walk()) == rewound(stream(NEWEST), 4) or untouched
                assert sinks.state()[:4] == ([4, 4], [4, 4], 4, 4) or untouched
        assert half_way > 0

    @pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
    def test_an_undo_is_resumed(self, place: Location, tmp_path: Path, step: int) -> None:
        for life in lives(range(0, 400, step), least=10):
            orders = plant(place / f"u{life.writes}" / "orders", stream(NEWEST))
            sinks = Sinks(tmp_path / f"s{life.writes}")
            before = sinks.state()
            carry_out(orders, sinks.all)
            at, held, given = self.dying(orders, sinks, life)
            with suppress(Killed):
                undo(at, Repository.open(held), sink=given, rest=STOPPED)
            if not life.dead:
                continue
            undo(orders, repository(orders), sink=sinks.all, rest=STOPPED)
            assert sinks.state() == before
            assert set(orders.walk()) == set(stream(NEWEST))
            assert DeltaTable(sinks.second.uri).version() == 4

    def test_between_the_two_tables(self, orders: Location, sinks: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first is rolled back, the second not yet; status names the command, another set of sinks is refused."""
        from airflow_ckpt_provider.sinks import delta_sink

        real = delta_sink.roll_back_table

        def die(target: Any, **how: Any) -> int:
            if target.table == sinks.second:
                raise Killed("second")
            return real(target, **how)

        with monkeypatch.context() as patched:
            patched.setattr(delta_sink, "roll_back_table", die)
            with pytest.raises(Killed):
                carry_out(orders, sinks.all[:2])
        assert (batches_in(sinks.first), len(batches_in(sinks.second))) == ([4, 4], 6)
        named = f"--sink {sinks.first.uri} --sink {sinks.second.uri}"
        status = status_of(Checkpoint.at(orders), repository(orders))
        assert f"{named} --txn-app-id '' --txn-app-id copies --sink-policy rollback" in status.commands[0]
        assert status.commands[1].endswith(named)
        with pytest.raises(SealedError, match="that was not ended"):
            plan_of(orders, sinks.all[:1])
        # The order in which they are named does not matter.
        carry_out(orders, [sinks.all[1], sinks.all[0]])
        assert sinks.state()[:4] == ([4, 4], [4, 4], 4, 4)
        assert DeltaTable(sinks.first.uri).version() == 3

    def test_somebody_writes_between_the_check_and_the_second_commit(
        self, orders: Location, sinks: Sinks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """There is no commit over two tables: it stays sealed, and the undo brings the first one forward."""
        from airflow_ckpt_provider.sinks import delta_sink

        real = delta_sink.roll_back_table

        def write_first(target: Any, **how: Any) -> int:
            if target.table == sinks.second:
                append(sinks.second.uri, 99, app_id=None)
            return real(target, **how)

        with monkeypatch.context() as patched:
            patched.setattr(delta_sink, "roll_back_table", write_first)
            with pytest.raises(
                RefusedError, match="second is at version 3, and the plan was made at version 2"
            ) as refused:
                carry_out(orders, sinks.all[:2])
        assert f"`airflow-ckpt undo {orders} --plan " in str(refused.value.hint)
        assert loud_seal(orders)
        with pytest.raises(RefusedError, match="somebody wrote into it"):
            carry_out(orders, sinks.all[:2])
        undo(orders, repository(orders), sink=sinks.all[:2], rest=STOPPED)
        assert batches_in(sinks.first) == [4, 4, 5, 5, 6, 6]
        assert batches_in(sinks.second) == [4, 4, 5, 5, 6, 6, 99, 99]
        assert set(orders.walk()) == set(stream(NEWEST))

    def killed(self, orders: Location, sinks: Sinks, monkeypatch: pytest.MonkeyPatch, *, deleted: int) -> list[Sink]:
        """A rewind of a table and a file sink, killed after some files of the sink were deleted."""
        from airflow_ckpt_provider.storage.location import Location as Place

        left, both, real = [deleted], [sinks.all[0], sinks.all[2]], Place.delete_listed

        def die(self: Location, file: Any) -> None:
            if self.root == sinks.files.root:
                if not left[0]:
                    raise Killed("file sink")
                left[0] -= 1
            real(self, file)

        with monkeypatch.context() as patched:
            patched.setattr(Place, "delete_listed", die)
            with pytest.raises(Killed):
                carry_out(orders, both)
        assert (batches_in(sinks.first), loud_seal(orders)) == ([4, 4], True)
        return both

    @pytest.mark.parametrize("deleted", [0, 1, 3])
    @pytest.mark.parametrize("number", [5, 7])
    def test_a_resumed_rewind_keeps_what_others_wrote_into_the_file_sink(
        self, orders: Location, sinks: Sinks, monkeypatch: pytest.MonkeyPatch, deleted: int, number: int
    ) -> None:
        """Also under a number that the plan takes away. Moved out of the sink, the same command ends it."""
        both = self.killed(orders, sinks, monkeypatch, deleted=deleted)
        path = f"_spark_metadata/{number}"
        sinks.files.replace("part x.json", b"row")
        sinks.files.replace(path, f"v1\n{entry(sinks.files, number, 'other')}".encode())
        with pytest.raises(RefusedError, match=f"{path} is not of plan .* somebody wrote into the sink") as refused:
            carry_out(orders, both)
        assert f"move {path} and the data files that it names out of the sink" in str(refused.value.hint)
        assert sinks.files.find(path)
        assert loud_seal(orders)
        sinks.files.delete(path)
        if deleted == 0 and number == 5:
            return  # nothing was deleted, so the plan expects its own entry there
        carry_out(orders, both)
        assert inspect_file_sink(sinks.files, 4).verdict is Verdict.SAFE
        assert set(orders.walk()) == rewound(stream(NEWEST), 4)

    @pytest.mark.parametrize("number", [5, 7])
    @pytest.mark.parametrize("alone", [True, False])
    def test_an_undo_keeps_what_others_wrote_into_the_file_sink(
        self, orders: Location, sinks: Sinks, alone: bool, number: int
    ) -> None:
        """Found before any sink is changed. Moved out of the sink, the same undo is carried out."""
        given = [sinks.all[2]] if alone else [sinks.all[0], sinks.all[2]]
        before, path = sinks.state(), f"_spark_metadata/{number}"
        carry_out(orders, given)
        rolled_back = batches_in(sinks.first)
        sinks.files.create("part x.json", b"row")
        sinks.files.create(path, f"v1\n{entry(sinks.files, number, 'other')}".encode())
        with pytest.raises(RefusedError, match=f"since rewind .*: {path} is not of it") as refused:
            undo(orders, repository(orders), sink=given, rest=STOPPED)
        assert "rewind again instead; or move" in str(refused.value.hint)
        assert batches_in(sinks.first) == rolled_back
        assert sinks.files.find("part 6.json") is None
        assert not loud_seal(orders)
        for moved in (path, "part x.json"):
            sinks.files.delete(moved)
        undo(orders, repository(orders), sink=given, rest=STOPPED)
        assert sinks.state() == before

    @pytest.mark.parametrize("deleted", [0, 1, 3])
    def test_what_others_wrote_before_a_file_was_deleted_stays_after_the_undo(
        self, orders: Location, sinks: Sinks, monkeypatch: pytest.MonkeyPatch, deleted: int
    ) -> None:
        """Where nothing was deleted the undo needs nothing of the sink; else it is moved out of it first."""
        both = self.killed(orders, sinks, monkeypatch, deleted=deleted)
        path = "_spark_metadata/7"
        sinks.files.create(path, f"v1\n{entry(sinks.files, 7, 'other')}".encode())
        if deleted:
            with pytest.raises(RefusedError, match=f"{path} is not of it") as refused:
                undo(orders, repository(orders), sink=both, rest=STOPPED)
            assert str(refused.value.hint).startswith(f"move {path}")
            assert (batches_in(sinks.first), loud_seal(orders)) == ([4, 4], True)
            sinks.files.delete(path)
        undo(orders, repository(orders), sink=both, rest=STOPPED)
        assert bool(sinks.files.find(path)) is not bool(deleted)
        assert sinks.files.find("part 6.json")
        assert set(orders.walk()) == set(stream(NEWEST))

    @pytest.mark.parametrize("exit_", ["by hand", "given up"])
    @pytest.mark.parametrize("ended", [True, False])
    def test_somebody_writes_between_two_sinks_of_an_undo(
        self, orders: Location, sinks: Sinks, monkeypatch: pytest.MonkeyPatch, exit_: str, ended: bool
    ) -> None:
        """The first is brought forward, the second was written to: the refusal names two ways out, and each leads there."""
        from airflow_ckpt_provider.change import writing
        from airflow_ckpt_provider.sinks import delta_sink

        both, real, before = sinks.all[:2], delta_sink.roll_back_table, sinks.state()

        def write_first(target: Any, **how: Any) -> int:
            if target.table == sinks.second:
                append(sinks.second.uri, 99, app_id=None)
            return real(target, **how)

        def die(*_: object) -> int:
            raise Killed("before the checkpoint")

        with monkeypatch.context() as patched:
            if not ended:
                patched.setattr(writing.FileWriter, "remove", die)
                with pytest.raises(Killed):
                    carry_out(orders, both)
            else:
                carry_out(orders, both)
        with monkeypatch.context() as patched:
            patched.setattr(delta_sink, "roll_back_table", write_first)
            with pytest.raises(RefusedError, match="somebody wrote into it"):
                undo(orders, repository(orders), sink=both, rest=STOPPED)
        assert sinks.state()[:2] == ([4, 4, 5, 5, 6, 6], [4, 4, 99, 99])
        with pytest.raises(RefusedError, match="was written to since rewind") as refused:
            undo(orders, repository(orders), sink=both, rest=STOPPED)
        hint, seal = str(refused.value.hint), Checkpoint.at(orders).progress().seal
        assert seal
        assert "rewind again instead" not in hint
        assert "run the same rewind again" not in hint
        assert f"RESTORE TABLE delta.`{sinks.second.uri}` TO VERSION AS OF 3" in hint
        assert f"`airflow-ckpt unseal {orders} --plan {seal.plan_id}`" in hint
        if exit_ == "by hand":
            DeltaTable(sinks.second.uri).restore(3)
            undo(orders, repository(orders), sink=both, rest=STOPPED)
            assert sinks.state() == before
            assert set(orders.walk()) == set(stream(NEWEST))
        else:
            unseal(Checkpoint.at(orders), plan_id=seal.plan_id)
            carry_out(orders, both, sink_exit=[ROLLBACK, KEEP])
            assert sinks.state()[:4] == ([4, 4], [4, 4, 99, 99], 4, 4)
            assert set(orders.walk()) == rewound(stream(NEWEST), 4)
