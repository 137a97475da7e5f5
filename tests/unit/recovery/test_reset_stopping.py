"""reset: a query that still runs is stopped by the seal."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from airflow_ckpt_provider.change.sealing import seal
from airflow_ckpt_provider.change.stopping import stop_plan_and_apply
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError, SealedError
from airflow_ckpt_provider.recovery.reset.apply import ResetOutcome, apply_reset
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import stream
from tests.support.checkpoints import contents
from tests.support.resets import NEWEST, RENAME, SEED, plan_of, repository, reset
from tests.support.restores import loud_seal
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed, Life, watched


def stop_and_reset(orders: Location, plan: Callable[[str | None], ResetPlan]) -> tuple[ResetPlan, ResetOutcome]:
    held = repository(orders)
    apply = functools.partial(apply_reset, checkpoint=orders, repository=held)
    return stop_plan_and_apply(orders, held, plan, apply, change="reset", stop_running=True, rest=STOPPED)


def test_a_running_query_is_stopped_by_the_seal(orders: Location) -> None:
    def plan(seal_id: str | None) -> ResetPlan:
        assert seal_id is not None
        assert loud_seal(orders)
        return plan_of(orders, seal_id=seal_id)

    _, outcome = stop_and_reset(orders, plan)
    assert outcome.start == NEWEST
    assert set(contents(orders)) == {SEED}


def test_a_refusal_lifts_the_seal_that_stopped_the_query(orders: Location) -> None:
    with pytest.raises(RefusedError, match=r"needs somebody to accept: sink_unknown \("):
        stop_and_reset(orders, lambda seal_id: plan_of(orders, sink=Sink(), seal_id=seal_id))
    assert set(contents(orders)) == set(stream(NEWEST))


def test_a_seal_of_somebody_else_is_no_permission_to_go_on(orders: Location) -> None:
    """Not for a reset that may stop the query, nor for a rewind."""
    mine = seal(Checkpoint.at(orders), reason="mine", plan_id="beef")
    checkpoint, held = Checkpoint.at(orders), repository(orders)
    with pytest.raises(SealedError, match="sealed by plan beef"):
        stop_and_reset(orders, lambda seal_id: plan_of(orders, seal_id=seal_id))
    sink = Sink(kind="foreachBatch")

    def rewind(seal_id: str | None) -> RewindPlan:
        back = Specifier("to_batch", "4")
        return plan_rewind(checkpoint, back, sink=sink, sink_exit=SinkPolicy.ACCEPT, seal_id=seal_id)

    apply = functools.partial(apply_rewind, checkpoint=checkpoint, repository=held, sink=sink)
    with pytest.raises(SealedError, match="sealed by plan beef"):
        stop_plan_and_apply(orders, held, rewind, apply, change="rewind", stop_running=True, rest=STOPPED)
    still = checkpoint.progress().seal
    assert still
    assert (still.plan_id, still.path) == (mine.plan_id, mine.path)
    assert set(contents(orders)) == {*stream(NEWEST), mine.path}


def test_a_half_done_reset_is_not_taken_for_a_stopped_query(orders: Location) -> None:
    dying, _ = watched(orders, Life(6).before)
    repository(orders)
    with pytest.raises(Killed):
        stop_and_reset(dying, lambda seal_id: plan_of(dying, seal_id=seal_id))
    assert loud_seal(orders)
    with pytest.raises(SealedError, match=r"a reset \(keep-position\) that was not ended"):
        stop_and_reset(orders, lambda seal_id: plan_of(orders, RENAME, seal_id=seal_id))
    assert loud_seal(orders)
    assert reset(orders).start == NEWEST
