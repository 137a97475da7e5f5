"""Real queries are proven stopped only when they are: triggers and sources of all kinds, running and stopped."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest

from airflow_ckpt_provider.change.rest import RestEvidence, RestProof, RestRule, prove_rest
from airflow_ckpt_provider.change.rest_probes import ProgressLinesEnded, probes_of
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.errors import QueryNotStoppedError, RefusedError
from airflow_ckpt_provider.guards.spark_rest import SparkApplicationEnded
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.integration.resting_queries import RestingQueries
from tests.integration.streams.data import put_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

#: Seconds instead of minutes and days, so that a silence can be proven within a test.
QUICK = RestRule(quiet_for=0.5, wait_at_most=20, minimum=3, history=3)
#: As in production, where a history of a day is asked for.
CAREFUL = replace(QUICK, history=86400)
RATE = {"format": "rate", "rowsPerSecond": 5}
STEADY, SLOW = "steady", "slow_trigger"

#: Name -> the rule by which silence is judged, and a word of why it does not do while the query runs.
RUNNING = {
    STEADY: (QUICK, "changed within|may be under way|somebody writes"),
    SLOW: (QUICK, "changed within|may be under way|somebody writes"),
    "idle_files": (CAREFUL, "does not show whether the stream pauses"),
    "no_files_yet": (QUICK, "no batch is logged yet"),
    "available_now_long_batch": (QUICK, "may be under way"),
    "continuous": (QUICK, "as in continuous mode"),
}


def location(path: Path) -> Location:
    return open_location(str(path))


def wait_until(condition: Callable[[], bool], within: float = 90.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "waited for too long"
        time.sleep(0.05)


def newest(checkpoint: Path, log: str = "commits") -> int:
    return max((int(p.name) for p in checkpoint.glob(f"{log}/[0-9]*") if p.name.isdigit()), default=-1)


Found = dict[str, RestProof | QueryNotStoppedError]


def try_all(asked: dict[str, tuple[Path, RestRule]]) -> Found:
    """Ask for proof of all at once."""

    def ask(each: tuple[Path, RestRule]) -> RestProof | QueryNotStoppedError:
        try:
            return prove_rest(location(each[0]), each[1])
        except QueryNotStoppedError as e:
            return e

    with ThreadPoolExecutor(len(asked)) as pool:
        return dict(zip(asked, pool.map(ask, asked.values()), strict=True))


class Story:
    """All of them run, then all of them stop; what was found of each."""

    def __init__(self, queries: RestingQueries) -> None:
        self.queries = queries
        files, few, none = (queries.place / name for name in ("in", "in_few", "in_none"))
        put_files(files, 10)
        put_files(few, 6)
        (none / "a").mkdir(parents=True)
        read = {"format": "json", "maxFilesPerTrigger": 1}
        start = queries.start
        self.checkpoints = {
            SLOW: start(SLOW, RATE, {"processingTime": "2 seconds"}),
            STEADY: start(STEADY, RATE, {"processingTime": "0 seconds"}),
            "idle_files": start("idle_files", read | {"path": f"{files}/a"}, {"processingTime": "0 seconds"}),
            "no_files_yet": start("no_files_yet", read | {"path": f"{none}/a"}, {"processingTime": "0 seconds"}),
            "available_now_long_batch": start(
                "available_now_long_batch", read | {"path": f"{files}/a"}, {"availableNow": True}, slow_from=5
            ),
            "available_now_done": start("available_now_done", read | {"path": f"{few}/a"}, {"availableNow": True}),
            # It takes a core for each partition, for ever.
            "continuous": start("continuous", RATE | {"numPartitions": 1}, {"continuous": "1 second"}),
        }
        at = self.checkpoints
        for name, count in ((SLOW, 8), (STEADY, 10), ("idle_files", 9), ("available_now_done", 5), ("continuous", 2)):
            wait_until(lambda name=name, count=count: newest(at[name]) >= count)  # type: ignore[misc]
        wait_until(lambda: newest(at["available_now_long_batch"], "offsets") == 5)
        self.was_at_rest = self._looked_at_rest(at[SLOW])
        self.running = try_all({name: (at[name], rule) for name, (rule, _) in RUNNING.items()})
        self.probes_while_running = {name: self.probe(name).ended() for name in RUNNING}
        for name in RUNNING:
            queries.stop(name)
        for name in at:  # Spark tells its listeners a little later
            wait_until(lambda name=name: self.probe(name).ended() is not None)  # type: ignore[misc]
        probes = {name: (at[name], replace(CAREFUL, probes=(self.probe(name),))) for name in at}
        quiet = {f"{name}, silent": (at[name], QUICK) for name in (STEADY, SLOW)}
        quiet["available_now_done, silent"] = (at["available_now_done"], CAREFUL)
        self.stopped = try_all(probes | quiet)

    def probe(self, name: str) -> ProgressLinesEnded:
        return ProgressLinesEnded(location(self.queries.lines), location(self.checkpoints[name]))

    @staticmethod
    def _looked_at_rest(checkpoint: Path) -> bool:
        """Whether the check of two inspections, as it was, takes the query between two triggers for one that rests."""
        for _ in range(20):
            before = inspect_target(location(checkpoint)).fingerprint
            time.sleep(0.5)  # what it did: two looks at so many seconds, and nothing else
            if inspect_target(location(checkpoint)).fingerprint == before:
                return True
        return False


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestingQueries]:
    started = RestingQueries(tmp_path_factory.mktemp("resting") / "queries")
    yield started
    started.kill()


@pytest.fixture(scope="module")
def story(queries: RestingQueries) -> Story:
    return Story(queries)


def test_two_inspections_took_a_running_query_for_one_at_rest(story: Story) -> None:
    assert story.was_at_rest


@pytest.mark.parametrize("name", RUNNING)
def test_no_proof_while_it_runs(story: Story, name: str) -> None:
    found = story.running[name]
    assert isinstance(found, QueryNotStoppedError), found
    assert re.search(RUNNING[name][1], found.message)
    assert story.probes_while_running[name] is None


@pytest.mark.parametrize("name", [*RUNNING, "available_now_done"])
def test_its_end_is_told_by_the_progress_lines(story: Story, name: str) -> None:
    """All seven write to one file; a stopped query has an end there, whatever its trigger."""
    found = story.stopped[name]
    assert isinstance(found, RestProof), found
    assert found.how == RestEvidence.PROBE


@pytest.mark.parametrize("name", [STEADY, SLOW])
def test_silence_proves_it_where_batches_came_evenly(story: Story, name: str) -> None:
    """Where it was stopped within a batch, or a busy machine made its pauses uneven, the reason is named instead."""
    found = story.stopped[f"{name}, silent"]
    if isinstance(found, RestProof):
        assert found.how == RestEvidence.QUIET
    else:
        assert re.search("may be under way|pause|silence proves nothing here", found.message), found


def test_silence_proves_nothing_of_a_query_that_runs_now_and_then(story: Story) -> None:
    assert isinstance(story.stopped["available_now_done, silent"], QueryNotStoppedError)


def test_a_person_who_is_wrong_and_one_who_is_right(story: Story) -> None:
    queries, checkpoint = story.queries, story.checkpoints[STEADY]
    before = newest(checkpoint)
    queries.start(STEADY, RATE, {"processingTime": "0 seconds"})
    wait_until(lambda: newest(checkpoint) > before)
    told = replace(QUICK, query_is_stopped=True, said_by="kim", quiet_for=4)
    with pytest.raises(QueryNotStoppedError, match="though kim says that the query is stopped"):
        prove_rest(location(checkpoint), told)
    queries.stop(STEADY)
    assert prove_rest(location(checkpoint), told).how == RestEvidence.STATEMENT


def test_a_query_that_starts_while_its_end_is_checked(story: Story) -> None:
    """Its next trigger is far: it writes nothing that would be seen in time."""
    queries, checkpoint = story.queries, story.checkpoints[SLOW]
    probe = story.probe(SLOW)
    assert probe.ended() is not None

    class StartsMeanwhile:
        asked = 0

        def ended(self) -> str | None:
            self.asked += 1
            if self.asked == 2:
                queries.start(SLOW, RATE, {"processingTime": "1 hour"})
            return probe.ended()

    try:
        with pytest.raises(QueryNotStoppedError):
            prove_rest(location(checkpoint), replace(CAREFUL, probes=(StartsMeanwhile(),)))
    finally:
        queries.stop(SLOW)


@pytest.mark.slow
def test_a_history_server_tells_the_end(tmp_path: Path) -> None:
    """Of a driver that was killed it says for ever that it runs: that is an error and no proof."""
    done, killed = RestingQueries(tmp_path / "done"), RestingQueries(tmp_path / "killed")
    try:
        done.end()
    finally:
        done.kill()
        killed.kill()
    for end, expected in ((done, "ended"), (killed, "runs")):
        with history_server(end.place / "events") as base:
            probe = SparkApplicationEnded.at(f"{base}/api/v1/applications/{end.application['id']}")
            said: list[str] = []

            def ask(probe: SparkApplicationEnded = probe, said: list[str] = said) -> bool:
                try:
                    said.extend(filter(None, [probe.ended()]))
                except RefusedError as e:
                    said.append(e.message)
                return bool(said)

            wait_until(ask)
            assert f"application {end.application['id']} {expected}" in said[0]


@contextmanager
def history_server(events: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = f"-Dspark.history.fs.logDirectory=file://{events} -Dspark.history.ui.port={port}"
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with (events.parent / "history.log").open("wb") as log:
        process = subprocess.Popen(
            [str(program), "org.apache.spark.deploy.history.HistoryServer"],
            env=os.environ | {"SPARK_HISTORY_OPTS": options},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_spark_s_rest_interface(queries: RestingQueries) -> None:
    address = f"{queries.application['ui']}/api/v1/applications/{queries.application['id']}"
    with pytest.raises(RefusedError, match=f"application {queries.application['id']} runs since"):
        SparkApplicationEnded.at(address).ended()
    other = f"{queries.application['ui']}/api/v1/applications/another"
    assert SparkApplicationEnded.at(other).ended() is None
    place = location(queries.place / "nowhere")
    with pytest.raises(QueryNotStoppedError, match="runs since"):
        prove_rest(place, replace(QUICK, query_is_stopped=True, probes=probes_of(place, spark_rest=address)))
