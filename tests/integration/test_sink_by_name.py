"""A sink by its name in Spark's own catalog (Derby): looked up, described and restored by spark-submit, row-exact."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.cli.main import main
from airflow_ckpt_provider.cli.spark_submit import run_by_command
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.sinks.spark_tables import DESCRIBE, SparkTables
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.rewinding import Story, difference
from tests.support.spark_settings import SETTINGS
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.streams.spark_host import SparkHost, coordinates

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

NAME = "spark:sales.orders"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkHost]:
    host = SparkHost(tmp_path_factory.mktemp("spark") / "spark.log", packages=coordinates("spark-jars.txt"))
    yield host
    host.kill()


class Named:
    """Four right batches and two wrong ones, in a table that Spark's catalog has as ``sales.orders``."""

    def __init__(self, host: SparkHost, root: Path) -> None:
        self.root = root
        self.story = Story(host, root, "dedup_to_delta")
        self.story.run(4)
        self.story.run(2, faulty=True)
        settings = {
            **SETTINGS,
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": str(root / "warehouse"),
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={root}/metastore;create=true",
        }
        words = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"]
        words += ["--packages", ",".join(coordinates("spark-jars.txt"))]
        self.command = shlex.join([*words, *(w for n, v in settings.items() for w in ("--conf", f"{n}={v}"))])
        self.sql("CREATE DATABASE sales", f"CREATE TABLE sales.orders USING delta LOCATION '{self.story.out}'")

    def sql(self, *statements: str) -> None:
        """Run statements in a session that has the catalog."""
        script = self.root / "statements.py"
        lines = ["import sys", "from pyspark.sql import SparkSession", "spark = SparkSession.builder.getOrCreate()"]
        script.write_text("\n".join([*lines, "for s in sys.argv[1:]:", "    spark.sql(s)", ""]))
        subprocess.run([*shlex.split(self.command), str(script), *statements], check=True, capture_output=True)

    def sink(self, engine: SparkTables | None = None) -> Sink:
        """The sink as it is named where the table's log cannot be read."""

        def refused(uri: str) -> Location:
            raise StorageError(f"{uri}: access denied")

        return Sink.named(NAME, refused, engines=[engine or SparkTables(run_by_command(self.command))])

    def plan(self, sink: Sink) -> Any:
        to = Specifier("to_batch", "3")
        return plan_rewind(self.story.ckpt, to, sink=sink, sink_exit=SinkPolicy.ROLLBACK, guards=())

    def apply(self, plan: Any, sink: Sink) -> None:
        apply_rewind(plan, self.story.ckpt, self.story.repository, sink=sink, rest=STOPPED, accept=ACCEPTED)

    @property
    def query_id(self) -> str:
        return str(json.loads((self.story.checkpoint / "metadata").read_text())["id"])


def test_a_table_whose_log_can_be_read_is_rolled_back_there(host: SparkHost, tmp_path: Path) -> None:
    """By the shell: the name leads to the directory, and the query keeps its id."""
    named = Named(host, tmp_path)
    story, first_id = named.story, named.query_id
    back = ["rewind", str(story.checkpoint), "--to-batch", "3", "--sink", NAME, "--sink-policy", "rollback"]
    assert main([*back, "--spark-submit", named.command, "--query-is-stopped", "--quiet-for", "0", "--apply"]) == 0
    assert named.query_id == first_id
    story.run(1)
    assert difference(story.reference(), story.rows()) == (0, 0)


def test_a_table_whose_log_cannot_be_read_is_restored_by_spark(host: SparkHost, tmp_path: Path) -> None:
    """Back, undone, back again: row-exact. The control keeps the old query id, and its replay is skipped."""
    named = Named(host, tmp_path)
    story, first_id, before = named.story, named.query_id, named.story.rows()
    sink = named.sink()
    assert "access denied" in sink.resolved
    plan = named.plan(sink)
    assert plan.sinks[0].report.kind == "spark"
    assert any("judged by DESCRIBE HISTORY, and rolled back by RESTORE TABLE of Spark" in note for note in plan.notes)
    named.apply(plan, sink)
    assert named.query_id != first_id
    undo(story.ckpt.location, story.repository, sink=sink, rest=STOPPED)
    assert (story.rows(), named.query_id) == (before, first_id)
    named.apply(named.plan(sink), sink)
    new = (story.checkpoint / "metadata").read_text()
    story.place.replace("metadata", new.replace(named.query_id, first_id).encode())
    assert named.query_id == first_id
    story.run(1)
    lost = difference(story.reference(), story.rows())
    assert lost != (0, 0), "the control: under its old id Delta skips the replay"


def test_somebody_writes_at_the_moment_of_the_restore(host: SparkHost, tmp_path: Path) -> None:
    """Their rows are given back, and their commit is named; the next plan ends row-exact but for what they wrote."""
    named = Named(host, tmp_path)
    story = named.story
    run, wrote = run_by_command(named.command), []

    def with_a_writer(application: str, arguments: list[str]) -> None:
        if application != DESCRIBE and not wrote:
            wrote.append(application)
            host.sql(f"INSERT INTO delta.`{story.out}` SELECT * FROM delta.`{story.out}` LIMIT 1")
        run(application, arguments)

    sink = named.sink(SparkTables(with_a_writer))
    before = story.rows()
    with pytest.raises(RefusedError, match=r"somebody wrote version \d+ \(WRITE.*the table was put back"):
        named.apply(named.plan(sink), sink)
    after = story.rows()
    assert after.total() == before.total() + 1
    assert before <= after


@pytest.mark.parametrize(
    "statement",
    ["", "CREATE VIEW sales.orders_view AS SELECT 1 AS id", "CREATE TABLE sales.plain (id INT) USING parquet"],
)
def test_names_that_are_no_delta_table(host: SparkHost, tmp_path: Path, statement: str) -> None:
    named = Named(host, tmp_path)
    name = statement.split()[2] if statement else "sales.nothing"
    if statement:
        named.sql(statement)
    engines = [SparkTables(run_by_command(named.command))]
    with pytest.raises(RefusedError) as refused:
        Sink.named(f"spark:{name}", open_location, engines=engines)
    assert name in refused.value.message.replace("`", "")
    assert refused.value.hint
