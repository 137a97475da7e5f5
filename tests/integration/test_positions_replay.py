"""Starting positions, carried out: what a new checkpoint reads with them is exactly what the old one had not read.

Each kind of position has its control: one off by one, or the obvious way, gives other rows.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_ckpt_provider.recovery.positions.asking import Question, ask
from airflow_ckpt_provider.recovery.positions.logs import logs_of_checkpoint
from airflow_ckpt_provider.recovery.positions.positions import StartingPositions, put_seeds
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.kafka_broker import KafkaBroker
from tests.support.replayed_sources import append, delta, files, kafka, new_topic, produce, put
from tests.support.streams.described import Source, Stream
from tests.support.streams.spark_host import SparkHost

pytestmark = pytest.mark.spark


def positions(stream: Stream, question: Question | None = None, **more: object) -> StartingPositions:
    return ask(logs_of_checkpoint(open_location(str(stream.checkpoint))), question or Question(), **more)  # type: ignore[arg-type]


def restarted(
    old: Stream, found: StartingPositions, name: str, *, changed: dict[str, dict[str, str]] | None = None
) -> Stream:
    """The same query with a new checkpoint at the positions; ``changed`` replaces the options of a source."""
    options = {**found.options, **(changed or {})}
    sources = tuple(source.at(options[str(i)]) for i, source in enumerate(old.sources))
    return Stream(old.host, old.place.with_name(name), sources, old.combine, {**old.conf, **found.conf})


# Files


@pytest.mark.slow
@pytest.mark.parametrize("combine", ["union", "count"])
def test_files(spark_host: SparkHost, tmp_path: Path, combine: str) -> None:
    place = tmp_path / "in"
    put(place, range(0, 5), seconds=0)  # more of one time than a batch takes
    put(place, range(5, 7), seconds=1)
    old = Stream(spark_host, tmp_path / "old", (files(place),), combine).run()
    for batch in (1, 3):
        found = positions(old, Question(batch=batch))
        read = {row[0] for row in old.rows(last=batch)}
        put(place, [90 + batch], seconds=0)  # late, and of the oldest time
        new = restarted(old, found, f"new-{batch}")
        seeded = put_seeds(found, open_location(str(new.checkpoint)))
        assert (seeded.verdict, seeded.sources[0].repeats) == (Verdict.SAFE, {})
        expected = sorted(int(f.stem.split()[1]) for f in place.glob("*.json"))
        assert new.run().ids == [i for i in expected if i not in read]
        # And on: nothing twice at the next start either.
        put(place, [200 + batch], seconds=2)
        assert new.run().ids == [i for i in [*expected, 200 + batch] if i not in read]
    naive = restarted(old, found, "naive").run()
    again = sorted(i for i in naive.ids if i in read)
    assert len(again) == found.sources[0].repeats["files"] == len(read)


@pytest.mark.slow
def test_open_spark_refuses_modified_after_on_a_stream(spark_host: SparkHost, tmp_path: Path) -> None:
    put(tmp_path / "in", range(2), seconds=0)
    source = files(tmp_path / "in").at({"modifiedAfter": "2024-01-01T00:00:00Z"})
    error = Stream(spark_host, tmp_path / "s", (source,)).fails()
    assert "option 'modifiedafter' is not allowed in file stream sources" in error


@pytest.mark.slow
def test_modified_after_of_a_batch_read(spark_host: SparkHost, tmp_path: Path) -> None:
    """The tie rule: nothing is lost, and as many files come twice as were counted. A millisecond later loses."""
    place = tmp_path / "in"
    put(place, range(0, 3), seconds=0)
    put(place, range(3, 7), seconds=0.5)
    put(place, range(7, 9), seconds=1)
    old = Stream(spark_host, tmp_path / "old", (files(place),)).run()
    (batch_2,) = positions(old, Question(batch=2)).sources
    (way,) = batch_2.alternatives
    read = {row[0] for row in old.rows(last=2)}
    unread = set(range(9)) - read
    assert len(read) == 6  # two of the time in question are read, two are not

    def taken(time: str, zone: str = "UTC") -> list[int]:
        rows = spark_host.sql(
            f"SET spark.sql.session.timeZone={zone}",
            f"CREATE TEMPORARY VIEW v (id LONG) USING json OPTIONS (path '{place}', modifiedAfter '{time}')",
            "SELECT id FROM v",
        )
        return sorted(row[0] for row in rows)

    time = way.options["modifiedAfter"]
    got = taken(time)
    assert unread <= set(got)
    assert len([i for i in got if i in read]) == way.repeats["files"]
    assert not unread <= set(taken(time.replace(".499Z", ".500Z")))
    # Why the way asks for a session in UTC: Spark shifts the files' times by the zone, and not the option's.
    assert taken(time, "America/New_York") == []


# Delta


@pytest.mark.slow
def test_delta_at_the_end_of_the_table(spark_host: SparkHost, tmp_path: Path) -> None:
    """The usual case, everything was read: the version to start at does not exist yet."""
    table = tmp_path / "table"
    append(spark_host, table, range(0, 10), range(10, 20))
    old = Stream(spark_host, tmp_path / "old", (delta(table),)).run()
    assert positions(old).verdict is Verdict.UNKNOWN
    found = positions(old, tables={"0": open_location(str(table))})
    assert found.options == {"0": {"startingVersion": "2"}}
    assert found.verdict is Verdict.SAFE
    new = restarted(old, found, "new").run()
    assert new.ids == []
    without = restarted(old, replace(found, sources=(replace(found.sources[0], conf={}),)), "without-conf")
    assert "[DELTA_VERSION_NOT_FOUND]" in without.fails()
    append(spark_host, table, range(20, 30), range(30, 40))
    assert new.run().ids == list(range(20, 40))
    assert restarted(old, found, "later").run().ids == list(range(20, 40))
    one_more = restarted(old, found, "one-more", changed={"0": {"startingVersion": "3"}}).run()
    assert one_more.ids == list(range(30, 40))
    one_less = restarted(old, found, "one-less", changed={"0": {"startingVersion": "1"}}).run()
    assert one_less.ids == list(range(10, 40))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [pytest.param({}, id="snapshot", marks=pytest.mark.slow), pytest.param({"startingVersion": "0"}, id="versions")],
)
def test_delta_in_the_middle(spark_host: SparkHost, tmp_path: Path, options: dict[str, str]) -> None:
    """After each batch of two files: nothing is lost, and exactly the counted rows come twice."""
    table = tmp_path / "table"
    append(spark_host, table, range(0, 10), range(10, 20))
    old = Stream(spark_host, tmp_path / "old", (delta(table, maxFilesPerTrigger="2", **options),)).run()
    seen = set()
    for batch in range(3):
        found = positions(old, Question(batch=batch), tables={"0": open_location(str(table))})
        (source,) = found.sources
        read = [row[0] for row in old.rows(last=batch)]
        start = {key: value for key, value in delta(table).options.items() if key != "startingVersion"}
        new = Stream(
            spark_host,
            tmp_path / f"new-{batch}",
            (Source("delta", path=str(table), options={**start, **source.options}),),
            conf=dict(source.conf),
        ).run()
        assert set(range(20)) - set(read) <= set(new.ids)
        twice = (Counter(read) & Counter(new.ids)).total()
        assert twice == (source.repeats or {}).get("rows", 0)
        seen.add(source.verdict)
    assert Verdict.WILL_DUPLICATE in seen


# Kafka


@pytest.mark.slow
def test_kafka(spark_host: SparkHost, kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    topic = new_topic(kafka_broker, "positions")
    old = Stream(spark_host, tmp_path / "old", (kafka(kafka_broker, topic),))
    for group in (range(0, 7), range(7, 16), range(16, 20)):
        produce(kafka_broker, topic, group)
        old.run()
    produce(kafka_broker, topic, range(20, 25))
    for batch, first in ((0, 7), (2, 20)):
        found = positions(old, Question(batch=batch))
        assert restarted(old, found, f"new-{batch}").run().ids == list(range(first, 25))
    assert found.verdict is Verdict.UNKNOWN  # no broker is asked
    offsets = json.loads(found.options["0"]["startingOffsets"])
    for by, wanted in ((1, 3), (-1, 7)):
        off = {"startingOffsets": json.dumps({topic: {p: o + by for p, o in offsets[topic].items()}})}
        assert len(restarted(old, found, f"off-{by}", changed={"0": off}).run().ids) == wanted
    # A partition that was added: Spark wants it named.
    new_topic(kafka_broker, topic, 3)
    assert "startingOffsets contains specific offsets, you must specify all TopicPartitions" in restarted(
        old, found, "unnamed"
    ).fails().replace("If startingOffsets", "startingOffsets")
    named = positions(old, kafka_partitions={topic: 3})
    assert restarted(old, named, "named").run().ids == list(range(20, 25))
    # By time: the records produced since.
    by_time = found.sources[0].alternatives[0].options
    options = {key: value for key, value in old.sources[0].options.items() if key != "startingOffsets"}
    times = json.loads(by_time["startingOffsetsByTimestamp"])
    times[topic]["2"] = times[topic]["0"]
    since = {**by_time, "startingOffsetsByTimestamp": json.dumps(times)}
    source = Source("kafka", old.sources[0].select, options={**options, **since})
    assert Stream(spark_host, tmp_path / "by-time", (source,)).run().ids == list(range(20, 25))


@pytest.mark.slow
def test_a_join_of_kafka_and_delta(spark_host: SparkHost, kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    topic, table = new_topic(kafka_broker, "joined"), tmp_path / "table"
    old = Stream(spark_host, tmp_path / "old", (kafka(kafka_broker, topic), delta(table)), "join")
    for group in (range(0, 6), range(6, 12)):
        produce(kafka_broker, topic, group)
        append(spark_host, table, group)
        old.run()
    found = positions(old, tables={"1": open_location(str(table))})
    assert [s.kind for s in found.sources] == ["kafka", "delta"]
    assert [s.verdict for s in found.sources] == [Verdict.UNKNOWN, Verdict.SAFE]
    for group in (range(12, 16), range(16, 20)):
        produce(kafka_broker, topic, group)
        append(spark_host, table, group)
    assert restarted(old, found, "new").run().ids == list(range(12, 20))
    late = {"startingVersion": str(int(found.options["1"]["startingVersion"]) + 1)}
    assert restarted(old, found, "late", changed={"1": late}).run().ids == list(range(16, 20))


@pytest.mark.slow
def test_a_union_of_files_delta_and_kafka(spark_host: SparkHost, kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    topic, table, place = new_topic(kafka_broker, "united"), tmp_path / "table", tmp_path / "in"
    sources = (files(place), delta(table), kafka(kafka_broker, topic))
    old = Stream(spark_host, tmp_path / "old", sources)

    def more(start: int) -> None:
        put(place, range(start, start + 3), seconds=start)
        append(spark_host, table, range(start + 100, start + 103))
        produce(kafka_broker, topic, range(start + 200, start + 203))

    more(0)
    old.run()
    more(10)
    # A broken checkpoint will do: no metadata, no state of anything, one log entry that cannot be read.
    (old.checkpoint / "metadata").unlink()
    shutil.rmtree(old.checkpoint / "commits")
    newest = max(int(f.name) for f in (old.checkpoint / "offsets").iterdir() if f.name.isdigit())
    (old.checkpoint / "offsets" / str(newest + 1)).write_bytes(b"")
    found = positions(old)
    assert found.batch_id == newest
    assert {u.path for u in found.unread} == {"metadata", f"offsets/{newest + 1}"}
    new = restarted(old, found, "new")
    put_seeds(found, open_location(str(new.checkpoint)))
    assert new.run().ids == [10, 11, 12, 110, 111, 112, 210, 211, 212]
