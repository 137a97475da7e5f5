"""A reset on real Spark: the query gets an operator that its checkpoint would not survive, and its sink stays row-exact."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.guards.kafka import KafkaGuard
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.kafka_broker import KafkaBroker
from tests.support.replayed_sources import append, delta, files, kafka, new_topic, produce, put
from tests.support.rewinding import Story, difference
from tests.support.stopped import STOPPED, wait_until_quiet
from tests.support.streams.described import Source, Stream
from tests.support.streams.spark_host import SparkHost

pytestmark = pytest.mark.spark

Feed = Callable[[range], None]


@pytest.fixture(params=["files", *(pytest.param(source, marks=pytest.mark.slow) for source in ("delta", "kafka"))])
def fed(request: pytest.FixtureRequest, spark_host: SparkHost, tmp_path: Path) -> tuple[Source, Feed, dict[str, Any]]:
    """A source, what adds rows to it, and where the plan asks whether it still has a position."""
    place = tmp_path / "in"
    if request.param == "files":
        return files(place, 1), lambda ids: put(place, ids, seconds=ids.start), {}
    if request.param == "delta":
        tables = {"0": open_location(str(place))}
        return delta(place), lambda ids: append(spark_host, place, ids), {"tables": tables}
    broker: KafkaBroker = request.getfixturevalue("kafka_broker")
    topic = new_topic(broker, "reset")
    guard = KafkaGuard(GuardSettings(options={"kafka": {"config": broker.config}}))
    return kafka(broker, topic), lambda ids: produce(broker, topic, ids), {"guards": [guard]}


def sink_of(stream: Stream) -> Sink:
    return Sink(place=open_location(str(stream.place / "out")))


def plan_of(stream: Stream, way: ResetWay = ResetWay.KEEP_POSITION, **options: Any) -> ResetPlan:
    place = open_location(str(stream.checkpoint))
    wait_until_quiet(place, quiet_for=0.5, at_most=60)
    return plan_reset(place, way, **{"sink": sink_of(stream), **options})


def carried_out(stream: Stream, plan: ResetPlan, accept: Collection[str] = ()) -> None:
    place = open_location(str(stream.checkpoint))
    apply_reset(plan, place, Repository.open_or_create(default_repository(place)), accept=accept, rest=STOPPED)


def with_the_snippet(stream: Stream, plan: ResetPlan, combine: str = "distinct") -> Stream:
    """The same query with another operator, and what the snippet says."""
    conf: dict[str, str] = {}
    options: dict[str, str] = {}

    class Conf:
        set = staticmethod(conf.__setitem__)

    class Session:
        conf = Conf

    for line in plan.snippet.splitlines():
        if line.startswith("spark."):
            exec(line, {"spark": Session})
        elif line.startswith(".options("):
            options = eval("dict" + line.removeprefix(".options"))
    (source,) = stream.sources
    return replace(stream, sources=(source.at(options),), combine=combine, conf=conf)


def ids_in(table: Path) -> list[int]:
    return sorted(DeltaTable(str(table)).to_pyarrow_table()["id"].to_pylist())


def test_an_operator_added(spark_host: SparkHost, tmp_path: Path, fed: tuple[Source, Feed, dict[str, Any]]) -> None:
    source, feed, asked = fed
    old = Stream(spark_host, tmp_path / "s", (source,), sink="delta")
    out = tmp_path / "s" / "out"
    for ids in (range(0, 4), range(4, 9)):
        feed(ids)
        old.run()
    plan = plan_of(old, **asked)
    assert plan.verdict is Verdict.SAFE, plan.reasons
    carried_out(old, plan)
    new = with_the_snippet(old, plan)
    feed(range(9, 12))
    new.run()
    assert ids_in(out) == list(range(12))
    # And on from its own checkpoint.
    feed(range(12, 15))
    new.run()
    assert ids_in(out) == list(range(15))


@pytest.mark.slow
def test_a_batch_that_the_table_has_and_the_checkpoint_not(spark_host: SparkHost, tmp_path: Path) -> None:
    """The query was killed between the table's commit and its own; then the same without reading the table."""
    place = tmp_path / "in"
    old = Stream(spark_host, tmp_path / "s", (files(place, 1),), sink="delta")
    put(place, range(4), seconds=0)
    old.run()
    newest = max(int(f.name) for f in (old.checkpoint / "commits").iterdir() if f.name.isdigit())
    (old.checkpoint / "commits" / str(newest)).unlink()
    (old.checkpoint / "commits" / f".{newest}.crc").unlink()
    unseen = plan_of(old, sink=Sink())
    assert (unseen.start, unseen.verdict) == (newest - 1, Verdict.UNKNOWN)
    plan = plan_of(old)
    assert (plan.start, plan.verdict) == (newest, Verdict.SAFE)
    carried_out(old, plan)
    put(place, range(4, 6), seconds=1)
    new = with_the_snippet(old, plan).run()
    assert ids_in(tmp_path / "s" / "out") == list(range(6))
    # The control, and the obvious way: deleted and started again. As many rows double as foretold.
    again = plan_of(new, ResetWay.FROM_SCRATCH)
    assert again.verdict is Verdict.WILL_DUPLICATE
    carried_out(new, again, ["sink_duplicates"])
    new.run()
    doubled = [i for i in ids_in(tmp_path / "s" / "out") if i >= 4]
    assert len(doubled) - 2 == again.cutover.doubled["rows"] == 2
    assert len(ids_in(tmp_path / "s" / "out")) == 12


