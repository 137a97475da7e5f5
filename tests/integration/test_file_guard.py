"""The log of a file source that lacks an entry, as Spark takes it: the control of what the guard says."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from airflow_ckpt_provider.guards.files import FileGuard
from airflow_ckpt_provider.guards.query import from_checkpoint, guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.streams.session import start_session

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: Batches of the stream; the log is compacted at 9.
BATCHES = 13


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_session()
    yield session
    session.stop()


def put(place: Path, *numbers: int) -> None:
    place.mkdir(exist_ok=True)
    for number in numbers:
        file = place / f"f{number:03}.json"
        file.write_text(json.dumps({"v": number}))
        os.utime(file, (1_700_000_000 + number,) * 2)


def run(spark: SparkSession, source: Path, checkpoint: Path) -> None:
    """Read what is there, a file in each batch."""
    rows = spark.readStream.schema("v int").option("maxFilesPerTrigger", 1).json(str(source))
    written = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    written.trigger(availableNow=True).start().awaitTermination()


@pytest.fixture(scope="module")
def stream(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The input and the checkpoint of a stream that has read 13 files; one more is there to be read."""
    root = tmp_path_factory.mktemp("files")
    put(root / "in", *range(BATCHES))
    run(spark, root / "in", root / "ck")
    put(root / "in", BATCHES)
    return root / "in", root / "ck"


def planned_again(log: Path) -> None:
    """The newest batch was planned and not committed, and the entry of its files is gone."""
    (log.parents[1] / "commits" / str(BATCHES - 1)).unlink()
    (log / str(BATCHES - 1)).unlink()


@pytest.mark.parametrize(
    ("damage", "fails"),
    [
        pytest.param(lambda log: None, False, id="whole"),
        pytest.param(lambda log: (log / "3").unlink(missing_ok=True), False, id="an entry before the compacted file"),
        pytest.param(lambda log: (log / "9.compact").unlink(), True, id="the compacted file is gone"),
        pytest.param(lambda log: (log / "9.compact").write_bytes(b""), True, id="the compacted file is empty"),
        pytest.param(lambda log: (log / "10").unlink(), True, id="an entry after it"),
        pytest.param(lambda log: shutil.rmtree(log), True, id="all of it"),
        pytest.param(planned_again, True, id="the entry of the planned batch"),
    ],
)
def test_the_guard_says_what_spark_does(
    spark: SparkSession, stream: tuple[Path, Path], tmp_path: Path, damage: Callable[[Path], None], fails: bool
) -> None:
    source, whole = stream
    checkpoint = tmp_path / "ck"
    shutil.copytree(whole, checkpoint, ignore=shutil.ignore_patterns("*.crc"))
    damage(checkpoint / "sources" / "0")
    settings = GuardSettings()
    report = guard_query(from_checkpoint(open_location(str(checkpoint))), settings, guards=[FileGuard(settings)])
    assert report.verdict is (Verdict.WILL_FAIL if fails else Verdict.SAFE)
    if fails:
        with pytest.raises(StreamingQueryException, match=r"doesn't exist|Incomplete log file"):
            run(spark, source, checkpoint)
    else:
        run(spark, source, checkpoint)
        assert (checkpoint / "commits" / str(BATCHES)).exists()
