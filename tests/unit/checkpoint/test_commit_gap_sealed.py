"""Waiting for a checkpoint that is sealed."""

from __future__ import annotations

from datetime import timedelta

from airflow_ckpt_provider.checkpoint.waiting import State
from tests.support.timed_store import Stream, at
from tests.support.watched_gaps import Watch, one_look, seal, wait_for


def test_sealed_is_drained_when_its_newest_batch_is_committed() -> None:
    stream = Stream().start().ran(range(6))
    mark = seal(stream, 6)
    answer = one_look(stream, wait_for(quiet_for=timedelta(hours=1)), at(11))
    assert answer.state is State.DONE, answer.message
    assert answer.message == (
        "memory://ck/orders: drained: newest logged batch 5, newest committed 5; sealed by plan 7f3a (an upgrade, "
        "dag/run/task)"
    )
    assert (answer.progress["latest_logged"], answer.progress["gap"]) == (5, 0)
    assert answer.progress["sealed"] == mark.sentence
    assert answer.progress["sources"] == [{"index": 0, "kind": "kafka", "offset": {"orders": {"0": 600}}}]


def test_sealed_while_its_newest_batch_runs() -> None:
    stream = Stream().start().ran(range(5)).log(5, at(9.9))
    seal(stream, 6)
    watch = Watch(stream, wait_for())
    assert watch.states(11) == ["waiting"]
    stream.commit(5, at(11.1))
    assert watch.states(12) == ["done"]


def test_sealed_with_a_batch_that_nobody_commits_is_stuck() -> None:
    stream = Stream().start().ran(range(5)).log(5)
    seal(stream, 6)
    watch = Watch(stream, wait_for())
    assert watch.states(30) == ["waiting"], "what was read was the seal; what lies below it may be one too"
    answer = watch.look(at(31))
    assert answer.state is State.STUCK
    assert "sealed by plan 7f3a (an upgrade, dag/run/task)" in answer.message


def test_sealed_stream_does_not_progress_and_is_not_stuck() -> None:
    stream = Stream().start().ran(range(6))
    seal(stream, 6)
    watch = Watch(stream, wait_for("progressed_by", 1))
    assert watch.states(11, 60, 120) == ["waiting"] * 3
    assert "sealed by plan 7f3a" in watch.look(at(121)).message
    stream.drop("offsets/6").log(6, at(122)).commit(6, at(123))
    assert watch.states(124) == ["done"]


def test_two_seals() -> None:
    """A restore that raised its seal and was killed before it removed the lower one."""
    stream = Stream().start().ran(range(5))
    seal(stream, 5)
    seal(stream, 9)
    assert Watch(stream, wait_for()).states(60, 61) == ["waiting", "done"]


def test_async_progress_tracking_may_commit_at_the_seal() -> None:
    stream = Stream().start().ran(range(6))
    seal(stream, 6)
    stream.commit(6, at(10.1))
    answer = one_look(stream, wait_for(quiet_for=timedelta(0)), at(11))
    assert (answer.state, answer.progress["latest_logged"]) == (State.DONE, 5)
    assert answer.progress["sealed"] is not None


def test_place_that_is_being_restored_is_not_drained() -> None:
    stream = Stream()
    seal(stream, 6)
    assert Watch(stream, wait_for(quiet_for=timedelta(0))).states(11, 100) == ["waiting", "waiting"]
