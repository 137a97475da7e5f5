"""What a look costs, and what it returns."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_ckpt_provider.checkpoint.waiting import State, look
from airflow_ckpt_provider.checkpoint.waiting_memory import Memory
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import commit_log, metadata, offsets_log
from tests.support.timed_store import NOON, Stream, at
from tests.support.watched_gaps import Watch, one_look, seal, wait_for
from tests.support.watched_stores import watched


def long_log(batches: int) -> Stream:
    stream = Stream().start()
    entry, done = offsets_log("1", metadata={}), commit_log()
    for batch in range(batches):
        stream.store.files[f"/ck/orders/offsets/{batch}"] = (entry, NOON)
        stream.store.files[f"/ck/orders/commits/{batch}"] = (done, NOON)
    return stream


def test_cost_of_a_hundred_thousand_batches() -> None:
    watch = Watch(long_log(100_000), wait_for(quiet_for=timedelta(hours=1)))
    assert watch.states(61) == ["done"]
    assert watch.cost == [(2, 1)]


@pytest.mark.parametrize("batches", [1, 1000])
@pytest.mark.parametrize("kind", ["drained", "progressed_by", "committed_batch"])
def test_cost(batches: int, kind: str) -> None:
    stream = long_log(batches)
    value = {"drained": None, "progressed_by": 2, "committed_batch": batches + 1}[kind]
    watch = Watch(stream, wait_for(kind, value, quiet_for=timedelta(hours=20)))
    watch.states(1, 2)
    for batch in (batches, batches + 1):
        stream.log(batch, at(3))
        watch.look(at(3))
        stream.commit(batch, at(3))
        watch.look(at(3.1))
    answer = watch.look(at(3000))
    assert answer.state is State.DONE
    assert answer.progress["latest_committed"] == batches + 1
    assert all(lists == 2 and reads <= 1 for lists, reads in watch.cost), watch.cost


def test_cost_under_a_seal() -> None:
    """One read more than elsewhere, once: the entry below the seal, for the report."""
    stream = Stream().start().ran(range(6))
    seal(stream, 6)
    watch = Watch(stream, wait_for("progressed_by", 9))
    watch.states(11, 12, 13)
    assert watch.cost == [(2, 1)] * 3
    watch = Watch(stream, wait_for())
    assert watch.states(11) == ["done"]
    assert watch.cost == [(2, 2)]


def test_result() -> None:
    stream = Stream().start().ran(range(6))
    answer = one_look(stream, wait_for(quiet_for=timedelta(0)), at(6))
    assert answer.progress == {
        "checkpoint": "memory://ck/orders",
        "latest_logged": 5,
        "latest_committed": 5,
        "gap": 0,
        "uncommitted": 0,
        "batch_time": "2024-11-21T01:50:16.395000+00:00",
        "logged_at": "2026-11-21T12:05:00+00:00",
        "committed_at": "2026-11-21T12:05:10+00:00",
        "seconds_since_commit": 50.0,
        "batches_per_minute": 1.0,
        "sources": [{"index": 0, "kind": "kafka", "offset": {"orders": {"0": 600}}}],
        "sealed": None,
    }


def test_rate_is_not_known_of_a_checkpoint_that_was_restored() -> None:
    stream = Stream().start()
    for batch in range(5):
        stream.log(batch, at(9)).commit(batch, at(9))
    assert one_look(stream, wait_for(quiet_for=timedelta(0)), at(10)).progress["batches_per_minute"] is None


def test_an_entry_that_is_purged_between_listing_and_reading() -> None:
    stream = Stream().start().ran(range(3))

    def before(operation: str, path: str) -> None:
        if operation == "read" and path.endswith("offsets/2"):
            stream.drop("offsets/0", "offsets/1", "offsets/2", "commits/0", "commits/1").ran(range(3, 5))

    location, _ = watched(stream.location, before)
    answer, memory = look(location, wait_for(quiet_for=timedelta(0)), Memory(), now=at(9))
    assert answer.state is State.WAITING
    assert look(location, wait_for(quiet_for=timedelta(0)), memory, now=at(10))[0].state is State.DONE


def test_a_stream_that_moves_between_the_two_listings_never_looks_further_than_it_is() -> None:
    stream = Stream().start().ran(range(3)).log(3)

    def before(operation: str, path: str) -> None:
        if operation == "list" and path.endswith("offsets"):
            stream.commit(3).log(4)

    location, _ = watched(stream.location, before)
    answer, _ = look(location, wait_for(quiet_for=timedelta(0)), Memory(), now=at(4))
    assert (answer.state, answer.progress["gap"]) == (State.WAITING, 2)


def test_memory_of_a_newer_version_is_understood() -> None:
    assert Memory.from_json({"base": 3, "something_new": 1}) == Memory(base=3)
    assert Memory.from_json(None) == Memory()


def test_place_is_named_whatever_the_store() -> None:
    stream = Stream()
    assert isinstance(stream.location, Location)
    stream.put("metadata", metadata(), NOON)
    assert "memory://ck/orders" in one_look(stream, wait_for("committed_batch", 1), NOON).message
