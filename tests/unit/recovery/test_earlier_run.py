"""A sink holds batches that an earlier run of the query wrote: it has skipped what the checkpoint counts as written."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.manifest import PINNED_AT, Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.flows.flow import flow_named, flows_of
from airflow_ckpt_provider.recovery.flows.restore import plan_flow_restore
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.restore.sink import sink_says
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.replay_proof import prove_replay
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.earlier_run import OF_ANOTHER_CLOCK, of_a_later_run, of_an_earlier_run
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.checkpoints import batch_metadata, commit_log, compact, file_source_log, logs, offsets_log, plant
from tests.support.delta_batches import append
from tests.support.flows import stateless
from tests.support.resets import KEEP, file_sink, plan_of
from tests.support.stopped import ACCEPTED, STOPPED

RESTORED = 3


@pytest.fixture
def table(tmp_path: Path) -> Location:
    for batch in range(7):
        append(tmp_path / "t", batch)
    return open_location(str(tmp_path / "t"))


@pytest.fixture
def orders(tmp_path: Path, table: Location) -> Location:
    """It ran up to batch 6, was restored to batch 3, and has planned batches 4 and 5 anew: the table skipped them."""
    place = plant(open_location(str(tmp_path / "orders")), logs(range(RESTORED + 1)))
    for batch in (4, 5):
        plan_anew(place, batch)
    return place


def plan_anew(place: Location, batch: int) -> None:
    about = batch_metadata(batch) | {"batchTimestampMs": time.time_ns() // 1_000_000 + 1000 * batch}
    plan(place, batch, about)


def plan(place: Location, batch: int, about: dict[str, Any]) -> None:
    entry = offsets_log(compact({"logOffset": batch}), metadata=about)
    found = {f"offsets/{batch}": entry, f"commits/{batch}": commit_log(), f"sources/0/{batch}": file_source_log(batch)}
    plant(place, found)


def rewound(orders: Location, table: Location, kind: str, value: str = "", **options: Any) -> RewindPlan:
    options.setdefault("sink_exit", SinkPolicy.ROLLBACK)
    return plan_rewind(Checkpoint.at(orders), Specifier(kind, value), sink=Sink(place=table), guards=(), **options)


@pytest.mark.parametrize("kind", ["to_latest", "to_current"])
def test_a_rewind_to_such_a_batch_is_not_safe(orders: Location, table: Location, kind: str) -> None:
    to_it = rewound(orders, table, kind)
    assert to_it.sink_verdict is Verdict.UNKNOWN
    assert any(
        "what the sink has of batches 4 to 5 is older than the plan of that batch" in reason for reason in to_it.reasons
    )


def test_a_rewind_to_the_batch_before_them_is(orders: Location, table: Location) -> None:
    before_them = rewound(orders, table, "to_batch", str(RESTORED))
    assert before_them.sink_verdict is Verdict.SAFE
    assert before_them.sink.rollback is not None
    assert before_them.sink.rollback.to_version == RESTORED


def test_the_stream_has_passed_them(orders: Location, table: Location, tmp_path: Path) -> None:
    """Batches that the table wrote anew do not hide those that it skipped."""
    plan_anew(orders, 6)
    plan(orders, 7, batch_metadata(7))
    append(tmp_path / "t", 7)
    kept = rewound(orders, table, "to_current", sink_exit=SinkPolicy.ACCEPT)
    assert kept.sink_verdict is Verdict.UNKNOWN
    assert any("what the sink has of batches 4 to 6 is older" in reason for reason in kept.reasons)
    with pytest.raises(RefusedError, match="cannot be rolled back to batch 7: what the sink has of batches 4 to 6"):
        rewound(orders, table, "to_current")


def test_a_reset_that_keeps_the_position(orders: Location, table: Location) -> None:
    orders.delete("offsets/5")
    orders.delete("commits/5")
    plan_anew(orders, 5)
    plan_anew(orders, 6)
    cutover = plan_of(orders, KEEP, sink=Sink(place=table)).cutover
    assert cutover.verdict is Verdict.UNKNOWN
    assert "what the sink has of batches 4 to 6 is older than the plan" in cutover.reasons[0]
    assert plan_of(orders, KEEP, sink=Sink(place=table), batch_id=RESTORED).cutover.verdict is Verdict.WILL_DUPLICATE


def test_a_batch_that_ran_again_as_it_was_planned(tmp_path: Path, table: Location) -> None:
    """The control: its commit is newer than its plan."""
    place = plant(open_location(str(tmp_path / "other")), logs(range(7)))
    assert rewound(place, table, "to_current").sink_verdict is Verdict.SAFE
    assert plan_of(place, KEEP, sink=Sink(place=table)).cutover.verdict is Verdict.SAFE


def test_a_restore_of_a_backup_that_has_them(orders: Location, tmp_path: Path) -> None:
    for batch in range(6):
        append(tmp_path / "to 5", batch)
    made = create_backup(Checkpoint.at(orders), Repository.open_or_create(open_location(str(tmp_path / "r")))).manifest
    table, target = open_location(str(tmp_path / "to 5")), open_location(str(tmp_path / "empty"))
    answer = sink_says(Sink(place=table), made, target)
    assert answer is not None
    assert answer.verdict is Verdict.UNKNOWN
    assert any("what the sink has of batch 5 is older than the plan" in reason for reason in answer.reasons)


def test_a_file_sink(orders: Location, tmp_path: Path) -> None:
    """Its log goes by the time of its entries."""
    out = file_sink(tmp_path / "out", 6)
    for kind in ("to_latest", "to_current"):
        to_it = rewound(orders, out, kind)
        assert to_it.sink_verdict is Verdict.UNKNOWN
        assert any("what the sink has of batches 4 to 5 is older" in reason for reason in to_it.reasons)
    before_them = rewound(orders, out, "to_batch", str(RESTORED))
    assert (before_them.sink_verdict, before_them.sink.doubts) == (Verdict.SAFE, ())
    plan_anew(orders, 6)
    cutover = plan_of(orders, KEEP, sink=Sink(place=out), continue_numbers=True).cutover
    assert cutover.verdict is Verdict.UNKNOWN
    assert "what the sink has of batches 4 to 6 is older" in cutover.reasons[0]


def test_a_store_with_whole_seconds() -> None:
    """Amazon S3 gives the second in which a file was written."""
    written, planned = (
        datetime(2026, 11, 27, 8, 30, 0, tzinfo=UTC),
        datetime(2026, 11, 27, 8, 30, 0, 900_000, tzinfo=UTC),
    )
    assert of_an_earlier_run({4: written}, {4: planned}, apart=OF_ANOTHER_CLOCK) == ()
    assert of_an_earlier_run({4: written}, {4: planned + OF_ANOTHER_CLOCK}, apart=OF_ANOTHER_CLOCK)
    assert of_an_earlier_run({4: written}, {4: planned})


class TestABackupFromBeforeAnotherRun:
    """Backup at batch 5, rewind to 3, and batches 4 and 5 written again: a restore of the backup was SAFE."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Location:
        return plant(open_location(str(tmp_path / "ck")), logs(range(6)))

    @pytest.fixture
    def held(self, tmp_path: Path) -> Repository:
        return Repository.open_or_create(open_location(str(tmp_path / "r")))

    def backup(self, place: Location, held: Repository, *, seconds_ago: float = 0) -> Manifest:
        """A backup, whose position was read so long before it was."""
        made = create_backup(Checkpoint.at(place), held).manifest
        assert made.pinned_at is not None
        pinned_at = made.pinned_at - timedelta(seconds=seconds_ago)
        return replace(made, facts={**made.facts, PINNED_AT: pinned_at.isoformat()})

    def sink(self, kind: str, tmp_path: Path) -> Sink:
        if kind == "file":
            return Sink(place=file_sink(tmp_path / "out", 5))
        for batch in range(6):
            append(tmp_path / "to 5", batch)
        return Sink(place=open_location(str(tmp_path / "to 5")))

    @pytest.mark.parametrize("kind", ["delta", "file"])
    def test_a_restore(self, place: Location, held: Repository, tmp_path: Path, kind: str) -> None:
        sink = self.sink(kind, tmp_path)
        answer = sink_says(sink, self.backup(place, held, seconds_ago=3600), open_location(str(tmp_path / "empty")))
        assert answer is not None
        assert answer.verdict is Verdict.UNKNOWN
        assert any("the sink got batches 0 to 5 after the backup was taken" in reason for reason in answer.reasons)
        control = sink_says(sink, self.backup(place, held), open_location(str(tmp_path / "empty")))
        assert control is not None
        assert control.verdict is Verdict.SAFE

    def test_it_is_not_applied_unless_somebody_accepts_it(
        self, place: Location, held: Repository, tmp_path: Path
    ) -> None:
        """It is UNKNOWN as in a rewind, which asked; a restore went ahead."""
        target = open_location(str(tmp_path / "empty"))
        made = self.backup(place, held, seconds_ago=3600)
        answer = sink_says(self.sink("delta", tmp_path), made, target)
        plan = plan_restore(held, made, target, sink=answer)
        with pytest.raises(RefusedError, match="needs somebody to accept: sink_unknown"):
            apply_restore(plan, rest=STOPPED)
        assert target.walk() == {}
        assert apply_restore(plan, rest=STOPPED, accept=["sink_unknown"]).batch_id == 5

    def test_a_backup_of_an_earlier_version(self, place: Location, held: Repository, tmp_path: Path) -> None:
        """It does not say when its position was read: that was before its end."""
        sink, made = self.sink("delta", tmp_path), self.backup(place, held)
        facts = {name: fact for name, fact in made.facts.items() if name != PINNED_AT}
        for hours, verdict in ((0, Verdict.SAFE), (1, Verdict.UNKNOWN)):
            old = replace(made, facts=facts, created=made.created - timedelta(hours=hours))
            answer = sink_says(sink, old, open_location(str(tmp_path / "empty")))
            assert answer is not None
            assert answer.verdict is verdict

    def test_of_a_flow(self, held: Repository, tmp_path: Path) -> None:
        path = "_checkpoints/spark_catalog/default/orders/ingest"
        storage = open_location(str(tmp_path / "pipeline"))
        plant(storage / f"{path}/0", stateless())
        for batch in range(4):
            append(tmp_path / "to 3", batch)
        sink = Sink(place=open_location(str(tmp_path / "to 3")))
        for seconds_ago, verdict in ((0, Verdict.SAFE), (3600, Verdict.UNKNOWN)):
            made = self.backup(storage / f"{path}/0", held, seconds_ago=seconds_ago)
            plan = plan_flow_restore(flow_named(flows_of(storage), "ingest"), held, made, sink=sink)
            assert plan.cutover.verdict is verdict
            assert ("after the backup was taken" in " ".join(plan.cutover.reasons)) is (verdict is Verdict.UNKNOWN)

    def test_a_sink_without_memory_after_a_rewind(self, place: Location, held: Repository, tmp_path: Path) -> None:
        kafka = Sink(kind="kafka")
        made = self.backup(place, held)
        before = sink_says(kafka, made, place, repository=held)
        assert before is not None
        assert before.verdict is Verdict.SAFE
        checkpoint = Checkpoint.at(place)
        plan = plan_rewind(checkpoint, Specifier("to_batch", "3"), repository=held.location, guards=())
        apply_rewind(plan, checkpoint, held, rest=STOPPED, accept=ACCEPTED)
        at_three = sink_says(kafka, made, place, repository=held)
        assert at_three is not None
        assert "went below" not in " ".join(at_three.reasons)
        plan_anew(place, 4)
        plan_anew(place, 5)
        after = sink_says(kafka, made, place, repository=held)
        assert after is not None
        assert after.verdict is Verdict.WILL_DUPLICATE
        said = " ".join(after.reasons)
        assert f"rewind {plan.plan_id} went below batch 5 after backup {made.backup_id} was taken" in said
        assert "the checkpoint has planned batch 5 at another time than backup" in said

    def test_a_rewind_to_the_backup(self, place: Location, held: Repository, tmp_path: Path) -> None:
        made = create_backup(Checkpoint.at(place), held).manifest
        for batch in (3, 4, 5):
            for name in (f"offsets/{batch}", f"commits/{batch}"):
                place.delete(name)
            plan_anew(place, batch)
        to_it = plan_rewind(
            Checkpoint.at(place),
            Specifier("to_batch", "5"),
            sink=Sink(kind="kafka"),
            repository=held.location,
            backup=made.backup_id,
            guards=(),
        )
        assert to_it.sink_verdict is Verdict.WILL_DUPLICATE
        assert "has planned batch 5 at another time" in to_it.to_markdown()


