"""Real queries are proven stopped only when they are: triggers and sources of all kinds, running and stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import pytest

from airflow_ckpt_provider.change.rest import RestClock, RestEvidence, RestProof, RestRule, prove_rest
from airflow_ckpt_provider.change.rest_probes import ProgressLinesEnded, probes_of
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.errors import QueryNotStoppedError, RefusedError
from airflow_ckpt_provider.guards.spark_rest import SparkApplicationEnded
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support import rest_oracle, waiting
from tests.support.every_run import of_these
from tests.support.resting_queries import RestingQueries
from tests.support.streams.data import put_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

#: Seconds instead of minutes, and no history of a day, so that a silence can be proven within a test.
QUICK = RestRule(quiet_for=0.5, wait_at_most=120, minimum=3, history=0)
#: As in production, where a history of a day is asked for.
CAREFUL = replace(QUICK, history=86400)
#: Seconds for a condition to become true, on a machine that is busy with other things.
WITHIN = 400.0
wait_until = partial(waiting.wait_until, within=WITHIN)
RATE = {"format": "rate", "rowsPerSecond": 5}
OWN_PACE, STEADY, SLOW, NOW_AND_THEN = "own_pace", "steady", "slow_trigger", "available_now_done"
EMPTY, LONG_BATCH, CONTINUOUS = "no_files_yet", "available_now_long_batch", "continuous"
CHANGED = "changed within"

#: Case -> the query, the rule by which its silence is judged, and why that is no proof while the query runs.
RUNNING = {
    "idle": (STEADY, CAREFUL, rest_oracle.SHORT),
    STEADY: (STEADY, QUICK, CHANGED),
    SLOW: (SLOW, QUICK, CHANGED),
    OWN_PACE: (OWN_PACE, RestRule(history=0), CHANGED),
    EMPTY: (EMPTY, QUICK, rest_oracle.NO_BATCH),
    LONG_BATCH: (LONG_BATCH, QUICK, rest_oracle.UNDER_WAY),
    CONTINUOUS: (CONTINUOUS, QUICK, rest_oracle.NO_TIMES),
}

Found = RestProof | QueryNotStoppedError


def location(path: Path) -> Location:
    return open_location(str(path))


def newest(checkpoint: Path, log: str = "commits") -> int:
    return max(rest_oracle.logged(checkpoint, log), default=-1)


def ask(checkpoint: Path, rule: RestRule, meanwhile: Callable[[], None] | None = None) -> Found:
    """Ask for proof.

    :param meanwhile: what is done in each wait; ``None``: the time passes.
    """
    clock = RestClock(sleep=lambda _: meanwhile()) if meanwhile else RestClock()
    try:
        return prove_rest(location(checkpoint), rule, clock=clock)
    except QueryNotStoppedError as e:
        return e


def ask_all(asked: dict[str, tuple[Path, RestRule]]) -> dict[str, Found]:
    """Ask for proof of all at once."""
    with ThreadPoolExecutor(len(asked)) as pool:
        return dict(zip(asked, pool.map(lambda each: ask(*each), asked.values()), strict=True))


class Story:
    """All of them run, then all of them stop; what was found of each.

    The test sets the pace of most queries: a batch begins when a file is put, or ends when it is no longer held. So their logs
    do not change while they are judged, however busy the machine is; and the queries run until their logs are as a test needs
    them, which an oracle says that knows nothing of the code.
    """

    def __init__(self, queries: RestingQueries) -> None:
        self.queries = queries
        self.checkpoints: dict[str, Path] = {}
        self.obstacles: dict[str, set[str]] = {}
        put_files(self.files(NOW_AND_THEN), 4)
        put_files(self.files(LONG_BATCH), 80)
        queries.hold(LONG_BATCH, 5)
        self.start(OWN_PACE, {"processingTime": "4 seconds"}, RATE)
        self.start(SLOW, {"processingTime": "2 seconds"})
        self.start(STEADY, {"processingTime": "0 seconds"})
        self.start(EMPTY, {"processingTime": "0 seconds"})
        self.start(LONG_BATCH, {"availableNow": True})
        self.start(NOW_AND_THEN, {"availableNow": True})
        # It takes a core for each partition, for ever.
        self.start(CONTINUOUS, {"continuous": "1 second"}, RATE | {"numPartitions": 1}, keep=1000)
        self._run_again_a_day_later(NOW_AND_THEN)
        wait_until(lambda: newest(self.checkpoints[LONG_BATCH], "offsets") == 5)
        wait_until(lambda: newest(self.checkpoints[CONTINUOUS]) >= 2)
        self.was_at_rest = self._looked_at_rest(SLOW)
        self.running = {case: self._ask_while_it_runs(case) for case in RUNNING}
        self.probes_while_running = {case: self.probe(name).ended() for case, (name, *_) in RUNNING.items()}
        for name in (SLOW, STEADY):
            self._wait_for_history(name)
        for name in self.checkpoints:
            queries.stop(name)
        for name in self.checkpoints:
            self._wait_for_its_end(name)
        self.stopped = ask_all(
            {name: (at, replace(CAREFUL, probes=(self.probe(name),))) for name, at in self.checkpoints.items()}
        )

    def files(self, name: str) -> Path:
        """Where a query finds its files."""
        return self.queries.place / f"{name}_in"

    def start(self, name: str, trigger: dict[str, Any], source: dict[str, Any] | None = None, **more: int) -> None:
        """Start a query; by default it reads one file in each batch."""
        (self.files(name) / "a").mkdir(parents=True, exist_ok=True)
        source = source or {"format": "json", "maxFilesPerTrigger": 1, "path": f"{self.files(name)}/a"}
        self.checkpoints[name] = self.queries.start(name, source, trigger, **more)

    def feed(self, name: str) -> None:
        """Give a query one more file, and wait until its batch is committed."""
        batch = newest(self.checkpoints[name]) + 1
        put_files(self.files(name), 1, start=batch)
        wait_until(lambda: newest(self.checkpoints[name]) == batch)

    def probe(self, name: str) -> ProgressLinesEnded:
        return ProgressLinesEnded(location(self.queries.lines), location(self.checkpoints[name]))

    def wait_for_next(self, name: str) -> None:
        """Wait until a query has committed a batch from now on."""
        before = newest(self.checkpoints[name])
        wait_until(lambda: newest(self.checkpoints[name]) > before)

    def _wait_for_its_end(self, name: str) -> None:
        wait_until(lambda: self.probe(name).ended() is not None)  # Spark informs its listeners a little later

    def _wait_for_history(self, name: str) -> None:
        """Have more batches until the logs are even enough for the rule; they then stay as they are until the next batch."""
        checkpoint = self.checkpoints[name]
        more, obstacles = (self._hold_the_next, {rest_oracle.UNDER_WAY}) if name == LONG_BATCH else (self.feed, set())

        def is_there() -> bool:
            more(name)
            wait_until(lambda: rest_oracle.is_purged(checkpoint))
            return (
                rest_oracle.obstacles(checkpoint, history=QUICK.history) == obstacles
                and rest_oracle.silence(checkpoint, factor=QUICK.factor, minimum=QUICK.minimum) < QUICK.wait_at_most / 4
            )

        wait_until(is_there)

    def _hold_the_next(self, name: str) -> None:
        batch = newest(self.checkpoints[name], "offsets") + 1
        self.queries.hold(name, batch)
        wait_until(lambda: newest(self.checkpoints[name], "offsets") == batch)

    def _run_again_a_day_later(self, name: str) -> None:
        """The times of the first run are set back by a day; Spark wrote all else."""
        checkpoint = self.checkpoints[name]
        self._wait_for_its_end(name)
        rest_oracle.set_times(checkpoint, [time - 86_400_000 for time in rest_oracle.times(checkpoint) if time])
        put_files(self.files(name), 2, start=4)
        self.start(name, {"availableNow": True})
        self._wait_for_its_end(name)

    def _ask_while_it_runs(self, case: str) -> Found:
        name, rule, reason = RUNNING[case]
        checkpoint = self.checkpoints[name]
        if case == OWN_PACE:  # in real time: asked again if that was in the middle of a batch or of a purge
            found: list[Found] = []
            wait_until(lambda: self._was_watched(found, checkpoint, rule))
            return found[-1]
        if name in (SLOW, STEADY, LONG_BATCH):
            self._wait_for_history(name)
        self.obstacles[case] = rest_oracle.obstacles(checkpoint, history=rule.history)
        return ask(checkpoint, rule, (lambda: self.feed(name)) if reason == CHANGED else None)

    @staticmethod
    def _was_watched(found: list[Found], checkpoint: Path, rule: RestRule) -> bool:
        found.append(ask(checkpoint, rule))
        return isinstance(found[-1], RestProof) or CHANGED in found[-1].message

    def _looked_at_rest(self, name: str) -> bool:
        """Whether the check of two inspections, as it was, takes the query between two batches for one that rests."""
        place = location(self.checkpoints[name])
        self.feed(name)
        before = inspect_target(place).fingerprint
        time.sleep(0.5)  # what it did: two reads so many seconds, and nothing else
        again = inspect_target(place).fingerprint
        self.feed(name)
        return before == again != inspect_target(place).fingerprint


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestingQueries]:
    started = RestingQueries(tmp_path_factory.mktemp("resting") / "queries")
    yield started
    started.kill()


@pytest.fixture(scope="module")
def story(queries: RestingQueries) -> Story:
    return Story(queries)


@pytest.mark.slow
def test_two_inspections_took_a_running_query_for_one_at_rest(story: Story) -> None:
    assert story.was_at_rest


@pytest.mark.parametrize("case", RUNNING)
@pytest.mark.slow
def test_no_proof_while_it_runs(story: Story, case: str) -> None:
    found, reason = story.running[case], RUNNING[case][2]
    assert isinstance(found, QueryNotStoppedError), found
    assert reason in found.message
    if case in story.obstacles:  # nothing else stood against a proof
        assert story.obstacles[case] == {reason} - {CHANGED}
    assert story.probes_while_running[case] is None


@pytest.mark.parametrize("name", [OWN_PACE, STEADY, SLOW, NOW_AND_THEN, EMPTY, LONG_BATCH, CONTINUOUS])
@pytest.mark.slow
def test_the_progress_lines_report_its_end(story: Story, name: str) -> None:
    """All seven write to one file; a stopped query has an end there, whatever its trigger."""
    found = story.stopped[name]
    assert isinstance(found, RestProof), found
    assert found.how == RestEvidence.PROBE


@pytest.mark.parametrize("name", of_these([STEADY, SLOW], STEADY))
@pytest.mark.slow
def test_silence_proves_it_where_batches_came_evenly(story: Story, name: str) -> None:
    checkpoint = story.checkpoints[name]
    assert rest_oracle.obstacles(checkpoint, history=QUICK.history) == set()
    found = ask(checkpoint, QUICK)
    assert isinstance(found, RestProof), found
    assert found.how == RestEvidence.QUIET


@pytest.mark.slow
def test_silence_proves_nothing_of_a_query_that_runs_now_and_then(story: Story) -> None:
    checkpoint = story.checkpoints[NOW_AND_THEN]
    assert rest_oracle.obstacles(checkpoint, history=CAREFUL.history) == {rest_oracle.UNEVEN}
    found = ask(checkpoint, CAREFUL)
    assert isinstance(found, QueryNotStoppedError), found
    assert rest_oracle.UNEVEN in found.message


@pytest.mark.slow
def test_a_person_who_is_wrong_and_one_who_is_right(story: Story) -> None:
    story.start(OWN_PACE, {"processingTime": "0 seconds"}, RATE)
    checkpoint, said = story.checkpoints[OWN_PACE], replace(QUICK, query_is_stopped=True, said_by="kim")
    found = ask(checkpoint, said, lambda: story.wait_for_next(OWN_PACE))
    assert isinstance(found, QueryNotStoppedError), found
    assert "though kim says that the query is stopped" in found.message
    story.queries.stop(OWN_PACE)
    assert prove_rest(location(checkpoint), said).how == RestEvidence.STATEMENT


@pytest.mark.slow
def test_a_query_that_starts_while_its_end_is_checked(story: Story) -> None:
    """It has no new data: it writes nothing that would be seen in time."""
    probe = story.probe(SLOW)
    assert probe.ended() is not None

    class StartsMeanwhile:
        asked = 0

        def ended(self) -> str | None:
            self.asked += 1
            if self.asked == 2:
                story.start(SLOW, {"processingTime": "2 seconds"})
            return probe.ended()

    try:
        with pytest.raises(QueryNotStoppedError, match="and no longer reports it"):
            prove_rest(location(story.checkpoints[SLOW]), replace(CAREFUL, probes=(StartsMeanwhile(),)))
    finally:
        story.queries.stop(SLOW)


@pytest.mark.slow
def test_a_history_server_reports_the_end(tmp_path: Path) -> None:
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
        # Its first answer can take long on a busy machine.
        replace(SparkApplicationEnded.at(address), timeout=WITHIN).ended()
    other = f"{queries.application['ui']}/api/v1/applications/another"
    assert SparkApplicationEnded.at(other).ended() is None
    place = location(queries.place / "nowhere")
    with pytest.raises(QueryNotStoppedError, match="runs since"):
        prove_rest(place, replace(QUICK, query_is_stopped=True, probes=probes_of(place, spark_rest=address)))
