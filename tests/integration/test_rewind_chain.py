"""A chain of three streams and three Delta tables on real Spark: bronze had a bug, and all three become right again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.rest import RestRule
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.chains.apply import apply_chain
from airflow_ckpt_provider.recovery.chains.plan import ChainPlan
from airflow_ckpt_provider.recovery.chains.planning import plan_chain
from airflow_ckpt_provider.recovery.chains.stream import ChainStream
from airflow_ckpt_provider.recovery.chains.undo import undo_chain
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.rewinding import Story, difference, rows_of
from tests.support.stopped import STOPPED, wait_until_quiet
from tests.support.streams.data import put_files
from tests.support.streams.spark_host import Run, SparkHost
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1500)]

#: Stream -> its kind.
STREAMS = {"bronze": "stateless_to_delta", "silver": "silver", "gold": "gold"}
EXACT = dict.fromkeys(STREAMS, (0, 0))


class Lake:
    """The three streams, their checkpoints and their tables in one directory."""

    def __init__(self, host: SparkHost, root: Path, source: Path) -> None:
        self.host, self.root, self.source = host, root, source

    def checkpoint(self, name: str) -> Location:
        return open_location(str(self.root / "checkpoints" / name))

    def table(self, name: str) -> Path:
        return self.root / "tables" / name

    def sink(self, name: str) -> Sink:
        return Sink(place=open_location(str(self.table(name))))

    def run(self, *names: str, faulty: bool = False, kind: str | None = None) -> None:
        """Let the streams read what there is, one after the other."""
        for name in names or STREAMS:
            reads = {"bronze": self.source, "silver": self.table("bronze"), "gold": self.table("silver")}
            self.host.start(
                kind or STREAMS[name],
                source=reads[name],
                checkpoint=self.root / "checkpoints" / name,
                out=self.table(name),
                available_now=True,
                faulty=faulty and name == "bronze",
            ).finished()

    def newest(self, name: str) -> int:
        newest = Checkpoint.at(self.checkpoint(name)).progress().latest_committed
        assert newest is not None
        return newest

    def streams(self) -> tuple[ChainStream, ...]:
        return tuple(ChainStream(name, self.checkpoint(name), (self.sink(name),)) for name in STREAMS)

    @property
    def arguments(self) -> list[str]:
        return [word for stream in self.streams() for word in ("--stream", stream.argument)]

    def plan(self, batch: int, chain_id: str | None = None) -> ChainPlan:
        return plan_chain(self.streams(), Specifier("to_batch", str(batch)), chain_id=chain_id)

    def rewind(self, batch: int) -> ChainPlan:
        self.quiet()
        plan, _ = apply_chain(self.streams(), lambda chain_id: self.plan(batch, chain_id), rest=lambda _: STOPPED)
        return plan

    def quiet(self) -> None:
        """The JVM lives on: its maintenance may still be at work on the state of the queries that have ended."""
        for name in STREAMS:
            wait_until_quiet(self.checkpoint(name), quiet_for=1.0, at_most=60)

    def tables(self) -> dict[str, Counter[str]]:
        return {name: rows_of(self.table(name)) for name in STREAMS}

    def files(self) -> dict[str, dict[str, bytes]]:
        """What Spark sees of the checkpoints."""
        places = {name: self.checkpoint(name) for name in STREAMS}
        return {
            name: {path: place.read(path) for path in place.walk() if "/." not in f"/{path}"}
            for name, place in places.items()
        }

    def copy(self, root: Path) -> Lake:
        shutil.copytree(self.root, root)
        return Lake(self.host, root, self.source)


@pytest.fixture(scope="module")
def wrong(spark_host: SparkHost, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, int]:
    """Four right files, then two by code with a bug; and the last right batch of bronze."""
    root = tmp_path_factory.mktemp("chain")
    lake = Lake(spark_host, root / "lake", root / "input")
    for number in range(4):
        put_files(lake.source, 1, start=number)
        lake.run()
    right = lake.newest("bronze")
    for number in (4, 5):
        put_files(lake.source, 1, start=number)
        lake.run(faulty=True)
    lake.quiet()
    return lake, right


@pytest.fixture(scope="module")
def reference(wrong: tuple[Lake, int]) -> dict[str, Counter[str]]:
    """The tables of streams that never had the bug."""
    lake, _ = wrong
    right = Lake(lake.host, lake.root.parent / "reference", lake.source)
    right.run()
    return right.tables()


def compared(lake: Lake, reference: dict[str, Counter[str]]) -> dict[str, tuple[int, int]]:
    return {name: difference(reference[name], rows) for name, rows in lake.tables().items()}


def test_all_three_are_row_exact(wrong: tuple[Lake, int], reference: dict[str, Counter[str]], tmp_path: Path) -> None:
    """Back, undone, back again, and replayed. After the undo the streams continue where they were, too."""
    lake, right = wrong[0].copy(tmp_path / "lake"), wrong[1]
    assert compared(lake, reference) != EXACT
    before, files = lake.tables(), lake.files()
    plan = lake.rewind(right)
    assert plan.verdict is Verdict.SAFE
    assert not any(part.undo_needs for part in plan.parts)

    undo_chain(lake.streams(), rest=lambda _: STOPPED)
    assert lake.tables() == before
    put_back = lake.files()
    for name in STREAMS:
        newest = lake.newest(name)
        moved = set() if name == "bronze" else {f"offsets/{newest - 1}", f"offsets/{newest}"}
        assert put_back[name].keys() == files[name].keys()
        assert {path for path, data in put_back[name].items() if data != files[name][path]} == moved
    lake.run()  # nothing is there to be read: no row comes twice, and no stream stops at the rollback
    assert lake.tables() == before

    lake.rewind(right)
    lake.run()
    assert compared(lake, reference) == EXACT
    lake.run()
    assert compared(lake, reference) == EXACT


def test_put_back_to_the_letter_it_would_stop(wrong: tuple[Lake, int], tmp_path: Path) -> None:
    """The control of the undo: with the positions of before, silver stops at the rollback of what it reads."""
    lake, right = wrong[0].copy(tmp_path / "lake"), wrong[1]
    files = lake.files()["silver"]
    lake.rewind(right)
    undo_chain(lake.streams(), rest=lambda _: STOPPED)
    for path in (f"offsets/{lake.newest('silver') - n}" for n in (0, 1)):
        place = lake.root / "checkpoints" / "silver"
        (place / path).write_bytes(files[path])
        (place / "offsets" / f".{path.rpartition('/')[2]}.crc").unlink(missing_ok=True)
    with pytest.raises(AssertionError, match=r"DELTA_SOURCE_IGNORE_DELETE|DELTA_SOURCE_TABLE_IGNORE_CHANGES"):
        lake.run("silver")


def test_bronze_alone_is_not_enough(
    wrong: tuple[Lake, int], reference: dict[str, Counter[str]], tmp_path: Path
) -> None:
    """The control: silver stops, or with skipChangeCommits keeps wrong rows and gets the right ones besides."""
    lake, right = wrong[0].copy(tmp_path / "lake"), wrong[1]
    place = lake.checkpoint("bronze")
    wait_until_quiet(place, quiet_for=1.0, at_most=60)
    to, sink = Specifier("to_batch", str(right)), lake.sink("bronze")
    plan = plan_rewind(Checkpoint.at(place), to, sink=sink, sink_exit=SinkPolicy.ROLLBACK)
    held = Repository.open_or_create(default_repository(place))
    apply_rewind(plan, Checkpoint.at(place), held, sink=sink, rest=STOPPED)
    lake.run("bronze")
    assert compared(lake, reference)["bronze"] == (0, 0)
    with pytest.raises(AssertionError, match=r"DELTA_SOURCE_IGNORE_DELETE|DELTA_SOURCE_TABLE_IGNORE_CHANGES"):
        lake.run("silver")
    lake.run("silver", kind="silver_skipping")
    lake.run("gold")
    found = compared(lake, reference)
    assert found["silver"] != (0, 0)
    assert found["gold"] != (0, 0)


@pytest.mark.parametrize("killed_at", ["sealed", "gold set aside", "gold ended", "silver ended", "bronze ended"])
def test_killed_and_resumed(
    wrong: tuple[Lake, int], reference: dict[str, Counter[str]], tmp_path: Path, killed_at: str
) -> None:
    """``kill -9`` of the command, when its traces show that it has come that far; then the same command again."""
    lake, right = wrong[0].copy(tmp_path / "lake"), wrong[1]
    words = ["chain", "rewind", *lake.arguments, "--to-batch", str(right), "--query-is-stopped", "--quiet-for", "0"]
    command = [sys.executable, "-m", "airflow_ckpt_provider.cli.main", *words, "--apply"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: process.poll() is not None or _is_at(lake, killed_at), killed_at)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert not any(Checkpoint.at(lake.checkpoint(name)).progress().seal for name in STREAMS)
    lake.run()
    assert compared(lake, reference) == EXACT


def _is_at(lake: Lake, trace: str) -> bool:
    name, _, what = trace.partition(" ")
    if trace == "sealed":
        return all(Checkpoint.at(lake.checkpoint(stream)).progress().seal for stream in STREAMS)
    held = lake.root / "checkpoints" / f"{name}.rewinds"
    return any(held.glob("audit/*.json" if what == "ended" else "set-aside/**/COMPLETE"))


class Fed:
    """Knows when a query has ended. It gives it one more file first: a query without input never meets the seal."""

    def __init__(self, story: Story, run: Run) -> None:
        self.story, self.run, self.fed = story, run, False

    def ended(self) -> str | None:
        if not self.fed:
            put_files(self.story.source, 1, start=self.story.made)
            self.story.made += 1
            self.fed = True
        return "its run has ended" if self.run.ended.wait(60) else None


def test_two_queries_of_one_application(spark_host: SparkHost, tmp_path: Path) -> None:
    """They run, and read nothing of each other: sealed together, so that both stop, and back together."""
    stories = {name: Story(spark_host, tmp_path / name, "dedup_to_delta") for name in ("a", "b")}
    for story in stories.values():
        story.run(4)
    right = {name: story.newest for name, story in stories.items()}
    probes = {}
    for story in stories.values():
        put_files(story.source, 2, start=story.made)
        story.made += 2
        run = spark_host.start(story.kind, source=story.source, checkpoint=story.checkpoint, out=story.out, faulty=True)
        probes[story.place.uri] = Fed(story, run)
    wait_until(lambda: all(s.newest >= right[n] + 2 for n, s in stories.items()), "both have read two files")
    streams = [ChainStream(name, story.place, (story.sink,)) for name, story in stories.items()]
    made, _ = apply_chain(
        streams,
        lambda chain_id: plan_chain(streams, Specifier("shift_by", "-2"), batches=right, chain_id=chain_id),
        rest=lambda place: RestRule(probes=(probes[place.uri],), quiet_for=1.0),
        stop_running=True,
    )
    assert {part.name: part.rewind and part.rewind.batch_id for part in made.parts} == right
    assert all("CONCURRENT_STREAM_LOG_UPDATE" in probe.run.error_text for probe in probes.values())
    for story in stories.values():
        story.go_on()
        assert difference(story.reference(), story.rows()) == (0, 0)
