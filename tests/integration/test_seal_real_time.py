"""Seal, proof of rest and a restore against real-time mode, which Spark has since 4.1.

Spark runs it over Kafka and over a source in memory that lies in its own jar; here it is the latter. Other sources are refused.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.rest import RestEvidence, RestRule, prove_rest
from airflow_ckpt_provider.change.sealing import put_seal, seal, unseal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.silence import needed_silence
from airflow_ckpt_provider.errors import QueryNotStoppedError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.opening import open_location
from tests.samples.kinds import newest
from tests.samples.service import SampleService
from tests.samples.spark_versions import python_with
from tests.support.sealing_streams import STOPPED
from tests.support.stopped import ACCEPTED
from tests.support.waiting import wait_until

#: A test may have to install a Spark first, and to start it.
pytestmark = [pytest.mark.other_spark, pytest.mark.timeout(900)]

VERSIONS = ("4.1.4", "4.3.0")
#: A batch takes two seconds.
QUICK = RestRule(quiet_for=0.5, wait_at_most=120, minimum=5, history=5)
SAID = RestRule(query_is_stopped=True, said_by="kim", quiet_for=5)


class RealTimeSpark(SampleService):
    """The Spark of one version, with its source in memory."""

    script = "real_time.py"

    def told(self, do: str, **more: Any) -> str:
        """Tell it something; Spark's message, or an empty text."""
        message: str = self.ask({"do": do, **more})["message"]
        return message


class Stream:
    """A query in real-time mode that gives its rows as it reads them.

    :param place: a new directory.
    """

    def __init__(self, spark: RealTimeSpark, place: Path) -> None:
        place.mkdir()
        self.spark, self.name, self.out = spark, str(place), place / "rows"
        self.path = place / "checkpoint"
        self.location = open_location(str(self.path))
        self.checkpoint = Checkpoint.at(self.location)
        self.fed: list[str] = []

    def start(self) -> str:
        return self.spark.told("start", name=self.name, checkpoint=str(self.path), out=str(self.out))

    def run(self) -> None:
        assert self.start() == ""

    def wait(self) -> str:
        """Wait for its end; what it ended with."""
        return self.spark.told("wait", name=self.name)

    def refused(self) -> str:
        """What Spark says to a start that it refuses: at once, or right after."""
        return self.start() or self.wait()

    def stop(self) -> None:
        assert self.spark.told("stop", name=self.name) == ""

    def feed(self) -> str:
        """Give it a row to read."""
        row = f"{self.name} {len(self.fed)}"
        self.fed.append(row)
        assert self.spark.told("add", rows=[row]) == ""
        return row

    def rows(self) -> Counter[str]:
        """How often each row was given."""
        return Counter(self.out.read_text().splitlines() if self.out.exists() else [])

    def committed(self) -> int:
        return newest(self.path, "commits")

    def feed_until_batch(self, batch: int) -> None:
        wait_until(lambda: bool(self.feed()) and self.committed() >= batch)


@pytest.fixture(params=VERSIONS)
def spark(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealTimeSpark]:
    """One for each test: its source begins empty."""
    with RealTimeSpark(python_with(request.param), tmp_path / "spark.log") as running:
        assert running.spark_version == request.param
        yield running


@pytest.fixture
def stream(spark: RealTimeSpark, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path / "stream")


@pytest.mark.parametrize("source", ["rate", "rate-micro-batch"])
def test_limit_no_other_source_of_spark_s_own_runs_in_real_time_mode(
    spark: RealTimeSpark, tmp_path: Path, source: str
) -> None:
    said = spark.told("source", name="a", format=source, checkpoint=str(tmp_path / "ck"), out=str(tmp_path / "out"))
    assert "STREAMING_REAL_TIME_MODE.INPUT_STREAM_NOT_SUPPORTED" in said