def test_a_driver_whose_clock_is_a_little_ahead() -> None:
    """A batch that was committed just before the backup."""
    pinned_at = datetime(2026, 11, 28, 3, 0, 0, tzinfo=UTC)
    assert of_a_later_run({4: pinned_at + OF_ANOTHER_CLOCK}, pinned_at) == ()
    assert of_a_later_run({4: pinned_at + 2 * OF_ANOTHER_CLOCK}, pinned_at)
    assert of_a_later_run({4: pinned_at + 2 * OF_ANOTHER_CLOCK}, None) == ()


class TestTheProofOfAReplay:
    """It was "as it has to be" where the sink had skipped the replay."""

    @pytest.mark.parametrize("kind", ["delta", "file"])
    def test_of_batches_that_the_sink_skipped(
        self, orders: Location, table: Location, tmp_path: Path, kind: str
    ) -> None:
        sink = table if kind == "delta" else file_sink(tmp_path / "out", 6)
        proof = prove_replay(Checkpoint.at(orders), RESTORED, sink=Sink(place=sink))
        assert not proof.ok
        (finding,) = proof.findings
        assert finding.startswith("what the sink has of batches 4 to 5 is older than the plan of that batch")

    @pytest.mark.parametrize("kind", ["delta", "file"])
    def test_of_batches_that_were_written(self, table: Location, tmp_path: Path, kind: str) -> None:
        place = plant(open_location(str(tmp_path / "other")), logs(range(7)))
        sink = table if kind == "delta" else file_sink(tmp_path / "out", 6)
        proof = prove_replay(Checkpoint.at(place), RESTORED, sink=Sink(place=sink))
        assert (proof.ok, proof.findings) == (True, ())

    def test_of_a_file_sink_that_lacks_a_batch(self, tmp_path: Path) -> None:
        place = plant(open_location(str(tmp_path / "other")), logs(range(7)))
        out = file_sink(tmp_path / "out", 6)
        out.delete("_spark_metadata/5")
        proof = prove_replay(Checkpoint.at(place), RESTORED, sink=Sink(place=out))
        assert not proof.ok
        assert "_spark_metadata has no entry of batch 5" in proof.findings[0]
