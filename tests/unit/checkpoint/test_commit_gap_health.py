"""The pace of a stream, and its comparison with the one before."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from airflow_ckpt_provider.checkpoint.health import Pace, compare, measure
from airflow_ckpt_provider.errors import RefusedError
from tests.support.checkpoints import BEGAN, batch_metadata, compact, offsets_log
from tests.support.timed_store import Stream, at
from tests.support.watched_stores import watched


def pace(seconds: float | None = 10.0, *, coarse: bool = False, **rates: float | None) -> Pace:
    return Pace("ck", "one", 9, 10, seconds, dict(rates) or {"0": 100.0}, coarse)


def run(stream: Stream, batches: range, *, seconds: float = 10.0, rows: int = 600) -> Stream:
    """A batch a minute, with so many records each."""
    for batch in batches:
        about = batch_metadata(batch) | {"batchTimestampMs": BEGAN + 60_000 * batch}
        entry = offsets_log(compact({"orders": {"0": rows * batch, "1": 7}}), metadata=about)
        stream.put(f"offsets/{batch}", entry, at(batch))
        stream.commit(batch, at(batch) + timedelta(seconds=seconds))
    return stream


def test_measured() -> None:
    stream = run(Stream().start(), range(30))
    found = measure(stream.location, batches=20, with_query_id=True)
    assert found == Pace("memory://ck/orders", "one", 29, 20, 10.0, {"0": 10.0}, True)
    assert Pace.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_only_batches_beyond() -> None:
    stream = run(run(Stream().start(), range(20)), range(20, 26), seconds=30.5, rows=1200)
    found = measure(stream.location, batches=20, after=20)
    assert (found.batches, found.batch_id, found.seconds_per_batch, found.whole_seconds) == (5, 25, 30.5, False)
    assert found.input_per_second == {"0": 20.0}


def test_one_slow_batch_does_not_move_the_mean() -> None:
    stream = run(Stream().start(), range(10))
    stream.commit(4, at(500))
    assert measure(stream.location, batches=10).seconds_per_batch == 10.0


@pytest.mark.parametrize(
    ("offsets", "rate"),
    [
        (['{"logOffset":3}', '{"logOffset":9}'], 0.1),
        (['{"offset":100,"timestamp":1}', '{"offset":700,"timestamp":2}'], 10.0),
        (['{"t":{"0":5}}', '{"t":{"0":65,"1":1000},"new":{"0":5}}'], 1.0),
        (["-", '{"logOffset":9}'], None),
        (['{"shard":"a"}', '{"shard":"b"}'], None),
    ],
    ids=["files", "rate per micro-batch", "a partition more", "no offset yet", "opaque"],
)
def test_input_by_kind_of_source(offsets: list[str], rate: float | None) -> None:
    stream = Stream().start()
    for batch, offset in enumerate(offsets):
        about = batch_metadata(batch) | {"batchTimestampMs": BEGAN + 60_000 * batch}
        stream.put(f"offsets/{batch}", offsets_log(offset, metadata=about), at(batch))
        stream.commit(batch)
    assert measure(stream.location, batches=9).input_per_second == {"0": rate}


def test_little_to_measure() -> None:
    assert measure(Stream().start().location, batches=9).batches == 0
    one = measure(run(Stream().start(), range(1)).location, batches=9)
    assert (one.batches, one.seconds_per_batch, one.input_per_second) == (1, 10.0, {})
    untimed = Stream(tells_times=False).start().ran(range(3))
    assert measure(untimed.location, batches=9).seconds_per_batch is None


def test_cost() -> None:
    location, store = watched(run(Stream().start(), range(200)).location)
    measure(location, batches=20)
    assert (store.count("list"), store.count("read"), len(store.requests)) == (2, 2, 4)


@pytest.mark.parametrize(
    ("now", "ok", "change"),
    [
        (pace(10.0), [True, True], [0.0, 0.0]),
        (pace(20.0, **{"0": 50.0}), [True, True], [100.0, -50.0]),
        (pace(20.1, **{"0": 150.0}), [False, True], [101.0, 50.0]),
        (pace(10.0, **{"0": 49.0}), [True, False], [0.0, -51.0]),
        (pace(10.0, **{"0": 0.0}), [True, False], [0.0, -100.0]),
        (pace(None, **{"0": None}), [None, None], [None, None]),
        (pace(10.0, **{"1": 5.0}), [True, None], [0.0, None]),
    ],
)
def test_compared(now: Pace, ok: list[bool | None], change: list[float | None]) -> None:
    checks = compare(pace(), now, duration_within=100.0, input_within=50.0)
    assert [check.ok for check in checks] == ok
    assert [check.change_percent for check in checks] == change
    assert [check.what for check in checks] == ["seconds_per_batch", "input_per_second of source 0"]
    assert all(json.dumps(check.to_json()) and str(check) for check in checks)


def test_short_batches_are_not_compared_to_the_millisecond() -> None:
    for coarse, seconds, ok in ((False, 0.25, True), (False, 0.35, False), (True, 1.0, True), (True, 1.2, False)):
        (check,) = compare(pace(0.1, coarse=coarse), pace(seconds), duration_within=10.0, input_within=None)
        assert check.ok is ok, (coarse, seconds)


@pytest.mark.parametrize(("now", "catching_up", "ok"), [(9.0, False, False), (9.0, True, True), (1.0, True, False)])
def test_more_input_is_no_fault_while_it_catches_up(now: float, catching_up: bool, ok: bool) -> None:
    before, after = pace(**{"0": 4.0}), pace(**{"0": now})
    (check,) = compare(before, after, duration_within=None, input_within=50.0, catching_up=catching_up)
    assert check.ok is ok


def test_nothing_came_in_before() -> None:
    (check,) = compare(pace(**{"0": 0.0}), pace(**{"0": 5.0}), duration_within=None, input_within=50.0)
    assert (check.ok, check.change_percent) == (None, None)
    assert str(check) == "input_per_second of source 0: unknown (baseline 0.0, now 5.0)"


@pytest.mark.parametrize("value", [None, "x", 3, {}, {"checkpoint": "ck"}, []])
def test_a_baseline_that_is_none(value: object) -> None:
    with pytest.raises(RefusedError, match="baseline is"):
        Pace.from_json(value)
