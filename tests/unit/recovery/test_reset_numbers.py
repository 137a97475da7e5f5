"""A reset after which the batch numbers continue: what file sinks and tables do with the first batches."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.errors import MissingExtraError
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan
from airflow_ckpt_provider.sinks import delta_sink
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.checkpoints import (
    batch_metadata,
    compact,
    contents,
    file_source_log,
    logs,
    offsets_log,
    plant,
)
from tests.support.delta_batches import append
from tests.support.resets import KEEP, RENAME, SCRATCH, SEED, file_sink, plan_of, reset, seeded_files
from tests.support.stopped import ACCEPTED


@pytest.fixture
def orders(tmp_path: Path) -> Location:
    """Batches 0 to 6, without state."""
    return plant(open_location(str(tmp_path / "orders")), logs(range(7)))


def planned(orders: Location, batch: int) -> None:
    """A batch in which the query was stopped."""
    plant(orders, {path: data for path, data in logs(range(batch + 1)).items() if path.endswith(f"/{batch}")})
    orders.delete(f"commits/{batch}")


def continued(orders: Location, sink: Sink, **options: object) -> ResetPlan:
    return plan_of(orders, KEEP, sink=sink, continue_numbers=True, **options)


class TestFileSink:
    """Spark's log of a file sink needs an entry of every batch: readers fail at a hole, and so does the query."""

    def test_a_batch_that_was_planned_and_not_written(self, orders: Location, tmp_path: Path) -> None:
        planned(orders, 7)
        plan = continued(orders, Sink(place=file_sink(tmp_path / "out", 6)))
        assert (plan.cutover.verdict, plan.start, plan.first_batch) == (Verdict.SAFE, 6, 7)

    def test_a_batch_that_was_written_and_not_committed(self, orders: Location, tmp_path: Path) -> None:
        planned(orders, 7)
        plan = continued(orders, Sink(place=file_sink(tmp_path / "out", 7)))
        assert (plan.cutover.verdict, plan.first_batch) == (Verdict.WILL_DUPLICATE, 8)
        assert plan.cutover.doubled == {"batches": 1}

    def test_a_sink_that_lacks_committed_batches(self, orders: Location, tmp_path: Path) -> None:
        plan = continued(orders, Sink(place=file_sink(tmp_path / "out", 3)))
        assert (plan.cutover.verdict, plan.first_batch) == (Verdict.UNKNOWN, 4)
        assert "has no entry of 3 batches, 4 to 6" in plan.cutover.reasons[0]

    def test_a_log_with_a_hole(self, orders: Location, tmp_path: Path) -> None:
        out = file_sink(tmp_path / "out", 6)
        out.delete("_spark_metadata/1")
        plan = continued(orders, Sink(place=out))
        assert plan.cutover.verdict is Verdict.UNKNOWN
        assert "has no entry of batch 1" in plan.cutover.reasons[0]

    @pytest.mark.parametrize("continue_numbers", [False, True])
    def test_a_log_that_was_emptied(self, orders: Location, tmp_path: Path, continue_numbers: bool) -> None:
        out = file_sink(tmp_path / "out", 3)
        for batch in range(4):
            out.delete(f"_spark_metadata/{batch}")
        (tmp_path / "out/_spark_metadata/.0.crc").write_text("x")  # `rm _spark_metadata/*` leaves it
        plan = plan_of(orders, KEEP, sink=Sink(place=out), continue_numbers=continue_numbers)
        assert (plan.cutover.verdict, plan.first_batch) == (Verdict.UNKNOWN, 0)
        assert "has no entry of 7 batches, 0 to 6" in plan.cutover.reasons[0]
        assert not plan.writes_offsets

    def test_beside_a_table_that_remembers_more(self, orders: Location, tmp_path: Path) -> None:
        for batch in range(9):
            append(tmp_path / "t", batch, app_id="job")
        table = Sink(place=open_location(str(tmp_path / "t")), app_id="job")
        plan = plan_of(orders, KEEP, sink=[table, Sink(place=file_sink(tmp_path / "out", 6))], continue_numbers=True)
        assert plan.first_batch == 9
        of_files = next(cutover for cutover in plan.cutovers if cutover.kind == "file")
        assert of_files.verdict is Verdict.WILL_FAIL
        assert "reaches batch 6, and the new checkpoint's first batch is 9" in of_files.reasons[0]

    def test_two_that_end_alike(self, orders: Location, tmp_path: Path) -> None:
        sinks = [Sink(place=file_sink(tmp_path / name, 6)) for name in ("a", "b")]
        plan = plan_of(orders, KEEP, sink=sinks, continue_numbers=True)
        assert {each.verdict for each in plan.cutovers} == {Verdict.SAFE}


