"""dags/rewind_replay.py on a real stream: a bug for two batches, then back, the right code, and the proof."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from tests.support.airflow_runs import Answer, RunDag, result, states
from tests.support.rewinding import Story, difference
from tests.support.streams.data import put_files
from tests.support.streams.spark_host import SparkHost, coordinates

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

_KIND = "dedup_to_delta"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SparkHost]:
    host = SparkHost(tmp_path / "spark.log", packages=coordinates("spark-jars.txt"))
    yield host
    host.kill()


@pytest.fixture
def story(host: SparkHost, tmp_path: Path) -> Story:
    """Four right batches, two wrong ones."""
    story = Story(host, tmp_path, _KIND)
    story.run(4)
    story.run(2, faulty=True)
    return story


@pytest.fixture
def rewind(example_dags: dict[str, DAG], run_dag: RunDag, story: Story) -> Callable[..., Any]:
    """Fill in the form and run the DAG; the stream is started by a command, as on a shell."""

    def run(*, start_with: str | None = None, **form: Any) -> Any:
        dag = example_dags["rewind_replay"]
        command = [sys.executable, "-m", "tests.support.streams.run", _KIND, "--available-now"]
        command += ["--input", str(story.source), "--checkpoint", str(story.checkpoint), "--out", str(story.out)]
        command += [argument for package in coordinates("spark-jars.txt") for argument in ("--package", package)]
        start = dag.get_task("start_stream")
        start.bash_command = start_with or shlex.join(command)
        start.cwd = str(Path.cwd())
        stop = dag.get_task("stop_stream")
        stop.bash_command = "true"
        dag.get_task("at_rest").quiet_for = 0.5
        dag.get_task("healthy").duration_within = 10_000  # the first batches of a fresh JVM on a busy machine
        where = {"checkpoint": str(story.checkpoint), "sink": str(story.out), "query_is_stopped": True}
        return run_dag(dag, run_conf={**where, **form})

    return run


def test_plan_is_the_default_and_changes_nothing(rewind: Callable[..., Any], story: Story) -> None:
    before = story.rows()
    run = rewind(to="shift_by", value="-3")
    assert run.state == "success"
    assert {task for task, state in states(run).items() if state == "success"} == {
        *("preflight", "plan", "what_next", "report")
    }
    assert result(run, "report")["kind"] == "untouched"
    markdown = result(run, "plan")["markdown"]
    assert "| verdict | **SAFE** |" in markdown  # the input files are there, and the table is rolled back too
    assert "roll the table back to version" in markdown
    assert story.rows() == before


@pytest.mark.parametrize("choice", ["Approve", "Reject"])
def test_back_to_the_last_right_batch_and_replayed(
    rewind: Callable[..., Any], story: Story, answer: Answer, choice: str
) -> None:
    put_files(story.source, 1, start=story.made)
    answer("rewind_replay", choice)
    before = story.rows()
    run = rewind(mode="apply", to="to_table_version", value="3", reason="wrong values since the deployment")
    assert run.state == "success"
    if choice == "Reject":
        assert states(run)["rewind"] == "skipped"
        assert result(run, "report")["kind"] == "untouched"
        assert story.rows() == before
        return
    assert set(states(run).values()) == {"success"}
    assert result(run, "rewind", "outcome")["batch_id"] == 3
    assert result(run, "proof")["ok"] is True
    assert result(run, "healthy")["healthy"] is True
    assert (result(run, "report")["kind"], result(run, "report")["failed"]) == ("running_again", [])
    assert difference(story.reference(), story.rows()) == (0, 0)


def test_a_start_that_fails_is_reported_with_the_way_on(
    rewind: Callable[..., Any], story: Story, answer: Answer
) -> None:
    answer("rewind_replay", "Approve")
    before = story.rows()
    run = rewind(mode="apply", to="to_table_version", value="3", start_with="exit 7")
    assert run.state == "failed"
    report = result(run, "report", "report")
    assert (report["kind"], report["failed"]) == ("rewound", ["start_stream"])
    assert "# Stopped in start_stream" in report["markdown"]
    program, *arguments = shlex.split(report["commands"][0])
    assert program == "airflow-ckpt"
    undo = [sys.executable, "-m", "airflow_ckpt_provider.cli.main", *arguments]
    # A start that failed may have started it: somebody has to say that it did not.
    refused = subprocess.run(undo, capture_output=True, text=True)
    assert (refused.returncode, "--query-is-stopped" in refused.stderr) == (1, True)
    subprocess.run([*undo, "--query-is-stopped"], check=True)
    assert story.rows() == before
    story.run(0)  # and Spark continues with what was there
