"""A stream that reads an Iceberg table of another one, on real Spark: both return to one boundary and are row-exact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_ckpt_provider.recovery.chains.apply import apply_chain
from airflow_ckpt_provider.recovery.chains.planning import plan_chain
from airflow_ckpt_provider.recovery.chains.stream import ChainStream
from airflow_ckpt_provider.recovery.chains.undo import undo_chain
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.iceberg_story import IcebergStory
from tests.support.stopped import STOPPED

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1500)]


class Two(IcebergStory):
    """The stream of the other tests, and one that copies its table."""

    def copies(self, files: int, *, faulty: bool = False) -> list[list[int]]:
        """Let both read some more files, one in each batch; return the rows of the copy."""
        self.run(files, faulty=faulty)
        return list(json.loads((self.root / "rows.json.reader").read_text()))

    def spark(self, **about: object) -> list[list[int]]:
        return super().spark(reader=str(self.root / "reader"), **about)

    def streams(self) -> list[ChainStream]:
        copies = Sink.named("iceberg:lake.sales.copies", open_location, storage_options=dict(self.sink.storage_options))
        return [
            ChainStream("orders", self.place, (self.sink,)),
            ChainStream("copies", open_location(str(self.root / "reader")), (copies,)),
        ]


def test_both_are_row_exact(tmp_path: Path) -> None:
    with Two(tmp_path, "sql") as two:
        two.copies(3)
        wrong = two.copies(2, faulty=True)
        assert min(value for _, value in wrong) < 0
        rewind(two)
        undo_chain(two.streams(), rest=lambda _: STOPPED)
        assert two.copies(0) == wrong
        rewind(two)
        right = two.copies(1)
        assert right == [[row, row + 1] for row in range(60)]


def rewind(two: Two) -> None:
    plan, _ = apply_chain(
        two.streams(),
        lambda chain_id: plan_chain(two.streams(), Specifier("to_batch", "2"), chain_id=chain_id),
        rest=lambda _: STOPPED,
    )
    orders, copies = plan.parts
    assert orders.rewind
    assert copies.rewind
    assert (orders.rewind.batch_id, copies.rewind.moved) == (2, {})
