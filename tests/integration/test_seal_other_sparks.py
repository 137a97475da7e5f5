"""Seal, proof of rest and a restore against the oldest and the newest Spark that are supported, and the locked one.

No Kafka and no Delta here: file source, rows by batch in a directory. More of the locked one: `test_seal.py`, `test_rest.py`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.rest import RestEvidence, RestRule, prove_rest
from airflow_ckpt_provider.change.rest_probes import ProgressLinesEnded
from airflow_ckpt_provider.change.sealing import put_seal, seal, unseal
from airflow_ckpt_provider.change.stopping import stop_plan_and_apply
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.silence import needed_silence
from airflow_ckpt_provider.errors import QueryNotStoppedError, RefusedError
from airflow_ckpt_provider.guards.spark_rest import SparkApplicationEnded
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.opening import open_location
from tests.samples.kinds import KINDS, newest, write_input
from tests.samples.service import SampleService
from tests.samples.spark_versions import python_with
from tests.support.sealing_streams import STOPPED
from tests.support.stopped import ACCEPTED
from tests.support.streams import sink
from tests.support.waiting import wait_until

#: A test may have to install a Spark first, and to start it.
pytestmark = pytest.mark.timeout(900)

VERSIONS = (
    pytest.param("3.5.9", marks=pytest.mark.other_spark),
    pytest.param("4.0.0", marks=[pytest.mark.spark, pytest.mark.slow]),
    pytest.param("4.3.0", marks=pytest.mark.other_spark),
)
#: Stateless, one store of state after the other; then the offset log as the newest Spark may write it.
STREAMS = ("file_to_foreachbatch", "hdfs_agg", "rocks_changelog_agg", "offset_log_v2")
FILES = 40
FASTEST, EVERY_SECOND, TO_THE_END = (
    {"processingTime": "0 seconds"},
    {"processingTime": "1 second"},
    {"availableNow": True},
)
#: Seconds instead of minutes and days, so that a silence can be proven within a test.
QUICK = RestRule(quiet_for=0.5, wait_at_most=120, minimum=4, history=4)


class RunningStreams(SampleService):
    """The Spark of one version, whose queries run until they are stopped."""

    script = "running.py"

    @property
    def application(self) -> str:
        """Address of the application in Spark's REST interface."""
        return f"{self.ready['ui']}/api/v1/applications/{self.ready['application']}"


class Stream:
    """A query over 40 files, one a batch, its checkpoint and its sink.

    :param place: a new directory; its name is the query's.
    """

    def __init__(self, spark: SampleService, kind: str, place: Path) -> None:
        self.spark, self.kind, self.place = spark, kind, place
        first, second = KINDS[kind].files
        write_input(place, kind, first=(0, 0), count=(FILES if first else 0, FILES if second else 0))
        self.out = place / "out"
        self.path = place / "checkpoint"
        self.location = open_location(str(self.path))
        self.checkpoint = Checkpoint.at(self.location)

    def start(
        self, trigger: dict[str, Any], *, out: Path | None = None, checkpoint: Path | None = None, **conf: str
    ) -> dict[str, str]:
        return self._ask(
            "start",
            kind=self.kind,
            checkpoint=str(checkpoint or self.path),
            input=str(self.place),
            out=str(out or self.out),
            trigger=trigger,
            conf=conf,
        )

    def run_to_the_end(self, *, out: Path | None = None, checkpoint: Path | None = None) -> None:
        assert self.start(TO_THE_END, out=out, checkpoint=checkpoint)["message"] == ""
        assert self.wait()["message"] == ""

    def refused(self) -> dict[str, str]:
        """What Spark says to a start that it refuses: at once, or right after."""
        answer = self.start(FASTEST)
        return answer if answer["message"] else self.wait()

    def wait(self) -> dict[str, str]:
        """Wait for its end; what it ended with."""
        return self._ask("wait")

    def stop(self) -> None:
        self._ask("stop")

    def reference(self) -> dict[int, list[str]]:
        """Rows by batch of the same query, never stopped."""
        out = self.place / "reference"
        self.run_to_the_end(out=out, checkpoint=self.place / "reference-checkpoint")
        return sink.batches(out)

    def wait_for_batch(self, batch: int) -> None:
        wait_until(lambda: newest(self.path, "commits") >= batch)

    def _ask(self, do: str, **more: Any) -> dict[str, str]:
        answer: dict[str, str] = self.spark.ask({"do": do, "name": str(self.place), **more})
        return answer


@pytest.fixture(scope="module", params=VERSIONS)
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStreams]:
    log = tmp_path_factory.mktemp("spark") / f"{request.param}.log"
    with RunningStreams(python_with(request.param), log) as running:
        assert running.spark_version == request.param
        yield running


