"""Undoing a change after a later one: the files may be those that the first one left, and the rows are not."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.sealing import remove_seal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import CkptError, RefusedError, RepositoryError, SealedError
from airflow_ckpt_provider.recovery.flows.flow import flow_named, flows_of
from airflow_ckpt_provider.recovery.flows.reset import apply_flow_reset, plan_flow_reset
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.backups import bury, stream
from tests.support.checkpoints import contents, plant
from tests.support.flows import stateless
from tests.support.resets import SCRATCH, reset
from tests.support.rewinds import NEWEST, repository, rewind
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.watched_stores import Killed, lives, watched

RAN_TO = NEWEST + 4
FLOW = "_checkpoints/spark_catalog/default/orders/ingest"


def runs(orders: Location, newest: int = RAN_TO) -> None:
    """The stream is started and commits batches."""
    there = contents(orders)
    plant(orders, {path: data for path, data in stream(newest).items() if path not in there})


def undone(orders: Location, plan_id: str, held: Repository | None = None) -> int | None:
    undo(orders, held or repository(orders), plan_id=plan_id, rest=STOPPED)
    return Checkpoint.at(orders).progress().latest_committed


def refused(orders: Location, plan_id: str, match: str, error: type[CkptError] = RefusedError) -> str:
    """An undo is refused, and changes nothing; its hint."""
    before = contents(orders)
    with pytest.raises(error, match=match) as raised:
        undo(orders, repository(orders), plan_id=plan_id, rest=STOPPED)
    assert contents(orders) == before
    return str(raised.value.hint)


@pytest.fixture
def twice(orders: Location) -> tuple[str, str]:
    """Rewound to batch 3, run on, and rewound to the same batch: the same files are there after both."""
    first = rewind(orders, "to_batch", 3).plan_id
    left = inspect_target(orders).fingerprint
    runs(orders)
    second = rewind(orders, "to_batch", 3).plan_id
    assert inspect_target(orders).fingerprint == left
    return first, second


def test_the_later_one_has_to_be_undone_first(orders: Location, twice: tuple[str, str]) -> None:
    """The rows of batches 7 to 10 came again: their commits were removed, and the sink had them."""
    first, second = twice
    hint = refused(
        orders, first, f"rewind {second} of {orders} was carried out since rewind {first} and is not undone: it may"
    )
    assert hint == f"undo that one first: `airflow-ckpt undo {orders} --plan {second} --sink foreachBatch`"
    assert undone(orders, second) == RAN_TO
    refused(orders, first, "the stream was started")


def test_two_resets_of_one_place(orders: Location) -> None:
    first = reset(orders, SCRATCH, accept=ACCEPTED).plan_id
    assert not contents(orders)
    runs(orders, 1)
    second = reset(orders, SCRATCH, accept=ACCEPTED).plan_id
    assert not contents(orders)
    hint = refused(orders, first, f"reset {second} of {orders} was carried out since reset {first}")
    assert hint == f"undo that one first: `airflow-ckpt undo {orders} --plan {second}`"
    assert undone(orders, second) == 1
    refused(orders, first, "the stream was started")


def test_another_kind_and_another_name_of_the_place(tmp_path: Path) -> None:
    orders = plant(open_location(str(tmp_path / "data" / "orders")), stream(NEWEST))
    (tmp_path / "link").symlink_to(tmp_path / "data")
    named_otherwise = open_location(str(tmp_path / "link" / "orders"))
    first = reset(orders, SCRATCH, accept=ACCEPTED).plan_id
    runs(orders, 1)
    second = reset(named_otherwise, SCRATCH, accept=ACCEPTED, held=repository(orders)).plan_id
    refused(orders, first, f"reset {second} of .* was carried out since")


def test_the_next_version_of_a_flow(place: Location) -> None:
    """While it is live, the former version and its sink stay as they were when it was made."""
    storage = place / "pipeline"
    former = plant(storage / f"{FLOW}/0", stateless())
    before, held = contents(former), repository(former)
    first = rewind(former, "to_batch", 1).plan_id
    plan = plan_flow_reset(flow_named(flows_of(storage), "ingest"), keep_position=True, sink=Sink(kind="foreachBatch"))
    second = apply_flow_reset(plan, repository=held, rest=STOPPED, accept=ACCEPTED).plan_id
    refused(former, first, f"flow-reset {second} of {former} was carried out since rewind {first}")
    undo(former, held, plan_id=second, rest=STOPPED)
    undo(former, held, plan_id=first, rest=STOPPED)
    assert contents(former) == before


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_one_after_the_other_also_if_an_undo_is_killed(place: Location, step: int) -> None:
    for life in lives(range(1, 200, step), least=3):
        orders = plant(place / f"{life.writes}" / "orders", stream(NEWEST))
        before = contents(orders)
        first, second = (rewind(orders, "to_batch", batch).plan_id for batch in (5, 3))
        dying, held = watched(orders, life.before)[0], watched(repository(orders).location, life.before)[0]
        with suppress(Killed):
            undone(dying, second, Repository.open(held))
        if life.dead:
            bury(orders)
            if inspect_target(orders).seal or Checkpoint.at(orders).progress().latest_committed != 5:
                with pytest.raises((RefusedError, SealedError)):
                    undone(orders, first)
        assert undone(orders, second) == 5
        assert undone(orders, first) == NEWEST
        assert contents(orders) == before


class TestWithoutARecord:
    """The later change was killed, and somebody has lifted its seal."""

    def killed(self, orders: Location, at: str) -> None:
        """Rewind, in a process that dies before the first request of a kind under its seal; then lift the seal."""

        def die(operation: str, path: str) -> None:
            if f"{operation} {path}".startswith(at) and inspect_target(orders).seal:
                raise Killed(path)

        dying = watched(orders, die)[0]
        held = watched(repository(orders).location, die)[0]
        from tests.support import rewinds

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(rewinds, "repository", lambda _: Repository.open(held))
            with pytest.raises(Killed):
                rewind(dying, "to_batch", 3)
        bury(orders)
        mark = inspect_target(orders).seal
        assert mark is not None
        remove_seal(orders, mark)

    def test_one_that_was_through_but_for_its_record(self, orders: Location) -> None:
        first = rewind(orders, "to_batch", 3).plan_id
        runs(orders)
        self.killed(orders, f"create {repository(orders).location.root}/audit/")
        hint = refused(orders, first, f"was begun since rewind {first} and has no audit record")
        assert f"undo that one first: `airflow-ckpt undo {orders} --plan " in hint
        second = hint.partition("--plan ")[2].partition(" ")[0]
        assert f"move plans/{second}.json out of the repository; then run the same undo again" in hint
        assert undone(orders, second) == RAN_TO

    def test_one_that_has_changed_nothing(self, orders: Location) -> None:
        """Its files were set aside, and none was removed."""
        first = rewind(orders, "to_batch", 5).plan_id
        self.killed(orders, f"delete_listed {orders.root}/")
        assert undone(orders, first) == NEWEST

    def test_one_that_was_given_up_before(self, orders: Location) -> None:
        self.killed(orders, f"delete_listed {orders.root}/")
        first = rewind(orders, "to_batch", 3).plan_id
        assert undone(orders, first) == NEWEST

    def test_the_record_was_removed(self, orders: Location, twice: tuple[str, str]) -> None:
        first, second = twice
        held = repository(orders).location
        held.delete(next(path for path in held.walk("audit") if second in path))
        refused(orders, first, f"rewind {second} of {orders} was begun since rewind {first} and has no audit record")
        assert undone(orders, second) == RAN_TO


class TestWhatIsDamagedOrForged:
    def record(self, orders: Location, plan_id: str) -> str:
        return next(p for p in repository(orders).location.walk("audit") if p.endswith(f"-{plan_id}.json"))

    def test_the_record_is_damaged(self, orders: Location, twice: tuple[str, str]) -> None:
        first, second = twice
        path = self.record(orders, second)
        repository(orders).location.replace(path, b"{")
        assert "Without one, move it out" in refused(orders, first, f"{path} cannot be read", RepositoryError)

    def test_the_plan_is_missing(self, orders: Location, twice: tuple[str, str]) -> None:
        first, second = twice
        repository(orders).location.delete(f"plans/{second}.json")
        hint = refused(orders, first, f"by its audit record, and {repository(orders).location} keeps no plan of it")
        assert hint.startswith(f"put plans/{second}.json back from a copy of the repository. If the record is forged")

    @pytest.mark.parametrize(
        "wrong", [{}, {"of": ["x"]}, {"after": 5}, {"observed": 7}, {"plan": None}, {"attempt": []}], ids=str
    )
    def test_a_record_is_forged(self, orders: Location, wrong: dict[str, Any]) -> None:
        """It does not make an undo impossible: what the error says leads out."""
        first = rewind(orders, "to_batch", 3).plan_id
        held = repository(orders).location
        true = json.loads(held.read(self.record(orders, first)))
        forged = "audit/29991231T235959Z-x.json"
        at = "2999-12-31T23:59:59+00:00"
        held.create(forged, json.dumps({**true, "plan_id": "x", "at": at, **wrong}).encode())
        hint = refused(
            orders, first, f"{orders} was changed by rewind x at 2999-12-31 23:59:59 UTC, since rewind {first}"
        )
        assert "move it (audit/…-x.json) out of the repository; then run the same undo again" in hint
        held.delete(forged)
        assert undone(orders, first) == NEWEST

    def test_the_record_of_an_undo_is_forged(self, orders: Location) -> None:
        first = rewind(orders, "to_batch", 3).plan_id
        held = repository(orders).location
        true = json.loads(held.read(self.record(orders, first)))
        forged = {**true, "kind": "undo", "of": ["x"], "plan_id": "x", "at": "2999-12-31T23:59:59+00:00"}
        held.create("audit/29991231T235959Z-x.json", json.dumps(forged).encode())
        assert undone(orders, first) == NEWEST


def test_a_change_between_the_plan_of_an_undo_and_its_fence(orders: Location) -> None:
    """The process that undoes was suspended, and finds the files that it expects."""
    first, done = rewind(orders, "to_batch", 3).plan_id, []

    def meanwhile(operation: str, path: str) -> None:
        if "/changes/" in path and not done:
            done.append(path)
            runs(orders)
            done.append(rewind(orders, "to_batch", 3).plan_id)

    held = watched(repository(orders).location, meanwhile)[0]
    with pytest.raises(RefusedError, match="was carried out since rewind"):
        undone(orders, first, Repository.open(held))
    assert inspect_target(orders).seal is None
    assert undone(orders, done[-1]) == RAN_TO
