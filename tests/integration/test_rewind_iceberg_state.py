"""Stateful streams into Iceberg tables, on real Spark: state and table go back together, also where the checkpoint is lost."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.restore.sink import sink_says
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.iceberg_history import iceberg_host
from tests.support.rewinding import Story, difference
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.streams.spark_host import SparkHost

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

_COLUMNS = {
    "stateless_to_iceberg": "id STRING, k STRING, v BIGINT, ts TIMESTAMP",
    "dedup_to_iceberg": "id STRING, k STRING, v BIGINT, ts TIMESTAMP",
    "windows_to_iceberg": "window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, k STRING, s BIGINT",
    "join_to_iceberg": "id STRING, k STRING, v BIGINT, w BIGINT",
}


class IcebergTables(Story):
    """A stream into a table of the Hadoop catalog of :func:`iceberg_host`; the reference is another table."""

    @property
    def table(self) -> str:
        return f"lake.{self.root.name}.orders"

    @property
    def out(self) -> Path:
        return Path(self.table)

    @property
    def sink(self) -> Sink:
        return Sink(open_location(str(self.root.parent / "lake" / self.root.name / "orders")), "")

    def rows(self) -> Counter[str]:
        return self._rows(self.table)

    def reference(self) -> Counter[str]:
        table = self.make(f"lake.{self.root.name}.reference")
        checkpoint = self.root / "reference" / "ck"
        self.host.start(
            self.kind, source=self.source, checkpoint=checkpoint, out=Path(table), available_now=True
        ).finished()
        return self._rows(table)

    def make(self, table: str) -> str:
        self.host.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{self.root.name}")
        self.host.sql(f"CREATE TABLE {table} ({_COLUMNS[self.kind]}) USING iceberg")
        return table

    def _rows(self, table: str) -> Counter[str]:
        return Counter(json.dumps(row, default=str) for row in self.host.sql(f"SELECT * FROM {table}"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("iceberg")


@pytest.fixture(scope="module")
def host(place: Path) -> Iterator[SparkHost]:
    started = iceberg_host(place)
    yield started
    started.kill()


@pytest.fixture(params=list(_COLUMNS))
def story(request: pytest.FixtureRequest, host: SparkHost, place: Path) -> IcebergTables:
    root = place / f"t{hashlib.sha256(request.node.name.encode()).hexdigest()[:8]}"
    found = IcebergTables(host, root, request.param)
    found.make(found.table)
    return found


def test_rewound_by_two_taken_back_and_rewound_over_the_commit_of_somebody_else(story: IcebergTables) -> None:
    story.run(4)
    right = story.newest
    story.run(2, faulty=True)
    wrong = story.rows()
    outcome = story.rewind("to_batch", right)
    assert outcome.batch_id == story.newest == right
    undo(story.place, story.repository, sink=story.sink, rest=STOPPED)
    assert story.rows() == wrong
    story.host.sql(f"DELETE FROM {story.table} WHERE false", f"ALTER TABLE {story.table} SET TBLPROPERTIES ('a' = 'b')")
    story.rewind("shift_by", -1)
    story.rewind("to_batch", right)
    story.run(2)
    assert difference(story.reference(), story.rows()) == (0, 0)


@pytest.mark.parametrize("rolled_back", [True, False], ids=["table rolled back", "control"])
def test_a_lost_checkpoint(story: IcebergTables, rolled_back: bool) -> None:
    """Restored from a backup that is older than the table: wrong rows that the table has stay, unless it goes back too."""
    story.run(3)
    backup = create_backup(story.ckpt, story.repository).manifest
    story.run(6, faulty=True)
    shutil.rmtree(story.checkpoint)
    answer = sink_says(story.sink, backup, story.place, repository=story.repository)
    plan = plan_restore(story.repository, backup, story.place, sink=answer)
    assert plan.sink
    assert plan.sink.verdict is Verdict.WILL_SKIP
    apply_restore(plan, rest=STOPPED, accept=ACCEPTED)
    if rolled_back:
        story.rewind("to_batch", backup.batch_id)
    story.run(1)
    assert (difference(story.reference(), story.rows()) == (0, 0)) is rolled_back