@pytest.fixture
def stream(spark: RunningStreams, tmp_path: Path) -> Stream:
    return Stream(spark, "file_to_foreachbatch", tmp_path / "stream")


@pytest.mark.parametrize("kind", STREAMS)
def test_a_sealed_stream_stops_at_its_batch_and_continues_row_exact(
    spark: RunningStreams, kind: str, tmp_path: Path
) -> None:
    since = KINDS[kind].since
    if since > tuple(map(int, spark.spark_version.split(".")[:2])):
        pytest.skip(f"Spark {spark.spark_version} has no {kind}: tests/samples/kinds.py declares it since {since}")
    stream = Stream(spark, kind, tmp_path / kind)
    reference = stream.reference()
    assert stream.start(FASTEST)["message"] == ""
    stream.wait_for_batch(2)
    mark = seal(stream.checkpoint, reason="the table is moved", made_by="the test", plan_id="plan1")

    stopped = stream.wait()
    assert any(text in stopped["message"] + stopped["trace"] for text in STOPPED), stopped
    last = mark.batch_id - 1
    progress = stream.checkpoint.progress()
    assert (progress.latest_logged, progress.latest_committed) == (last, last)
    assert last + 1 < FILES, "it had come to the end by itself"
    written = sink.batches(stream.out)
    assert written == {batch: rows for batch, rows in reference.items() if batch <= last}

    assert mark.sentence in stream.refused()["message"]
    assert sink.batches(stream.out) == written
    assert stream.checkpoint.progress().seal == mark

    assert unseal(stream.checkpoint, plan_id="plan1") == mark
    stream.run_to_the_end()
    assert rows_of(kind, sink.batches(stream.out)) == rows_of(kind, reference)


def rows_of(kind: str, batches: dict[int, list[str]]) -> list[str]:
    """What a reader sees: the batch that met the seal may later take two files (docs/seal-limits.md)."""
    if KINDS[kind].mode == "update":
        batches = sink.newest_by_key(batches)
    return sorted(row for rows in batches.values() for row in rows)


def test_spark_s_error_shows_the_seal_of_an_attempt(stream: Stream) -> None:
    assert stream.start(FASTEST)["message"] == ""
    stream.wait_for_batch(1)
    stream.stop()
    logged = stream.checkpoint.progress().latest_logged
    assert logged is not None
    mark = put_seal(
        stream.location, logged + 1, plan_id="plan7", reason="restore", made_by="dags/orders, by kim", attempt=12
    )
    said = stream.refused()["message"]
    assert "airflow-ckpt: sealed by plan plan7 attempt 12 (restore, dags/orders; by kim, " in said
    assert mark.sentence in said
    found = stream.checkpoint.progress().seal
    assert found
    assert (found.sentence, found.attempt) == (mark.sentence, 12)


def test_limit_continuous_mode_starts_under_a_seal(spark: RunningStreams, tmp_path: Path) -> None:
    """It logs the epochs beyond the seal and commits none of them; the seal stays, and is then no longer the newest entry."""
    stream = Stream(spark, "rate_continuous", tmp_path / "stream")
    assert stream.start({})["message"] == ""
    stream.wait_for_batch(2)
    stream.stop()
    with pytest.raises(RefusedError, match="continuous mode"):
        seal(stream.checkpoint, reason="stopped", made_by="the test", plan_id="plan")
    beyond = newest(stream.path, "offsets") + 1
    mark = put_seal(stream.location, beyond, plan_id="plan", reason="stopped", made_by="the test")
    committed = newest(stream.path, "commits")
    assert stream.start({})["message"] == ""
    wait_until(lambda: newest(stream.path, "offsets") > mark.batch_id + 2)
    stream.stop()
    assert stream.location.read(mark.path).decode() == mark.sentence
    assert newest(stream.path, "commits") == committed
    assert stream.checkpoint.progress().seal is None


def test_limit_async_progress_tracking_is_to_be_sealed_when_stopped(spark: RunningStreams, tmp_path: Path) -> None:
    stream = Stream(spark, "rate_async_progress", tmp_path / "stream")
    assert stream.start(FASTEST)["message"] == ""
    stream.wait_for_batch(1)
    stream.stop()
    mark = seal(stream.checkpoint, reason="stopped", made_by="the test", plan_id="plan")
    assert mark.sentence in stream.refused()["message"]
    assert stream.checkpoint.progress().seal == mark
    unseal(stream.checkpoint, plan_id="plan")
    assert stream.start(FASTEST)["message"] == ""
    stream.wait_for_batch(mark.batch_id + 1)
    stream.stop()