@pytest.mark.parametrize("has_data", [True, False])
def test_a_sealed_stream_stops_at_the_end_of_its_batch_and_runs_that_batch_again(
    stream: Stream, has_data: bool
) -> None:
    """No row is lost. The rows of the batch that met the seal come twice: they were given before Spark came to log the batch."""
    stream.run()
    stream.feed_until_batch(1)
    for number in range(2):
        if not has_data:  # a batch that has read nothing, and the next one under way
            quiet_since = stream.committed()
            wait_until(lambda: stream.committed() >= quiet_since + 2)  # noqa: B023
        mark = seal(stream.checkpoint, reason="the table is moved", made_by="the test", plan_id=f"plan{number}")
        under_the_seal = [stream.feed() for _ in range(5)] if has_data else []
        said = stream.wait()
        assert any(text in said for text in STOPPED), said
        progress, last = stream.checkpoint.progress(), mark.batch_id - 1
        assert (progress.latest_logged, progress.latest_committed) == (last, last)
        given = stream.rows()

        assert mark.sentence in stream.refused()
        assert stream.rows() == given
        assert stream.checkpoint.progress().seal == mark

        assert unseal(stream.checkpoint, plan_id=f"plan{number}") == mark
        stream.run()
        stream.feed_until_batch(mark.batch_id + 1)
        # What was given under the seal was not committed.
        assert {stream.rows()[row] for row in under_the_seal if given[row]} <= {2}
    wait_until(lambda: set(stream.rows()) >= set(stream.fed))
    assert set(stream.rows()) == set(stream.fed)
    assert set(stream.rows().values()) == ({1, 2} if has_data else {1})
    stream.stop()


def test_spark_s_error_shows_the_seal_of_an_attempt(stream: Stream) -> None:
    """Also where it was stopped in the middle of a batch."""
    stream.run()
    stream.feed_until_batch(1)
    row = stream.feed()
    wait_until(lambda: stream.rows()[row] > 0)
    stream.stop()
    logged = stream.checkpoint.progress().latest_logged
    assert logged is not None
    mark = put_seal(stream.location, logged + 1, plan_id="plan7", reason="restore", made_by="kim", attempt=12)
    said = stream.refused()
    assert "airflow-ckpt: sealed by plan plan7 attempt 12 (restore, kim, " in said
    assert stream.checkpoint.progress().seal == mark


def test_a_restore_waits_for_proof_that_the_query_is_stopped(stream: Stream, tmp_path: Path) -> None:
    repository = Repository.open_or_create(open_location(str(tmp_path / "repository")))
    stream.run()
    stream.feed_until_batch(1)
    manifest = create_backup(stream.checkpoint, repository, name="orders").manifest
    stream.feed_until_batch(manifest.batch_id + 2)
    with pytest.raises(QueryNotStoppedError, match="though kim says that the query is stopped"):
        prove_rest(stream.location, SAID)
    with pytest.raises(QueryNotStoppedError):
        prove_rest(stream.location, QUICK)
    with pytest.raises(QueryNotStoppedError):
        apply_restore(plan_restore(repository, manifest, stream.location, replace=True), accept=ACCEPTED, rest=SAID)
    wait_until(lambda: counts(stream))
    stream.stop()

    assert prove_rest(stream.location, QUICK).how is RestEvidence.QUIET
    apply_restore(plan_restore(repository, manifest, stream.location, replace=True), accept=ACCEPTED, rest=QUICK)
    assert stream.committed() == manifest.batch_id
    offsets = (stream.path / "offsets" / str(manifest.batch_id)).read_text().splitlines()[-1]
    stream.out.unlink()
    stream.run()
    # One row after the other: to the first partition on 4.1, to both by turns on 4.3.
    beyond = stream.fed[sum(json.loads(offsets).values()) :]
    assert beyond, "nothing had to run again: the test shows nothing"
    wait_until(lambda: set(stream.rows()) >= set(beyond))
    stream.stop()
    assert stream.rows() == Counter(beyond)


def counts(stream: Stream) -> bool:
    """Whether the offset log now lets a silence count, as far as the history goes."""
    files = stream.location.walk()
    found = needed_silence(stream.location, files, factor=QUICK.factor, minimum=QUICK.minimum, history=QUICK.history)
    return found.seconds is not None
