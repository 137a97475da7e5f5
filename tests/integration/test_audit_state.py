"""The audit by real Spark: its rows are those that the samples' own batches gave, and a live stream is not disturbed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.jobs import audit_state
from airflow_ckpt_provider.storage.opening import open_location
from tests.samples.archives import HOME, sample, write_files
from tests.support.streams.data import put_files
from tests.support.streams.spark_host import SparkHost

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class Auditor:
    """The tests' end of :mod:`tests.support.state_auditor`."""

    def __init__(self, log: Path) -> None:
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.state_auditor"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._answer()["spark"] == "4.0.0"

    def audit(self, checkpoint: Path, **more: Any) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"checkpoint": str(checkpoint), **more}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the process is gone"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def auditor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Auditor]:
    found = Auditor(tmp_path_factory.mktemp("audit") / "spark.log")
    yield found
    found.close()


def unpacked(kind: str, place: Path) -> Path:
    """A sample of Spark 4.0.0, at a place that its operator metadata knows."""
    files = sample("4.0.0", kind).files
    home, here = f"{HOME}/{kind}/ck".encode(), str(place).encode()
    return write_files(place, {p: d.replace(home, here) if "/_metadata/v2/" in p else d for p, d in files.items()})


def store(report: dict[str, Any], name: str = "default", operator: int = 0) -> dict[str, Any]:
    (found,) = (s for o in report["operators"] if o["id"] == operator for s in o["stores"] if s["name"] == name)
    return dict(found)


def is_state(path: Path) -> bool:
    return path.is_file() and "_metadata" not in path.parts and not path.name.startswith(".")


def keys_of(kind: str) -> set[str]:
    """All keys ``k`` that a sample's batches ever gave: an aggregation without a watermark still has them."""
    return {json.loads(row)["k"] for rows in sample("4.0.0", kind).rows["sample"].values() for row in rows}


@pytest.mark.parametrize(
    "kind", ["hdfs_agg", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("rocks_agg", "rocks_changelog_agg"))]
)
def test_rows_bytes_and_spread(kind: str, auditor: Auditor, tmp_path: Path):
    checkpoint = unpacked(kind, tmp_path / "ck")
    report = auditor.audit(checkpoint, since=2)
    found = store(report)
    assert (report["batch_id"], report["rows"]) == (5, len(keys_of(kind)))
    on_disk = [p.stat().st_size for p in checkpoint.glob("state/0/*/**/*") if is_state(p)]
    assert found["bytes"] == sum(on_disk)
    assert sum(found["by_partition"].values()) == found["rows"]
    assert found["rows_per_partition"]["partitions"] == 2
    assert found["growth"]["rows_then"] == len(keys_of(kind))
    assert found["growth"]["percent"] == 0.0
    if kind == "rocks_agg":  # no changelog, no change feed
        assert found["growth"]["changes"] is None
        assert "changelog does not exist" in found["growth"]["unknown"][0]
    else:
        # Each of batches 3 to 5 updated what it gave.
        updated = sum(len(rows) for batch, rows in sample("4.0.0", kind).rows["sample"].items() if int(batch) > 2)
        assert found["growth"]["changes"] == {"update": updated}


@pytest.mark.slow
def test_event_time_of_windows_and_of_two_operators(auditor: Auditor, tmp_path: Path):
    report = auditor.audit(unpacked("hdfs_two_operators", tmp_path / "ck"))
    window = store(report)["event_time"]
    assert window["column"] == "window.end"
    # The newest event is of 00:05:04; the watermark keeps one minute open.
    assert (window["oldest"], window["newest"]) == ("2024-01-01T00:05:00+00:00", "2024-01-01T00:06:00+00:00")
    seen = store(report, operator=1)["event_time"]
    assert (seen["column"], seen["newest"]) == ("ts", "2024-01-01T00:05:04+00:00")


@pytest.mark.slow
def test_sides_of_a_join(auditor: Auditor, tmp_path: Path):
    checkpoint = unpacked("hdfs_ssjoin", tmp_path / "ck")
    report = auditor.audit(checkpoint, since=2)
    left, right = store(report, "left"), store(report, "right")
    assert left["rows"] > 0
    assert right["rows"] > 0
    sizes = sum(p.stat().st_size for p in checkpoint.glob("state/0/*/left-*/*") if is_state(p))
    assert left["bytes"] == sizes
    assert set(left["growth"]["changes"]) == {"update", "delete"}


