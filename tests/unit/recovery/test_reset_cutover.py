"""reset: the verdict at the cutover, by what the sink remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.sinks.named_tables import Described
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import stream
from tests.support.checkpoints import QUERY_ID, contents, plant
from tests.support.delta_batches import append, batches_in, delta_table
from tests.support.resets import NEWEST, RENAME, SCRATCH, file_sink, plan_of, repository, reset
from tests.support.stopped import STOPPED


class TestTheSeamOfANewCheckpoint:
    def verdict(self, orders: Location, table: Location, **options: Any) -> tuple[Verdict, str]:
        app_id = options.pop("app_id", None)
        plan = plan_of(orders, sink=Sink(place=table, app_id=app_id), **options)
        return plan.cutover.verdict, " ".join(plan.cutover.reasons)

    def test_table_and_checkpoint_agree(self, orders: Location, table: Location) -> None:
        verdict, reason = self.verdict(orders, table)
        assert verdict is Verdict.SAFE
        assert "holds exactly the batches up to 6" in reason
        reset(orders, sink=Sink(place=table))

    def test_an_uncommitted_batch_that_the_table_has_is_not_read_again(self, orders: Location, table: Location) -> None:
        orders.delete(f"commits/{NEWEST}")
        plan = plan_of(orders, sink=Sink(place=table))
        assert (plan.start, plan.verdict) == (NEWEST, Verdict.SAFE)
        assert any("batch 6 was not committed, but the table has it" in note for note in plan.notes)

    def test_an_uncommitted_batch_that_the_table_has_not(self, orders: Location, tmp_path: Path) -> None:
        orders.delete(f"commits/{NEWEST}")
        plan = plan_of(orders, sink=Sink(place=delta_table(tmp_path / "t", range(NEWEST))))
        assert (plan.start, plan.verdict) == (NEWEST - 1, Verdict.SAFE)

    def test_rows_that_the_table_has_come_twice(self, orders: Location, table: Location) -> None:
        plan = plan_of(orders, sink=Sink(place=table), batch_id=3)
        assert plan.cutover.verdict is Verdict.WILL_DUPLICATE
        assert plan.cutover.doubled == {"batches": 3, "rows": 6}
        assert "their 6 rows (batches 4 to 6) are written again" in plan.cutover.reasons[0]

    def test_from_scratch(self, orders: Location, table: Location) -> None:
        plan = plan_of(orders, SCRATCH, sink=Sink(place=table))
        assert plan.cutover.doubled == {"batches": 7, "rows": 14}

    def test_from_scratch_after_a_new_query_id(self, orders: Location, table: Location) -> None:
        """What the table holds under the id of before is the same query's, and comes again too."""
        reset(orders, RENAME, sink=Sink(place=table))
        newer = Checkpoint.at(orders).progress().query_id
        plan = plan_of(orders, SCRATCH, sink=Sink(place=table))
        assert (plan.cutover.verdict, plan.cutover.doubled) == (Verdict.WILL_DUPLICATE, {"batches": 7, "rows": 14})
        assert f"under older ids of the query: {QUERY_ID}" in plan.cutover.reasons[0]
        append(table.uri, NEWEST + 1, app_id=newer)
        plan = plan_of(orders, SCRATCH, sink=Sink(place=table))
        assert (plan.cutover.verdict, plan.cutover.doubled["rows"]) == (Verdict.WILL_DUPLICATE, 16)
        assert plan.cutover.query_ids == (QUERY_ID, newer)

    def test_from_scratch_after_an_id_that_nobody_knows(self, orders: Location, table: Location) -> None:
        """Whose the other rows are is not known: they are named."""
        orders.replace("metadata", b'{"id":"by-hand"}')
        verdict, reason = self.verdict(orders, table, way=SCRATCH)
        assert verdict is Verdict.UNKNOWN
        assert f"but 14 rows that other query ids wrote ({QUERY_ID})" in reason

    def test_from_scratch_into_a_table_with_rows_of_nobody_knows_whom(self, orders: Location, tmp_path: Path) -> None:
        for batch in range(3):
            append(tmp_path / "t", batch, app_id=None)
        verdict, reason = self.verdict(orders, open_location(str(tmp_path / "t")), way=SCRATCH)
        assert verdict is Verdict.UNKNOWN
        assert "has no commit of the query" in reason

    def test_a_table_that_was_restored(self, orders: Location, table: Location) -> None:
        """The memory of the old id does not matter to the new one; what the table holds does."""
        DeltaTable(table.uri).restore(3)
        assert self.verdict(orders, table, batch_id=3)[0] is Verdict.SAFE
        verdict, reason = self.verdict(orders, table)
        assert verdict is Verdict.UNKNOWN
        assert "rows of batches 4 to 6 are missing if those batches had any" in reason

    def test_not_its_sink(self, orders: Location, tmp_path: Path) -> None:
        other = delta_table(tmp_path / "other", range(7), app_id="somebody-else")
        verdict, reason = self.verdict(orders, other)
        assert verdict is Verdict.UNKNOWN
        assert "has no commit of the query" in reason

    def test_the_same_txn_app_id_skips(self, orders: Location, tmp_path: Path) -> None:
        table = delta_table(tmp_path / "t", range(7), app_id="totals")
        verdict, reason = self.verdict(orders, table, app_id="totals")
        assert verdict is Verdict.WILL_SKIP
        assert "Delta skips its batches 0 to 6 silently" in reason
        assert self.verdict(orders, table, app_id="totals", new_app_id="totals-2")[0] is Verdict.SAFE

    def test_a_file_sink_skips_by_number(self, orders: Location, tmp_path: Path) -> None:
        plan = plan_of(orders, sink=Sink(place=file_sink(tmp_path / "out", NEWEST)))
        assert (plan.cutover.verdict, plan.cutover.skipped) == (Verdict.WILL_SKIP, 7)
        with pytest.raises(RefusedError, match="the new checkpoint's batches 0 to 6 are skipped silently"):
            apply_reset(plan, orders, repository(orders), rest=STOPPED)

    def test_a_sink_without_memory(self, orders: Location) -> None:
        assert plan_of(orders).cutover.verdict is Verdict.SAFE
        orders.delete(f"commits/{NEWEST}")
        cutover = plan_of(orders).cutover
        assert (cutover.verdict, cutover.doubled) == (Verdict.WILL_DUPLICATE, {"batches": 1})

    def test_a_sink_nobody_named(self, orders: Location) -> None:
        assert plan_of(orders, sink=Sink()).verdict is Verdict.UNKNOWN
        with pytest.raises(RefusedError, match=r"needs somebody to accept: sink_unknown \(the sink is not known") as e:
            reset(orders, sink=Sink())
        assert "--accept sink_unknown" in (e.value.hint or "")
        assert set(contents(orders)) == set(stream(NEWEST))