@pytest.mark.slow
@pytest.mark.parametrize("continue_numbers", [True, False])
def test_a_file_sink(spark_host: SparkHost, tmp_path: Path, continue_numbers: bool) -> None:
    """Numbered again, its first batches are skipped silently; with the numbers continuing, none is."""
    place = tmp_path / "in"
    old = Stream(spark_host, tmp_path / "s", (files(place, 1),), sink="files")
    put(place, range(3), seconds=0)
    old.run()
    plan = plan_of(old, continue_numbers=continue_numbers)
    assert plan.verdict is (Verdict.SAFE if continue_numbers else Verdict.WILL_SKIP)
    carried_out(old, plan, () if continue_numbers else ["sink_skips"])
    put(place, range(3, 7), seconds=1)
    with_the_snippet(old, plan, "union").run()
    lines = (line for f in (tmp_path / "s" / "out").glob("part-*.json") for line in f.read_text().splitlines())
    rows = sorted(json.loads(line)["id"] for line in lines)
    lost = 0 if continue_numbers else plan.cutover.skipped
    assert len(rows) == 7 - lost
    assert lost in (0, 3)


@pytest.mark.slow
def test_a_file_sink_without_the_batch_in_which_the_query_was_killed(spark_host: SparkHost, tmp_path: Path) -> None:
    """The numbers continue right after the sink's log: Spark needs an entry of every batch, to read it and to compact it."""
    place, out = tmp_path / "in", tmp_path / "s" / "out"
    old = Stream(spark_host, tmp_path / "s", (files(place, 1),), sink="files")
    for ids in (range(2), range(2, 3)):
        put(place, ids, seconds=ids.start)
        old.run()
    newest = max(int(f.name) for f in (old.checkpoint / "commits").iterdir() if f.name.isdigit())
    for log in (old.checkpoint / "commits", out / "_spark_metadata"):
        (log / str(newest)).unlink()
        (log / f".{newest}.crc").unlink()
    plan = plan_of(old, continue_numbers=True)
    assert (plan.verdict, plan.start, plan.first_batch) == (Verdict.SAFE, newest - 1, newest)
    carried_out(old, plan)
    new = with_the_snippet(old, plan, "union")
    for id_ in range(3, 15):  # past the batch in which the log is compacted
        put(place, range(id_, id_ + 1), seconds=id_)
        new.run()
    assert list((out / "_spark_metadata").glob("*.compact"))
    assert read_by_its_log(out) == list(range(15))


def read_by_its_log(out: Path) -> list[int]:
    """The ids in the output of a file sink, as a reader gets them: by the newest compacted entry and those after it."""
    entries = {int(f.name.removesuffix(".compact")): f for f in (out / "_spark_metadata").glob("[0-9]*")}
    entries |= {int(f.name.removesuffix(".compact")): f for f in (out / "_spark_metadata").glob("*.compact")}
    base = max((n for n, f in entries.items() if f.name.endswith(".compact")), default=0)
    assert set(range(base, max(entries) + 1)) <= set(entries)
    lines = (line for n, f in entries.items() if n >= base for line in f.read_text().splitlines()[1:])
    paths = (json.loads(line)["path"].removeprefix("file://") for line in lines)
    return sorted(json.loads(row)["id"] for path in paths for row in Path(path).read_text().splitlines())


@pytest.mark.slow
def test_taken_back(spark_host: SparkHost, tmp_path: Path) -> None:
    place = tmp_path / "in"
    old = Stream(spark_host, tmp_path / "s", (files(place, 1),), sink="delta")
    put(place, range(3), seconds=0)
    old.run()
    plan = plan_of(old)
    carried_out(old, plan)
    location = open_location(str(old.checkpoint))
    undo(location, Repository.open(default_repository(location)), plan_id=plan.plan_id, rest=STOPPED)
    put(place, range(3, 5), seconds=1)
    old.run()
    assert ids_in(tmp_path / "s" / "out") == list(range(5))


@pytest.mark.slow
def test_a_new_query_id_after_a_restore_by_spark(spark_host: SparkHost, tmp_path: Path) -> None:
    """RESTORE TABLE leaves the table's memory standing; under a new id the replay is written."""
    story = Story(spark_host, tmp_path, "dedup_to_delta")
    story.run(3)
    right = story.newest
    story.run(2, faulty=True)
    version = story.plan("to_batch", right).sink.rollback.to_version  # type: ignore[union-attr]
    story.rewind("to_batch", right, sink_exit="accept")
    spark_host.sql(f"RESTORE TABLE delta.`{story.out}` TO VERSION AS OF {version}")
    assert story.plan("to_current", sink_exit=None).sink.verdict is Verdict.WILL_SKIP
    plan = plan_reset(story.place, ResetWay.NEW_QUERY_ID, sink=story.sink)
    assert plan.verdict is Verdict.SAFE, plan.reasons
    apply_reset(plan, story.place, story.repository, rest=STOPPED)
    story.run(1)
    assert story.ckpt.progress().query_id == plan.new_query_id
    assert difference(story.reference(), story.rows()) == (0, 0)