def test_variables_of_a_stateful_processor(auditor: Auditor, tmp_path: Path):
    report = auditor.audit(unpacked("tws_rocks", tmp_path / "ck"))
    # The sample was stopped with batch 6 logged and not committed: five keys, and 5 + 5 * 7 values seen.
    assert (report["batch_id"], store(report, "total")["rows"], store(report, "values")["rows"]) == (5, 5, 40)
    assert store(report, "seen")["rows"] == 30
    assert store(report, "timers")["rows"] == 0
    # They share one store on disk.
    assert store(report, "total")["bytes"] is None
    assert report["bytes"] > 0


def test_without_state(auditor: Auditor, tmp_path: Path):
    report = auditor.audit(unpacked("file_to_noop", tmp_path / "ck"))
    assert (report["operators"], report["rows"], report["batch_id"]) == ([], 0, None)


def test_the_newest_readable_batch_is_taken(auditor: Auditor, tmp_path: Path):
    checkpoint = unpacked("hdfs_agg", tmp_path / "ck")
    for newest in checkpoint.glob("state/0/*/6.delta"):
        newest.unlink()
    report = auditor.audit(checkpoint)
    assert report["batch_id"] == 4
    (refused,) = report["unreadable"]
    assert refused["batch_id"] == 5
    assert "/6.delta" in refused["reason"]


def test_where_nothing_can_be_read(auditor: Auditor, tmp_path: Path):
    checkpoint = unpacked("hdfs_agg", tmp_path / "ck")
    for delta in checkpoint.glob("state/0/*/1.delta"):
        delta.unlink()
    assert "/1.delta" in auditor.audit(checkpoint)["nothing"]


@pytest.mark.slow
def test_state_format_2_is_refused_by_the_spark_that_cannot_read_it(tmp_path: Path):
    """In a JVM of its own: Spark 4.0 keeps to the first state format it meets."""
    checkpoint = unpacked("rocks_ckptv2_agg", tmp_path / "ck")
    auditor = Auditor(tmp_path / "spark.log")
    try:
        assert "run the audit with Spark 4.1 or later" in auditor.audit(checkpoint)["nothing"]
    finally:
        auditor.close()


@pytest.mark.slow
def test_a_live_stream_goes_on(auditor: Auditor, spark_host: SparkHost, tmp_path: Path):
    source, checkpoint = tmp_path / "in", tmp_path / "ck"
    put_files(source, 16)
    run = spark_host.start("agg_changelog", source=source, checkpoint=checkpoint, out=tmp_path / "out")
    # The stream keeps three batches and its maintenance deletes several times a second.
    batches = []
    for more in range(2):
        put_files(source, 6, start=16 + 6 * more)
        while max((int(p.name) for p in (checkpoint / "commits").glob("[0-9]*")), default=0) < 5:
            assert not run.ended.wait(0.05), run.error
        report = auditor.audit(checkpoint)
        assert "nothing" not in report, report
        batches.append(report["batch_id"])
        assert report["rows"] == 12, "all keys come in the first five files"
    assert batches == sorted(batches)
    assert not run.ended.is_set(), run.error
    run.drain()
    run.finished()
    after = auditor.audit(checkpoint)
    assert after["batch_id"] == Checkpoint.at(open_location(str(checkpoint))).progress().latest_committed


@pytest.mark.slow
def test_the_file_alone_under_spark_submit(tmp_path: Path):
    """As a cluster has it: only the file, without this package, by ``spark-submit``."""
    checkpoint = unpacked("rocks_changelog_agg", tmp_path / "ck")
    alone = tmp_path / "job" / "audit_state.py"
    alone.parent.mkdir()
    alone.write_text(Path(audit_state.__file__).read_text())
    output = tmp_path / "reports" / "20261121.json"
    submit = Path(sys.executable).with_name("spark-submit")
    command = [
        submit,
        "--master",
        "local[2]",
        "--conf",
        "spark.ui.enabled=false",
        alone,
        checkpoint,
        "--output",
        output,
    ]
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYSPARK_PYTHON": sys.executable, **_java()},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(output.read_text())["rows"] == len(keys_of("rocks_changelog_agg"))
    assert "0 stateStoreSave  default  5" in done.stdout


def _java() -> dict[str, str]:
    import os

    return {name: os.environ[name] for name in ("JAVA_HOME", "HOME") if name in os.environ}
