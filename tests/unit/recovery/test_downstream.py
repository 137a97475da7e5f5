"""Streams that read the sink which a rewind rolls back, of each kind of sink: `--downstream` finds what they have passed on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from airflow_ckpt_provider.recovery.chains.plan import ChainPlan
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import stream
from tests.support.checkpoints import QUERY_ID, batch_metadata, commit_log, metadata, offsets_log, plant
from tests.support.file_sinks import file_sink
from tests.support.iceberg_tables import Table
from tests.support.rewinds import NEWEST
from tests.support.rewound_sinks import plan_of

NOTHING: Mapping[str, bytes] = {}


@pytest.fixture
def orders(tmp_path: Path) -> Location:
    return plant(open_location(str(tmp_path / "orders")), stream(NEWEST))


def reader(place: Path, offset: str, files: Mapping[str, bytes] = NOTHING) -> Location:
    own = {
        "metadata": metadata(),
        "offsets/0": offsets_log(offset, metadata=batch_metadata(0)),
        "commits/0": commit_log(),
    }
    return plant(open_location(str(place)), {**own, **files})


class TestIceberg:
    @pytest.fixture
    def table(self, tmp_path: Path) -> Table:
        return Table(tmp_path / "sink").batch(*range(NEWEST + 1), query=QUERY_ID)

    def plan(self, table: Table, orders: Location, snapshot: int) -> RewindPlan:
        position = {"version": 1, "snapshot_id": snapshot, "position": 1, "scan_all_files": False}
        place = reader(Path(orders.root).parent / "reader", json.dumps(position))
        return plan_of(orders, [table.sink], downstream=[place])

    def test_it_has_read_what_leaves(self, table: Table, orders: Location) -> None:
        assert table.head is not None
        plan = self.plan(table, orders, table.head)
        rollback = plan.sinks[0].report.rollback
        assert rollback
        assert plan.downstream == (
            f"downstream: {orders.uri.removesuffix('orders')}reader reads this table (source 0): it has read up to snapshot "
            f"{table.head}, so rows that leave the table have been passed on; it stops, as that is no ancestor of snapshot "
            f"{rollback.to_version}: WILL_FAIL",
        )
        assert plan.verdict is Verdict.WILL_FAIL
        assert [risk.word for risk in plan.risks] == ["source_failure"]

    @pytest.mark.parametrize("which", ["a snapshot that stays", "one of another table"])
    def test_it_goes_on(self, which: str, table: Table, orders: Location) -> None:
        first = min(table.table.snapshots(), key=lambda s: s.sequence_number or 0).snapshot_id
        assert self.plan(table, orders, first if which == "a snapshot that stays" else 12345).downstream == ()


class TestFiles:
    def plan(self, orders: Location, newest: int, *, log: bytes | None = None) -> RewindPlan:
        root = Path(orders.root).parent
        sink = file_sink(open_location(str(root / "files")), NEWEST)
        read = [f"file://{sink.root}/part%20{batch}.json" for batch in range(newest + 1)]
        lines = [{"path": path, "timestamp": 1, "batchId": 0} for path in read]
        own = "\n".join(["v1", *map(json.dumps, lines)]).encode() if log is None else log
        place = reader(root / "reader", '{"logOffset":0}', {"sources/0/0": own})
        return plan_of(orders, [Sink(place=sink)], downstream=[place])

    def test_it_has_read_what_leaves(self, orders: Location) -> None:
        """A rewind to batch 4 removes those of batches 5 and 6."""
        plan = self.plan(orders, NEWEST)
        (line,) = plan.downstream
        assert line.endswith(
            "it has read 2 of the files that leave the sink, so their rows have been passed on, and it reads those of the "
            "replay as well: WILL_DUPLICATE"
        )
        assert [risk.word for risk in plan.risks] == ["sink_duplicates"]

    def test_it_has_read_only_what_stays(self, orders: Location) -> None:
        assert self.plan(orders, 4).downstream == ()

    def test_its_log_is_damaged(self, orders: Location) -> None:
        """Nothing is left of it: it may be of this sink."""
        (line,) = self.plan(orders, 0, log=b"v1\n{").downstream
        assert "reader may read this sink (source 0): which of its files it has read is not known" in line
        assert line.endswith(": UNKNOWN")


@pytest.mark.parametrize(
    ("verdict", "word"),
    [
        (Verdict.WILL_FAIL, "source_failure"),
        (Verdict.WILL_DUPLICATE, "sink_duplicates"),
        (Verdict.UNKNOWN, "sink_unknown"),
    ],
)
def test_a_chain_asks_to_accept_what_happens_to_others(verdict: Verdict, word: str) -> None:
    sentence = f"downstream: s3://b/reader reads this sink (source 0): it has read 2 of the files: {verdict.value}"
    plan = ChainPlan("p", "to_batch 3", ("orders",), (), others=(sentence,))
    assert plan.verdict is verdict
    assert [risk.word for risk in plan.risks] == [word]
