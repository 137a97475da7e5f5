"""A table with features that deltalake cannot restore: Spark rolls it back under the seal, and the query gets a new id."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.cli.main import main
from airflow_ckpt_provider.cli.spark_submit import restore_by_command
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.operators.rewind import CheckpointRewindOperator
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.status import status_of
from tests.support.rewinding import Story, difference
from tests.support.spark_settings import SETTINGS
from tests.support.stopped import STOPPED
from tests.support.streams.spark_host import SparkHost, coordinates
from tests.support.watched_stores import Killed, Life, watched

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkHost]:
    host = SparkHost(
        tmp_path_factory.mktemp("spark") / "spark.log",
        packages=coordinates("spark-jars.txt"),
        conf={"spark.databricks.delta.properties.defaults.enableDeletionVectors": "true"},
    )
    yield host
    host.kill()


@pytest.fixture
def story(host: SparkHost, tmp_path: Path) -> Story:
    """Four right batches, two wrong ones."""
    story = Story(host, tmp_path, "dedup_to_delta")
    story.run(4)
    story.run(2, faulty=True)
    return story


@pytest.fixture(scope="module")
def spark_submit() -> str:
    words = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"]
    words += ["--packages", ",".join(coordinates("spark-jars.txt"))]
    return shlex.join([*words, *(word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}"))])


def query_id(story: Story) -> str:
    return str(json.loads((story.checkpoint / "metadata").read_text())["id"])


def test_back_forward_and_back_again_row_exact(story: Story, spark_submit: str) -> None:
    """By the shell: refused without Spark; back, undone, back again; the replay is that of a run that never failed."""
    back = ["rewind", str(story.checkpoint), "--to-batch", "3", "--sink", str(story.out), "--sink-policy", "rollback"]
    back += ["--query-is-stopped"]
    before, first_id = story.rows(), query_id(story)
    assert main([*back, "--apply"]) == 1
    assert story.rows() == before
    assert main([*back, "--apply", "--spark-submit", spark_submit]) == 0
    assert query_id(story) != first_id
    assert story.ckpt.progress().latest_committed == 3
    undo = ["undo", str(story.checkpoint), "--sink", str(story.out), "--query-is-stopped"]
    assert main([*undo, "--spark-submit", spark_submit]) == 0
    assert (story.rows(), query_id(story)) == (before, first_id)
    assert main([*back, "--apply", "--spark-submit", spark_submit]) == 0
    story.run(1)
    assert difference(story.reference(), story.rows()) == (0, 0)


def test_a_command_that_fails_leaves_it_sealed_and_the_next_one_ends_it(story: Story, spark_submit: str) -> None:
    sink = story.sink
    broken = type(sink)(place=sink.place, by_spark=restore_by_command("false"))
    plan = story.plan("to_batch", 3)
    with pytest.raises(StorageError, match="Spark did not restore"):
        apply_rewind(plan, story.ckpt, story.repository, sink=broken, rest=STOPPED)
    situation = status_of(story.ckpt, story.repository)
    assert situation.kind == "under_way"
    command = shlex.split(situation.commands[0])[1:]
    assert main([*command, "--spark-submit", spark_submit]) == 0
    story.run(1)
    assert difference(story.reference(), story.rows()) == (0, 0)


def test_somebody_writes_before_the_table_goes_back(story: Story, spark_submit: str) -> None:
    sink = story.sink
    plan = story.plan("to_batch", 3)
    story.run(1)
    by_spark = type(sink)(place=sink.place, by_spark=restore_by_command(spark_submit))
    before = story.rows()
    with pytest.raises(RefusedError):
        apply_rewind(plan, story.ckpt, story.repository, sink=by_spark, rest=STOPPED)
    assert story.rows() == before
    assert story.ckpt.progress().seal is None


def test_killed_after_spark_has_restored(story: Story, spark_submit: str) -> None:
    """The next run finds the commit by the plan's id that Spark kept with it, and does not restore again."""
    asked = []
    restore = restore_by_command(spark_submit)

    def counted(*about: object) -> None:
        asked.append(about)
        restore(*about)  # type: ignore[arg-type]

    sink = type(story.sink)(place=story.sink.place, by_spark=counted)
    plan = story.plan("to_batch", 3)
    for writes in range(1, 200):
        dying, _ = watched(story.place, Life(writes).before)
        try:
            apply_rewind(plan, Checkpoint.at(dying), story.repository, sink=sink, rest=STOPPED)
        except Killed:
            if asked:
                break
    assert len(asked) == 1
    again = status_of(story.ckpt, story.repository).commands[0]
    assert main([*shlex.split(again)[1:], "--spark-submit", "false"]) == 0, "Spark is not needed any more"
    story.run(1)
    assert difference(story.reference(), story.rows()) == (0, 0)


def test_by_an_airflow_connection(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the operator runs it: by Airflow's own hook; a Spark that does not exist leaves it sealed."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_HERE", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    gone = {"conn_type": "spark", "host": "local[2]", "extra": {"spark-binary": "spark3-submit"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_GONE", json.dumps(gone))

    def rewind(conn_id: str) -> dict[str, Any]:
        operator = CheckpointRewindOperator(
            task_id="rewind",
            checkpoint=str(story.checkpoint),
            to="to_batch",
            value=3,
            sink=str(story.out),
            sink_exit="rollback",
            spark_conn_id=conn_id,
            spark_settings={"packages": ",".join(coordinates("spark-jars.txt")), "conf": SETTINGS},
            mode="apply",
            query_is_stopped=True,
            quiet_for=0,
        )
        return operator.execute({})

    with pytest.raises(StorageError, match="Spark did not restore"):
        rewind("spark_gone")
    assert story.ckpt.progress().seal is not None
    assert rewind("spark_here")["outcome"]["batch_id"] == 3
    story.run(1)
    assert difference(story.reference(), story.rows()) == (0, 0)
