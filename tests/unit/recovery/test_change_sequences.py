"""Random sequences of changes and undos: byte-equal checkpoint and row-equal table, or refused with a reason that is true."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import CkptError, NotACheckpointError, RefusedError
from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import stream
from tests.support.checkpoints import contents, plant
from tests.support.delta_batches import append, batches_in, delta_table
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.watched_stores import Killed, Life, watched

NEWEST = 5


class Story:
    """A stream with its Delta table, changed and put back by chance.

    :param orders: its checkpoint.
    :param path: its table.
    :param chance: decides.
    """

    def __init__(self, orders: Location, path: Path, chance: random.Random) -> None:
        self.orders, self.path, self.chance = plant(orders, stream(NEWEST)), path, chance
        self.table = delta_table(path, range(NEWEST + 1))
        self.repository = Repository.open_or_create(default_repository(orders))
        create_backup(Checkpoint.at(orders), self.repository, name="orders")
        self.told: list[str] = []

    def seen(self) -> tuple[dict[str, bytes], list[int]]:
        return contents(self.orders), batches_in(self.table)

    def change(self, at: Location, how: str, value: int) -> None:
        """Carry a change out; the same again resumes it."""
        common: dict[str, Any] = {"rest": STOPPED, "accept": ACCEPTED, "workers": 2}
        held = Repository(Location(at.store, self.repository.location.root), self.repository.repository_id)
        if how == "rewind":
            sink = Sink(place=self.table)
            plan = plan_rewind(
                Checkpoint.at(at),
                Specifier("to_batch", str(value)),
                sink=sink,
                sink_exit=SinkPolicy.ROLLBACK,
                guards=(),
            )
            apply_rewind(plan, Checkpoint.at(at), held, sink=sink, **common)
        elif how == "restore":
            manifest = held.manifest("latest", name="orders")
            apply_restore(plan_restore(held, manifest, at, replace=True), **common)
        else:
            reset = plan_reset(at, ResetWay(how), sink=Sink(kind="foreachBatch"))
            apply_reset(reset, at, held, **common)

    def killed(self, how: str, value: int) -> bool:
        """Carry a change out in a process that dies after some writes; whether it died."""
        dying, _ = watched(self.orders, Life(self.chance.randrange(60)).before)
        try:
            self.change(dying, how, value)
        except Killed:
            return True
        return False

    def put_back(self) -> None:
        undo(self.orders, self.repository, sink=Sink(place=self.table), rest=STOPPED)

    def goes_on(self) -> None:
        """The stream runs: one batch more, in the checkpoint and in the table."""
        try:
            newest = Checkpoint.at(self.orders).progress().latest_committed
        except NotACheckpointError:  # it was reset
            newest = None
        batch = 0 if newest is None else newest + 1
        missing = {p: c for p, c in stream(batch).items() if p not in contents(self.orders)}
        plant(self.orders, missing)
        append(self.path, batch)

    def step(self) -> None:
        before = self.seen()
        how = self.chance.choice(["rewind", "rewind", "restore", *(way.value for way in ResetWay)])
        value = self.chance.randrange(NEWEST)
        try:
            died = self.killed(how, value)
        except CkptError as e:
            died, refused = False, str(e)
        else:
            refused = ""
        if refused:
            self.told.append(f"{how} refused: {refused}")
            assert self.seen() == before, self.told
            return
        then = self.chance.choice(["undo", "undo", "resume and undo", "continue"])
        self.told.append(f"{how} {value}{', killed' if died else ''}, {then}")
        if then != "undo" and died:
            self.change(self.orders, how, value)
        if then == "continue":
            self.goes_on()
            after = self.seen()
            with pytest.raises(RefusedError, match="was written to since"):
                self.put_back()
            assert self.seen() == after, self.told
            self.start_over()
            return
        changed = self.seen() != before
        try:
            self.put_back()
        except RefusedError as e:
            refused = str(e)
        assert not (refused and changed), (self.told, refused)
        assert self.seen() == before, self.told

    def start_over(self) -> None:
        """Another history: what comes next is about the stream as it is at the beginning."""
        for path in self.orders.walk():
            self.orders.delete(path)
        plant(self.orders, stream(NEWEST))
        self.path = self.path.with_name(f"{self.path.name}-again")
        self.table = delta_table(self.path, range(NEWEST + 1))


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[] if n < 3 else pytest.mark.slow) for n in range(100)])
def test_a_sequence(seed: int, place: Location, tmp_path: Path) -> None:
    story = Story(place / "orders", tmp_path / "table", random.Random(seed))
    for _ in range(5):
        story.step()
    assert story.told