class TestTxnAppId:
    @pytest.fixture
    def table(self, tmp_path: Path) -> Sink:
        """The query writes as job-A; an earlier try wrote batches 0 to 19 as job-B."""
        for app_id, batches in {"job-A": 7, "job-B": 20}.items():
            for batch in range(batches):
                append(tmp_path / "t", batch, app_id=app_id)
        return Sink(place=open_location(str(tmp_path / "t")), app_id="job-A")

    def test_the_numbers_continue_after_what_the_new_one_wrote(self, orders: Location, table: Sink) -> None:
        assert continued(orders, table, new_app_id="job-B").first_batch == 20
        assert continued(orders, table, new_app_id="job-C").first_batch == 7
        assert continued(orders, table).first_batch == 7

    def test_a_new_query_id_with_one_that_wrote_more(self, orders: Location, table: Sink) -> None:
        plan = plan_of(orders, RENAME, sink=table, new_app_id="job-B")
        assert (plan.cutover.verdict, plan.cutover.skipped) == (Verdict.WILL_SKIP, 13)
        assert "this one continues at batch 7, so Delta skips its batches 7 to 19 silently" in plan.reasons[0]

    def test_a_new_query_id_with_one_that_the_table_does_not_know(self, orders: Location, tmp_path: Path) -> None:
        planned(orders, 7)
        for batch in range(8):
            append(tmp_path / "t", batch, app_id="job-A")
        table = Sink(place=open_location(str(tmp_path / "t")), app_id="job-A")
        plan = plan_of(orders, RENAME, sink=table, new_app_id="job-C")
        assert (plan.cutover.verdict, plan.cutover.doubled["batches"]) == (Verdict.WILL_DUPLICATE, 1)
        assert plan_of(orders, RENAME, sink=table).cutover.verdict is Verdict.WILL_SKIP

    @pytest.mark.parametrize("readable", [True, False])
    def test_what_only_a_checkpoint_of_the_log_says(
        self, orders: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readable: bool
    ) -> None:
        """Log clean-up has removed the commits of job-B; without ``deltalake`` nobody knows that it has batches."""
        for app_id, batches in {"job-B": 20, "job-A": 7}.items():
            for batch in range(batches):
                append(tmp_path / "t", batch, app_id=app_id)
        DeltaTable(str(tmp_path / "t")).create_checkpoint()
        for version in range(20):
            (tmp_path / "t" / "_delta_log" / f"{version:020d}.json").unlink()
        if not readable:
            monkeypatch.setattr(delta_sink.delta_client, "remembered", without_deltalake)
        table = Sink(place=open_location(str(tmp_path / "t")), app_id="job-A")
        skips = Verdict.WILL_SKIP if readable else Verdict.UNKNOWN
        assert plan_of(orders, RENAME, sink=table, new_app_id="job-B").cutover.verdict is skips
        assert plan_of(orders, KEEP, sink=table, new_app_id="job-B").cutover.verdict is skips
        continues = continued(orders, table, new_app_id="job-B")
        assert continues.first_batch == (20 if readable else 7)
        assert (continues.cutover.verdict is Verdict.UNKNOWN) or readable
        if not readable:
            assert "whether the table remembers batches of it is not known" in continues.cutover.reasons[0]


def without_deltalake(*_: object, **__: object) -> int:
    raise MissingExtraError("deltalake is not installed")


def test_a_second_reset_before_the_first_batch_is_committed_keeps_what_was_read(orders: Location) -> None:
    reset(orders, KEEP, continue_numbers=True)
    read = seeded_files(orders)
    assert len(read) == 7
    plant(
        orders,
        {
            "offsets/7": offsets_log(compact({"logOffset": 1}), metadata=batch_metadata(7)),
            "sources/0/1": file_source_log(7).replace(b'"batchId":7', b'"batchId":1'),
        },
    )
    before = contents(orders)
    plan = plan_of(orders, KEEP, continue_numbers=True)
    assert plan.sources[0].verdict is Verdict.SAFE
    assert contents(orders) == before
    reset(orders, KEEP, continue_numbers=True, accept=ACCEPTED)
    assert seeded_files(orders) == read
    assert SEED in contents(orders)


def test_from_scratch_with_the_numbers(orders: Location, tmp_path: Path) -> None:
    out = file_sink(tmp_path / "out", 6)
    plan = plan_of(orders, SCRATCH, sink=Sink(place=out), continue_numbers=True)
    assert (plan.cutover.verdict, plan.first_batch) == (Verdict.WILL_DUPLICATE, 7)