def test_a_restore_waits_for_proof_that_the_query_is_stopped(
    stream: Stream, spark: RunningStreams, tmp_path: Path
) -> None:
    """While it runs, with a trigger of three seconds, nobody's word lets a change begin."""
    lines = tmp_path / "lines.jsonl"
    assert spark.ask({"do": "listen", "lines": str(lines)})["message"] == ""
    probe = ProgressLinesEnded(open_location(str(lines)), stream.location)
    reference = stream.reference()
    repository = Repository.open_or_create(open_location(str(tmp_path / "repository")))
    assert stream.start({"processingTime": "3 seconds"})["message"] == ""
    stream.wait_for_batch(2)
    manifest = create_backup(stream.checkpoint, repository, name="orders").manifest
    stream.wait_for_batch(manifest.batch_id + 2)
    said = replace(QUICK, query_is_stopped=True, said_by="kim", quiet_for=7)
    with pytest.raises(QueryNotStoppedError, match="though kim says that the query is stopped"):
        prove_rest(stream.location, said)
    with pytest.raises(QueryNotStoppedError):
        prove_rest(stream.location, replace(QUICK, wait_at_most=20))
    with pytest.raises(QueryNotStoppedError):
        prove_rest(stream.location, replace(QUICK, history=86400, probes=(probe,)))
    with pytest.raises(QueryNotStoppedError, match=f"application {spark.ready['application']} runs since"):
        prove_rest(stream.location, replace(said, probes=(SparkApplicationEnded.at(spark.application),)))
    with pytest.raises(QueryNotStoppedError):
        apply_restore(plan_restore(repository, manifest, stream.location, replace=True), accept=ACCEPTED, rest=said)
    before = newest(stream.path, "commits")
    stream.wait_for_batch(before + 1)  # nothing has disturbed it

    stream.stop()
    wait_until(lambda: probe.ended() is not None)  # Spark informs its listeners a little later
    found = prove_rest(stream.location, replace(QUICK, history=86400, probes=(probe,)))
    assert found.how is RestEvidence.PROBE
    plan = plan_restore(repository, manifest, stream.location, replace=True)
    apply_restore(plan, accept=ACCEPTED, rest=replace(QUICK, history=86400, probes=(probe,)))
    assert newest(stream.path, "commits") == manifest.batch_id
    assert_runs_again_from(stream, manifest.batch_id, reference)


def test_a_restore_stops_a_running_query_and_waits_for_silence(stream: Stream, tmp_path: Path) -> None:
    reference = stream.reference()
    repository = Repository.open_or_create(open_location(str(tmp_path / "repository")))
    # So that the first batches, which are slow, are soon none of those that are kept.
    assert stream.start(EVERY_SECOND, **{"spark.sql.streaming.minBatchesToRetain": "8"})["message"] == ""
    stream.wait_for_batch(2)
    manifest = create_backup(stream.checkpoint, repository, name="orders").manifest
    wait_until(lambda: pauses_evenly(stream))

    def plan(seal_id: str | None) -> Any:
        return plan_restore(repository, manifest, stream.location, replace=True, seal_id=seal_id)

    restore = functools.partial(
        stop_plan_and_apply, stream.location, repository, plan, apply_restore, change="restore", accept=ACCEPTED
    )
    with pytest.raises(RefusedError):
        restore(rest=replace(QUICK, wait_at_most=0))
    _, outcome = restore(stop_running=True, rest=QUICK, made_by="the test")
    assert not outcome.already_done
    stopped = stream.wait()
    assert any(text in stopped["message"] + stopped["trace"] for text in STOPPED), stopped
    assert stream.checkpoint.progress().seal is None
    assert newest(stream.path, "commits") == manifest.batch_id
    kept = list((tmp_path / "repository").rglob("*.json"))
    assert any(re.search(r'"how": "quiet"', file.read_text()) for file in kept), "the audit record lacks the proof"
    assert_runs_again_from(stream, manifest.batch_id, reference)


def pauses_evenly(stream: Stream) -> bool:
    """Whether the offset log now lets a silence count, as far as the history goes."""
    files = stream.location.walk()
    found = needed_silence(stream.location, files, factor=QUICK.factor, minimum=QUICK.minimum, history=QUICK.history)
    return found.seconds is not None


def assert_runs_again_from(stream: Stream, batch: int, reference: dict[int, list[str]]) -> None:
    """The query, started from the restored checkpoint, gives what a query that never stopped gave after that batch."""
    again = stream.place / "again"
    stream.run_to_the_end(out=again)
    assert sink.batches(again) == {number: rows for number, rows in reference.items() if number > batch}
    assert stream.checkpoint.progress().latest_committed == FILES - 1
