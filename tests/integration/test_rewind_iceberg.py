"""A rewind on real Spark and real Iceberg: in the end the table has every row once, and without the rollback it has not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.set_aside import default_repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.replay_proof import prove_replay
from airflow_ckpt_provider.recovery.rewind.specifiers import Specifier
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.report import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.every_run import of_these
from tests.integration.streams.spark_host import coordinates
from tests.rest_catalog import running_rest_catalog
from tests.stopped import STOPPED

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_SCRIPT = Path(__file__).with_name("iceberg_stream.py")
_ROWS = 10


@dataclass
class Story:
    """One stream into one table.

    :param root: directory for all of it.
    :param catalog: ``hadoop``: named by its directory; ``sql``, ``rest``: named by its name.
    :param uri: of a REST catalog.
    """

    root: Path
    catalog: str
    uri: str = ""
    made: int = field(default=0)

    def __post_init__(self) -> None:
        for name in ("input", "warehouse"):
            (self.root / name).mkdir()

    @property
    def place(self) -> Location:
        return open_location(str(self.root / "checkpoint"))

    @property
    def sink(self) -> Sink:
        if self.catalog == "hadoop":
            return Sink(open_location(str(self.root / "warehouse" / "sales" / "orders")), "")
        warehouse = self.root / "warehouse"
        properties = {"type": "sql", "uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": f"file://{warehouse}"}
        if self.catalog == "rest":
            properties = {"type": "rest", "uri": self.uri}
        return Sink.named("iceberg:lake.sales.orders", open_location, storage_options=properties)

    @property
    def repository(self) -> Repository:
        return Repository.open_or_create(default_repository(self.place))

    def run(self, files: int, *, at_once: int = 1, faulty: bool = False) -> list[list[int]]:
        """Let it read some more files, so many in a batch; return the rows of the table."""
        for number in range(self.made, self.made + files):
            rows = range(number * _ROWS, (number + 1) * _ROWS)
            path = self.root / "input" / f"f{number:03d}.json"
            path.write_text("".join(json.dumps({"id": row, "value": row + 1}) + "\n" for row in rows))
            os.utime(path, (1_704_067_200 + number,) * 2)
        self.made += files
        return self.spark(
            input=str(self.root / "input"), checkpoint=str(self.root / "checkpoint"), files=at_once, faulty=faulty
        )

    def spark(self, **about: object) -> list[list[int]]:
        """Run the application; return the rows of the table."""
        about |= {
            "warehouse": str(self.root / "warehouse"),
            "catalog": self.catalog,
            "uri": self.uri,
            "packages": ",".join(coordinates("iceberg-jars.txt")),
            "ivy": str(Path(".cache/ivy").absolute()),
            "rows": str(self.root / "rows.json"),
        }
        environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(self.root / "local")}
        done = subprocess.run(
            [sys.executable, str(_SCRIPT), json.dumps(about)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        rows: list[list[int]] = json.loads((self.root / "rows.json").read_text())
        return rows

    def plan(self, kind: str, value: object = "", *, policy: SinkPolicy = SinkPolicy.ROLLBACK) -> RewindPlan:
        return plan_rewind(
            Checkpoint.at(self.place),
            Specifier(kind, str(value)),
            sink=self.sink,
            sink_exit=policy,
            exact_replay=False,
        )

    def rewind(self, kind: str, value: object = "", *, policy: SinkPolicy = SinkPolicy.ROLLBACK) -> RewindPlan:
        plan = self.plan(kind, value, policy=policy)
        apply_rewind(plan, Checkpoint.at(self.place), self.repository, sink=self.sink, rest=STOPPED)
        return plan

    @property
    def query_id(self) -> str:
        return str(json.loads((self.root / "checkpoint" / "metadata").read_text())["id"])

    @property
    def right(self) -> list[list[int]]:
        return [[row, row + 1] for row in range(self.made * _ROWS)]


@pytest.fixture(params=of_these(["hadoop", "sql"], "sql"))
def story(request: pytest.FixtureRequest, tmp_path: Path) -> Story:
    return Story(tmp_path, request.param)


@pytest.mark.stores
def test_row_exact_by_a_rest_catalog(tmp_path: Path) -> None:
    with running_rest_catalog(tmp_path) as uri:
        test_row_exact_after_a_bug(Story(tmp_path, "rest", uri))


def test_row_exact_after_a_bug(story: Story) -> None:
    """Four right batches, two wrong ones; back by two, taken back, back again; all five files left come in one batch."""
    story.run(4)
    before = story.run(2, faulty=True)
    first = story.query_id
    plan = story.rewind("shift_by", -2)
    assert plan.sink.verdict is Verdict.WILL_SKIP
    assert plan.sink_verdict is Verdict.SAFE
    assert plan.undo
    assert plan.undo["possible"]
    undo(story.place, story.repository, sink=story.sink, rest=STOPPED)
    assert story.spark() == before
    story.rewind("shift_by", -2)
    assert story.query_id == first
    rows = story.run(3, at_once=100)
    assert len(rows) == 90
    assert rows == story.right
    proof = prove_replay(Checkpoint.at(story.place), 3, sink=story.sink)
    assert proof.ok, proof.findings
    assert proof.rows == {4: 50}


@pytest.mark.slow
def test_the_control_loses_thirty_rows(story: Story) -> None:
    """The checkpoint rewound, and the table left as it is: what the plan foretold."""
    story.run(6)
    plan = story.rewind("shift_by", -2, policy=SinkPolicy.ACCEPT)
    assert plan.sink_verdict is Verdict.WILL_SKIP
    assert len(story.run(3, at_once=100)) == 60


@pytest.mark.slow
def test_over_a_compaction_and_after_expiry(tmp_path: Path) -> None:
    """Compacted: the rewind is row-exact. Expired besides: refused when it is planned, and nothing was changed."""
    story = Story(tmp_path, "hadoop")
    story.run(4)
    story.spark(
        sql="CALL lake.system.rewrite_data_files(table => 'sales.orders', options => map('rewrite-all','true'))"
    )
    story.run(2, faulty=True)
    story.rewind("to_batch", 3)
    before = story.run(1)
    assert before == story.right
    story.spark(sql="CALL lake.system.expire_snapshots(table => 'sales.orders', older_than => now(), retain_last => 1)")
    with pytest.raises(RefusedError, match="older snapshots of the table have expired"):
        story.plan("shift_by", -2)
    assert story.spark() == before
