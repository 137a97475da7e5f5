"""What the sensor says of real streams: it must agree with what Spark did."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_ckpt_provider.change.sealing import seal, unseal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.conditions import Condition, Wait
from airflow_ckpt_provider.checkpoint.health import compare, measure
from airflow_ckpt_provider.checkpoint.waiting import Answer, State, look
from airflow_ckpt_provider.checkpoint.waiting_memory import Memory
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.streams.data import put_files
from tests.support.streams.spark_host import Run, SparkHost

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Watch:
    """One wait; its memory goes from look to look."""

    def __init__(self, place: Path, kind: str, value: int | None = None, **limits: float | bool) -> None:
        times = {k: timedelta(seconds=v) for k, v in limits.items() if k != "missing_ok"}
        self.location: Location = open_location(str(place))
        self.wait = Wait(Condition(kind, value).check(), missing_ok=bool(limits.get("missing_ok")), **times)  # type: ignore[arg-type]
        self.memory = Memory()

    def look(self) -> Answer:
        answer, self.memory = look(self.location, self.wait, self.memory)
        return answer

    def until(self, state: State, *, within: float = 60.0) -> Answer:
        """Look until there is an answer, which has to be this one."""
        deadline = time.monotonic() + within
        while (answer := self.look()).state is State.WAITING:
            assert time.monotonic() < deadline, answer.message
            time.sleep(0.05)
        assert answer.state is state, answer.message
        return answer


def _until(condition: Callable[[], bool], within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _start(host: SparkHost, kind: str, root: Path) -> Run:
    return host.start(kind, source=root / "in", checkpoint=root / "ck", out=root / "out")


def test_from_before_the_first_batch_to_drained(spark_host: SparkHost, tmp_path: Path) -> None:
    """A stream that purges its logs (three batches are kept) is waited for, drained, and found drained at once."""
    place = tmp_path / "ck"
    put_files(tmp_path / "in", 12)
    coming = Watch(place, "progressed_by", 5, missing_ok=True)
    assert "there is no checkpoint yet" in coming.look().message
    run = _start(spark_host, "agg_rocksdb", tmp_path)
    coming.until(State.DONE)
    found = Watch(place, "drained", quiet_for=1.0, stuck_after=30).until(State.DONE).progress
    assert (found["latest_logged"], found["latest_committed"], found["gap"]) == (11, 11, 0)
    assert found["sources"][0]["offset"] == {"logOffset": 11}
    # On a quick machine all that is retained was committed within a moment, which is no window for a rate.
    assert found["batches_per_minute"] is None or found["batches_per_minute"] > 0
    assert len(list((place / "commits").glob("[0-9]*"))) < 12, "nothing was purged: the test shows less than it says"

    idle = Watch(place, "committed_batch", 12, stuck_after=0.5)
    idle.look()
    time.sleep(0.6)  # longer than stuck_after: this is what it is about
    assert idle.look().state is State.WAITING, "a stream without new input is not stuck"
    put_files(tmp_path / "in", 1, start=12)
    Watch(place, "committed_batch", 12, stuck_after=30).until(State.DONE)
    run.stop()
    run.finished()
    assert Watch(place, "drained", quiet_for=0.0).look().state is State.DONE


def test_sealed(spark_host: SparkHost, tmp_path: Path) -> None:
    put_files(tmp_path / "in", 40)
    place = tmp_path / "ck"
    run = _start(spark_host, "stateless", tmp_path)
    Watch(place, "committed_batch", 2, missing_ok=True).until(State.DONE)
    watch = Watch(place, "drained", quiet_for=3600.0, stuck_after=3600.0)
    assert watch.look().state is State.WAITING
    checkpoint = Checkpoint.at(watch.location)
    mark = seal(checkpoint, reason="a deployment", made_by="the test", plan_id="plan")
    answer = watch.until(State.DONE)
    assert answer.progress["latest_committed"] == answer.progress["latest_logged"] == mark.batch_id - 1
    assert answer.progress["sealed"] == mark.sentence
    assert "sealed by plan plan (a deployment, the test)" in answer.message
    run.wait()
    unseal(checkpoint, plan_id="plan")


def test_history_rewritten_during_the_wait(spark_host: SparkHost, tmp_path: Path) -> None:
    """Rewound by two batches and run on: the numbers are soon as high as before, the past is another one."""
    put_files(tmp_path / "in", 6)
    place = tmp_path / "ck"
    run = _start(spark_host, "stateless", tmp_path)
    watch = Watch(place, "committed_batch", 99, missing_ok=True)
    Watch(place, "committed_batch", 5, missing_ok=True).until(State.DONE)
    assert watch.look().progress["latest_committed"] == 5
    run.stop()
    run.finished()
    for log in ("offsets", "commits"):
        for batch in (5, 4):
            (place / log / str(batch)).unlink()
            (place / log / f".{batch}.crc").unlink(missing_ok=True)
    # What the file source had noted for both batches is read as one, with one file more; so it takes further input to bring
    # the numbers to where they were.
    put_files(tmp_path / "in", 3, start=6)
    again = _start(spark_host, "stateless", tmp_path)
    Watch(place, "committed_batch", 5).until(State.DONE)
    answer = watch.look()
    assert answer.state is State.WENT_BACK
    again.stop()


@pytest.fixture
def own_host(tmp_path: Path) -> Iterator[SparkHost]:
    """A Spark that may be frozen."""
    host = SparkHost(tmp_path / "spark.log")
    yield host
    host.kill()


@pytest.mark.slow
def test_frozen_stream_is_stuck_and_goes_on(own_host: SparkHost, tmp_path: Path) -> None:
    """SIGSTOP while a batch is under way; also the gaps of async progress tracking and its drain, in the same Spark."""
    put_files(tmp_path / "in", 3000)
    place = tmp_path / "ck"
    _start(own_host, "agg_hdfs", tmp_path)
    Watch(place, "committed_batch", 3, missing_ok=True).until(State.DONE, within=120)
    baseline = measure(open_location(str(place)), batches=3, with_query_id=True)
    watch = Watch(place, "progressed_by", 10_000, stuck_after=2.0)

    def freeze() -> bool:
        """Frozen between a logged batch and its commit, or let go again."""
        os.killpg(own_host.process.pid, signal.SIGSTOP)
        if watch.look().progress["uncommitted"] == 1:
            return True
        os.killpg(own_host.process.pid, signal.SIGCONT)
        return False

    _until(freeze)
    answer = watch.until(State.STUCK)
    batch = answer.progress["latest_logged"]
    assert f"is stuck: batch {batch} was begun and is not committed" in answer.message
    os.killpg(own_host.process.pid, signal.SIGCONT)
    after = Watch(place, "committed_batch", batch + 4, stuck_after=30.0)
    after.until(State.DONE)
    now = measure(open_location(str(place)), batches=3, after=batch)
    assert all(check.ok is not False for check in compare(baseline, now, duration_within=1000, input_within=None))

    async_root = tmp_path / "async"
    gaps = Watch(async_root / "ck", "committed_batch", 8, missing_ok=True, stuck_after=30.0)
    run = _start(own_host, "async_progress", async_root)
    found = gaps.until(State.DONE).progress
    ids = sorted(int(f.name) for f in (async_root / "ck" / "commits").glob("[0-9]*"))
    assert ids != list(range(ids[0], ids[-1] + 1)), "no gap: the test shows less than it says"
    assert found["uncommitted"] <= 1
    Watch(async_root / "ck", "max_gap", 1).until(State.DONE)
    run.stop()
    run.finished()
    Watch(async_root / "ck", "drained", quiet_for=0.5, stuck_after=30.0).until(State.DONE)
