"""A restore to an older batch asks the sink, as a rewind does."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import NotACheckpointError, RefusedError
from airflow_ckpt_provider.recovery.chains.apply import apply_chain
from airflow_ckpt_provider.recovery.chains.plan import ChainPlan
from airflow_ckpt_provider.recovery.chains.planning import plan_chain
from airflow_ckpt_provider.recovery.chains.stream import ChainStream
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.restore.sink import sink_says
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import back_up, repository, stream
from tests.support.checkpoints import metadata, plant
from tests.support.delta_batches import delta_table
from tests.support.replaced_queries import OTHER
from tests.support.stopped import ACCEPTED, STOPPED


@pytest.mark.parametrize(("newest", "verdict"), [(4, Verdict.SAFE), (6, Verdict.WILL_SKIP)])
def test_a_table(place: Location, tmp_path: Path, newest: int, verdict: Verdict) -> None:
    sink = Sink(place=delta_table(tmp_path / "table", range(newest + 1)))  # what a backup has was written before it
    manifest = back_up(place, stream(4)).manifest
    target = place / "target"
    plan = plan_restore(repository(place), manifest, target, sink=sink_says(sink, manifest, target))
    assert plan.verdict is verdict
    assert not any("not read" in reason for reason in plan.reasons)
    if verdict is Verdict.SAFE:
        assert apply_restore(plan, rest=STOPPED).batch_id == 4
        return
    with pytest.raises(
        RefusedError, match=r"needs somebody to accept: sink_skips \(sink: the table holds batches up to 6"
    ) as e:
        apply_restore(plan, rest=STOPPED)
    assert (
        "accept it, restore, do not start the query, and rewind what was restored: "
        f"`airflow-ckpt rewind {target.uri} --to-batch 4 --repository {place / 'backups'} --sink {tmp_path / 'table'} "
        "--sink-policy rollback`" in (e.value.hint or "")
    )
    assert "--accept sink_skips" in (e.value.hint or "")
    assert target.walk() == {}
    assert apply_restore(plan, rest=STOPPED, accept=ACCEPTED).batch_id == 4
    again = plan_restore(repository(place), manifest, target, sink=sink_says(sink, manifest, target))
    assert (again.already_done, again.verdict) == (True, verdict)
    with pytest.raises(RefusedError, match="needs somebody to accept: sink_skips"):
        apply_restore(again, rest=STOPPED)  # the query is started after it all the same
    assert apply_restore(again, rest=STOPPED, accept=ACCEPTED).already_done


def test_the_way_that_the_refusal_names(place: Location, tmp_path: Path) -> None:
    """The checkpoint is lost and the table is ahead: it is restored, then rewound where it is, with the table."""
    sink = Sink(place=delta_table(tmp_path / "table", range(7)))
    manifest = back_up(place, stream(4)).manifest
    orders = plant(place / "orders", {"nothing": b"yet"})
    for path in orders.walk():
        orders.delete(path)
    restore = plan_restore(repository(place), manifest, orders, sink=sink_says(sink, manifest, orders))
    with pytest.raises(NotACheckpointError):  # so a rewind alone is no way out of it
        plan_rewind(
            Checkpoint.at(orders), Specifier("to_batch", "4"), sink=sink, sink_exit=SinkPolicy.ROLLBACK, guards=()
        )
    apply_restore(restore, rest=STOPPED, accept=["sink_skips"])
    rewind = plan_rewind(
        Checkpoint.at(orders), Specifier("to_batch", "4"), sink=sink, sink_exit=SinkPolicy.ROLLBACK, guards=()
    )
    assert rewind.sink_verdict is Verdict.SAFE
    apply_rewind(rewind, Checkpoint.at(orders), repository(place), sink=sink, rest=STOPPED)
    after = plan_restore(repository(place), manifest, orders, replace=True, sink=sink_says(sink, manifest, orders))
    assert after.verdict is Verdict.SAFE
    replacing = plant(place / "other", stream(6))
    ahead = Sink(place=delta_table(tmp_path / "ahead", range(7)))
    plan = plan_restore(
        repository(place), manifest, replacing, replace=True, sink=sink_says(ahead, manifest, replacing)
    )
    assert plan.risks
    assert not any("do not start the query" in risk.way for risk in plan.risks)  # there it can be rewound at once


def test_the_checkpoint_is_where_a_rewind_goes_already(place: Location, tmp_path: Path) -> None:
    """Somebody has put it back by hand: nothing of it changes, and the sink skips batches all the same."""
    sink = Sink(place=delta_table(tmp_path / "table", range(9)))
    orders = plant(place / "orders", stream(6))
    plan = plan_rewind(Checkpoint.at(orders), Specifier("to_batch", "6"), sink=sink, sink_exit=None, guards=())
    assert (plan.already_done, plan.sink_verdict) == (True, Verdict.WILL_SKIP)
    with pytest.raises(RefusedError, match="needs somebody to accept: sink_skips"):
        apply_rewind(plan, Checkpoint.at(orders), repository(place), sink=sink, rest=STOPPED)
    accepted = apply_rewind(plan, Checkpoint.at(orders), repository(place), sink=sink, rest=STOPPED, accept=ACCEPTED)
    assert accepted.already_done


def test_no_sink_named(place: Location) -> None:
    manifest = back_up(place, stream(4)).manifest
    assert sink_says(Sink(), manifest, place / "target") is None
    assert plan_restore(repository(place), manifest, place / "target").verdict is Verdict.UNKNOWN


def test_a_sink_without_memory(place: Location) -> None:
    manifest = back_up(place, stream(4)).manifest
    verdict, reasons, _ = sink_says(Sink(kind="foreachBatch"), manifest, place / "target") or (None, (), ())
    assert verdict is Verdict.WILL_DUPLICATE
    assert reasons[0].startswith("sink: foreachBatch keeps no memory of batches")


def test_a_chain_that_is_there_already(tmp_path: Path) -> None:
    streams = []
    for name, query_id in (("orders", "0d000000-0000-4000-8000-000000000001"), ("returns", OTHER)):
        place = plant(open_location(str(tmp_path / "c" / name)), {**stream(6), "metadata": metadata(query_id)})
        sink = Sink(place=delta_table(tmp_path / name, range(9), app_id=query_id))
        streams.append(ChainStream(name, place, (sink,), (None,)))

    def plan(chain_id: str | None) -> ChainPlan:
        return plan_chain(streams, Specifier("to_latest", ""), guards=(), chain_id=chain_id)

    with pytest.raises(RefusedError, match="needs somebody to accept: sink_skips"):
        apply_chain(streams, plan, rest=lambda _: STOPPED)
    _, outcome = apply_chain(streams, plan, rest=lambda _: STOPPED, accept=ACCEPTED)
    assert outcome.already_done


def test_a_sink_without_memory_is_not_rolled_back(place: Location) -> None:
    """The refusal printed a rewind with ``--sink-policy rollback``, which is refused for such a sink."""
    manifest = back_up(place, stream(4)).manifest
    orders = plant(place / "orders", stream(6))
    sink = Sink(kind="foreachBatch")
    plan = plan_restore(repository(place), manifest, orders, replace=True, sink=sink_says(sink, manifest, orders))
    (risk,) = plan.risks
    assert (risk.word, "airflow-ckpt rewind" in risk.way) == ("sink_duplicates", False)
