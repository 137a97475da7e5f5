"""reset and its undo: killed after every write, and resumed by the same command."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.seal import SEAL_PREFIX
from airflow_ckpt_provider.errors import NoSuchBackupError, RefusedError, SealedError
from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import stream
from tests.support.checkpoints import Files, contents, metadata, offsets_log, plant
from tests.support.flows import stateless
from tests.support.resets import (
    KEEP,
    NEWEST,
    RENAME,
    SCRATCH,
    SEED,
    SHORT,
    file_sink,
    plan_of,
    repository,
    reset,
    undone,
)
from tests.support.restores import loud_seal
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed, Life, forget_all, lives, watched


class TestStoppedAnywhere:
    """After every single write: Spark is refused, or nothing has begun, or all is done; the same command ends it."""

    @pytest.mark.parametrize("way", list(ResetWay))
    def test_a_reset(self, place: Location, way: ResetWay) -> None:
        accept = ["sink_duplicates"] if way is SCRATCH else []
        before = contents(plant(place / "same", stream(SHORT)))
        for life in lives(range(400), least=5):
            orders = plant(place / f"{way}{life.writes}" / "orders", stream(SHORT))
            held_at = repository(orders).location
            dying, _ = watched(orders, life.before)
            held, _ = watched(held_at, life.before)
            with suppress(Killed):
                reset(dying, way, accept=accept, held=Repository.open(held))
            if not life.dead:
                continue
            now = contents(orders)
            done = not loud_seal(orders) and self.is_done(orders, way, before)
            assert loud_seal(orders) or now == before or done, f"after write {life.writes}"
            if not done:
                reset(orders, way, accept=accept)
            assert self.is_done(orders, way, before)
            assert not loud_seal(orders)
            undone(orders)
            assert contents(orders) == before
            forget_all()  # listings in memory walk over everything

    def test_a_reset_that_puts_its_seal_higher(self, place: Location, tmp_path: Path) -> None:
        """The new checkpoint begins beyond the old one's numbers: stopped in between, there are two seals."""
        sink, accept = Sink(place=file_sink(tmp_path / "out", 9)), ["sink_duplicates"]
        options: dict[str, Any] = {"sink": sink, "continue_numbers": True, "accept": accept}
        before = contents(plant(place / "same", stateless(SHORT)))
        wanted = {SEED, "metadata", "offsets/8", "offsets/9", "commits/9"}
        two_seals = 0
        for life in lives(range(400), least=10):
            orders = plant(place / f"n{life.writes}" / "orders", stateless(SHORT))
            held, _ = watched(repository(orders).location, life.before)
            dying, _ = watched(orders, life.before)
            with suppress(Killed):
                reset(dying, held=Repository.open(held), **options)
            if not life.dead:
                continue
            now = contents(orders)
            two_seals += sum(data.startswith(SEAL_PREFIX) for data in now.values()) == 2
            assert loud_seal(orders) or now == before or set(now) == wanted, f"after write {life.writes}"
            if loud_seal(orders) or now == before:
                reset(orders, **options)
            assert set(contents(orders)) == wanted
            undone(orders)
            assert contents(orders) == before
            forget_all()  # listings in memory walk over everything
        assert two_seals == 1

    def is_done(self, orders: Location, way: ResetWay, before: Files) -> bool:
        now = contents(orders)
        if way is RENAME:
            others = {p: d for p, d in now.items() if p != "metadata"}
            return (
                others == {p: d for p, d in before.items() if p != "metadata"} and now["metadata"] != before["metadata"]
            )
        return set(now) == ({SEED} if way is KEEP else set())

    def test_an_undo(self, place: Location) -> None:
        before = contents(plant(place / "same", stream(SHORT)))
        for life in lives(range(400), least=5):
            orders = plant(place / f"u{life.writes}" / "orders", stream(SHORT))
            reset(orders)
            after = contents(orders)
            dying, _ = watched(orders, life.before)
            held, _ = watched(default_repository(orders), life.before)
            with suppress(Killed):
                undone(dying, Repository.open(held))
            if not life.dead:
                continue
            now = contents(orders)
            assert loud_seal(orders) or now in (after, before), f"after write {life.writes}"
            undone(orders)
            assert contents(orders) == before
            forget_all()  # listings in memory walk over everything

    def test_a_reset_that_was_killed_can_be_taken_back(self, place: Location) -> None:
        for writes in range(3, 60, 4):
            orders = plant(place / f"h{writes}" / "orders", stream(SHORT))
            dying, _ = watched(orders, Life(writes).before)
            repository(orders)
            try:
                reset(dying)
                break
            except Killed:
                pass
            undone(orders)
            assert set(contents(orders)) == set(stream(SHORT))

    def test_another_plan_is_refused_meanwhile(self, orders: Location) -> None:
        dying, _ = watched(orders, Life(5).before)
        with pytest.raises(Killed):
            reset(dying)
        with pytest.raises(SealedError, match=r"is sealed by plan \w+, a reset \(keep-position\) that was not ended"):
            plan_of(orders, SCRATCH)
        assert reset(orders).start == NEWEST


class TestUndo:
    def test_not_after_the_new_checkpoint_was_started(self, orders: Location) -> None:
        reset(orders)
        plant(orders, {"metadata": metadata("new"), "offsets/0": offsets_log("-")})
        with pytest.raises(RefusedError, match=r"was written to since reset \w+: the stream was started") as e:
            undone(orders)
        assert "stays in the repository, in set-aside/" in (e.value.hint or "")
        assert not loud_seal(orders)

    def test_twice(self, orders: Location) -> None:
        reset(orders, RENAME)
        assert undone(orders).put_back == 1
        assert undone(orders).already_done

    def test_a_reset_that_never_was(self, orders: Location) -> None:
        plan = plan_of(orders)
        with pytest.raises(NoSuchBackupError, match=f"keeps no plan {plan.plan_id}"):
            undo(orders, repository(orders), plan_id=plan.plan_id, rest=STOPPED)

    def test_a_reset_that_changed_nothing(self, orders: Location) -> None:
        """Its plan was kept, and it was stopped before it had sealed anything."""
        plan = plan_of(orders)
        dying, _ = watched(orders, Life(0).before)
        with pytest.raises(Killed):
            apply_reset(plan, dying, repository(orders), rest=STOPPED)
        with pytest.raises(RefusedError, match="it was refused or never carried out"):
            undo(orders, repository(orders), plan_id=plan.plan_id, rest=STOPPED)
        assert contents(orders) == stream(NEWEST)
