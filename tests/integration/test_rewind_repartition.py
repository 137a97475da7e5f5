"""A rewind across an offline repartition of the state, on a Spark that has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.opening import open_location
from tests.samples.service import SampleService
from tests.samples.spark_versions import python_with
from tests.support.stopped import STOPPED, wait_until_quiet

pytestmark = pytest.mark.other_spark


class RepartitioningSpark(SampleService):
    """A Spark that repartitions state."""

    script = "repartitioned.py"


class Orders:
    """A query that drops duplicate keys, and the files it reads: each brings ten new keys and all those of before."""

    def __init__(self, spark: SampleService, root: Path) -> None:
        self.spark, self.root, self.files = spark, root, 0
        self.input, self.out = root / "input", root / "out"
        self.input.mkdir()
        self.place = open_location(str(root / "checkpoint"))
        self.checkpoint = Checkpoint.at(self.place)

    def run(self, files: int, *, faulty: bool = False) -> None:
        for _ in range(files):
            self.files += 1
            rows = [json.dumps({"k": k, "v": 10 * k}) for k in range(10 * self.files)]
            (self.input / f"{self.files:03}.json").write_text("\n".join(rows))
        self._ask(do="run", input=str(self.input), out=str(self.out), faulty=faulty)

    def repartition(self, to: int) -> None:
        self._ask(do="repartition", to=to)

    def _ask(self, **request: object) -> None:
        assert self.spark.ask({"checkpoint": self.place.root, **request}) == {}

    @property
    def newest(self) -> int | None:
        return self.checkpoint.progress().latest_committed

    @property
    def partitions(self) -> set[str]:
        """Directories of ``state/0`` that hold state."""
        paths = (path.split("/") for path in self.place.walk("state/0") if not path.endswith(".crc"))
        return {parts[2] for parts in paths if parts[2].isdigit()}

    def rewind(self, batch: int) -> RewindPlan:
        wait_until_quiet(self.place, quiet_for=1, at_most=60)
        sink = Sink(place=open_location(str(self.out)))
        plan = plan_rewind(self.checkpoint, Specifier("to_batch", str(batch)), sink=sink, sink_exit=SinkPolicy.ROLLBACK)
        repository = Repository.open_or_create(default_repository(self.place))
        apply_rewind(plan, self.checkpoint, repository, sink=sink, rest=STOPPED)
        return plan

    def check(self) -> None:
        """Each key once, with the right value: as a query that never had the fault and never was rewound."""
        lines = (line for file in self.out.glob("part-*.json") for line in file.read_text().splitlines())
        rows = sorted((row["k"], row["v"]) for row in map(json.loads, lines))
        assert rows == [(k, 10 * k) for k in range(10 * self.files)]


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    with RepartitioningSpark(python_with("4.2.1"), tmp_path / "spark.log") as spark:
        yield Orders(spark, tmp_path)


@pytest.mark.timeout(900)
def test_row_exact_across_a_repartition(orders: Orders) -> None:
    orders.run(4)
    orders.repartition(3)
    assert (orders.newest, orders.partitions) == (4, {"0", "1", "2"})
    orders.run(2, faulty=True)
    assert orders.newest == 6

    # To the batch that is the repartition itself: its three partitions stay.
    assert orders.rewind(4).exact_replay
    assert orders.partitions == {"0", "1", "2"}
    orders.run(1)
    orders.check()

    # Before it: its log entry goes too, which would be a repartition that was not finished, and the third partition.
    assert not orders.rewind(3).exact_replay
    assert orders.partitions == {"0", "1"}
    orders.run(1)
    orders.check()

    # Long before one, where the batch after the target is like any other.
    orders.repartition(5)
    orders.run(1, faulty=True)
    assert orders.rewind(2).exact_replay
    assert orders.partitions == {"0", "1"}
    orders.run(1)
    orders.check()