def test_delta_does_not_protect_a_new_checkpoint(orders: Location, table: Location) -> None:
    """What tutorials have wrong, on a real table: a batch of a new id is appended though the old id has it."""
    rows = len(batches_in(table))
    append(table.uri, NEWEST, app_id="a-new-query-id")
    assert len(batches_in(table)) == rows + 2
    assert DeltaTable(table.uri).transaction_version(QUERY_ID) == NEWEST


class TestAnOlderIdOfTheQuery:
    """Messages ask for it: "name it: --txn-app-id". The query writes with its query id all the same."""

    OLD = "00000000-0000-0000-0000-00000000000a"

    @pytest.fixture
    def table(self, tmp_path: Path) -> Location:
        path = tmp_path / "ids"
        delta_table(path, range(4), app_id=self.OLD)
        return delta_table(path, [4, 5, 6])

    @pytest.mark.parametrize("way", [ResetWay.NEW_QUERY_ID, ResetWay.FROM_SCRATCH])
    def test_a_new_query_id_is_a_new_id_to_the_table(self, orders: Location, table: Location, way: ResetWay) -> None:
        """It was WILL_SKIP, "a new query id changes nothing here"; the rows were written twice."""
        orders.delete("commits/6")  # the table has the batch
        found = [plan_of(orders, way, sink=Sink(place=table, app_id=id_)).cutover for id_ in (None, self.OLD)]
        assert [each.verdict for each in found] == [Verdict.WILL_DUPLICATE] * 2
        assert not any("changes nothing here" in reason for each in found for reason in each.reasons)

    def test_a_txn_app_id_stays(self, orders: Location, tmp_path: Path) -> None:
        orders.delete("commits/6")
        table = delta_table(tmp_path / "own", range(7), app_id="totals")
        cutover = plan_of(orders, ResetWay.NEW_QUERY_ID, sink=Sink(place=table, app_id="totals")).cutover
        assert cutover.verdict is Verdict.WILL_SKIP
        assert cutover.reasons[0].startswith("a new query id changes nothing here")


class _History:
    """An engine that tells the history of a table: seven batches, then an append by somebody."""

    kind = "unity"
    words = "the warehouse"

    def __init__(self, *, is_appended: bool) -> None:
        self.is_appended = is_appended

    def describe(self, name: str) -> Described:
        def row(version: int, operation: str, **parameters: str) -> dict[str, Any]:
            return {
                "version": version,
                "timestamp": f"2030-11-01T00:0{version}:00Z",
                "operation": operation,
                "operationParameters": parameters,
                "operationMetrics": {"numOutputRows": "2"},
            }

        rows = [row(v, "STREAMING UPDATE", queryId=QUERY_ID, epochId=str(v)) for v in range(7)]
        rows += [row(7, "WRITE", mode="Append")] if self.is_appended else []
        return Described({"format": "delta", "id": "t", "properties": {}}, rows)


@pytest.mark.parametrize("way", [ResetWay.KEEP_POSITION, ResetWay.NEW_QUERY_ID])
@pytest.mark.parametrize(("is_appended", "verdict"), [(True, Verdict.UNKNOWN), (False, Verdict.SAFE)])
def test_a_table_by_name_that_somebody_wrote_to(
    tmp_path: Path, way: ResetWay, is_appended: bool, verdict: Verdict
) -> None:
    """A rewind was UNKNOWN there, and a reset SAFE: it may be a foreachBatch of the query."""
    orders = plant(open_location(str(tmp_path / "orders")), stream(6))
    engine: Any = _History(is_appended=is_appended)
    (cutover,) = plan_reset(orders, way, sink=Sink(None, "unity", table="a.b.c", engines=(engine,))).cutovers
    assert cutover.verdict is verdict
    assert ("is of a foreachBatch of the query" in " ".join(cutover.reasons)) == is_appended
