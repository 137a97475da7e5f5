"""Everything that can happen to a topic behind a checkpoint's back, made to happen on a real broker."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_ckpt_provider.guards.kafka import KafkaGuard
from airflow_ckpt_provider.guards.query import from_checkpoint, from_kafka_offsets, guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.guards.report import GuardReport
from airflow_ckpt_provider.lineage.runs import Opened, of_guard
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.checkpoints import batch_metadata, metadata, offsets_log, plant
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_guards import Ask, facts_of, part

_OLD = int(time.time() * 1000) - 3_600_000


def test_all_there(kafka_broker: KafkaBroker, ask: Ask) -> None:
    topic = kafka_broker.create(partitions=3, retention_ms=3_600_000)
    begin = int(time.time() * 1000)
    kafka_broker.put(topic, [100, 50], start_ms=begin)
    report = ask(topic, {0: 40, 1: 50, 2: 0})
    assert (report.verdict, report.lost, report.reasons) == (Verdict.SAFE, 0, ())
    zero = part(report, 0)
    assert (zero["earliest"], zero["latest"], zero["behind"], zero["lost"]) == (0, 100, 60, 0)
    assert zero["timestamp"].startswith(time.strftime("%Y-%m-%dT", time.gmtime()))
    # The record at the offset is 40 ms younger than the first; it lives an hour.
    age = time.time() - (begin + 40) / 1000
    assert zero["seconds_left"] == pytest.approx(3600 - age, abs=2)
    assert zero["seconds_left_estimate"] >= zero["seconds_left"]
    assert [part(report, p)["timestamp"] for p in (1, 2)] == [None, None], "all is read there"
    assert part(report, 1)["seconds_left"] == 3600
    assert report.seconds_left == zero["seconds_left"]
    assert report.facts["topics"][topic]["retention_is_inherited"] is False
    (source,) = of_guard(GuardReport("given offsets", (report,)).to_json(), Opened()).inputs
    assert (source.namespace, source.name) == (f"kafka://{kafka_broker.address}", topic)


@pytest.mark.parametrize(("ignore", "verdict"), [(False, Verdict.WILL_FAIL), (True, Verdict.WILL_LOSE)])
def test_expired(kafka_broker: KafkaBroker, ask: Ask, ignore: bool, verdict: Verdict) -> None:
    """Segments of 1 MiB, the smallest that Kafka 4 takes; the older of them expire as a whole."""
    topic = kafka_broker.create(partitions=2, segment_bytes=1 << 20, retention_ms=-1)
    kafka_broker.put(topic, [30], start_ms=_OLD, value=lambda p, n: b"x" * 100_000, batch=1)
    kafka_broker.put(topic, [10, 10])
    assert ask(topic, {0: 3, 1: 0}).verdict is Verdict.SAFE
    kafka_broker.configure(topic, retention_ms=1_800_000)
    kafka_broker.await_that(lambda: kafka_broker.ends(topic)[0][0] > 3, "expiry")
    earliest = kafka_broker.ends(topic)[0][0]
    report = ask(topic, {0: 3, 1: 0}, fail_on_data_loss=not ignore)
    assert (report.verdict, report.lost, report.seconds_left) == (verdict, earliest - 3, 0.0)
    assert report.facts["lost_exact"] is True
    assert part(report, 0)["lost"] == earliest - 3
    assert part(report, 1)["finding"] == "fine"
    what = "continues and only logs a warning" if ignore else "stops (failOnDataLoss=true)"
    assert report.reasons == (
        f"topic {topic}: {earliest - 3} records are gone already (by partition 0: {earliest - 3}); Spark {what}",
    )
    assert ask(topic, {0: earliest, 1: 0}).verdict is Verdict.SAFE


def test_deleted_by_request(kafka_broker: KafkaBroker, ask: Ask) -> None:
    topic = kafka_broker.create(partitions=2)
    kafka_broker.put(topic, [100, 100])
    kafka_broker.delete_before(topic, {0: 60, 1: 100})
    report = ask(topic, {0: 40, 1: 30})
    assert (report.verdict, report.lost, report.facts["lost_exact"]) == (Verdict.WILL_FAIL, 90, True)
    assert [part(report, p)["lost"] for p in (0, 1)] == [20, 70]
    assert ask(topic, {0: 60, 1: 100}).verdict is Verdict.SAFE


def test_recreated_shorter(kafka_broker: KafkaBroker, ask: Ask) -> None:
    topic = kafka_broker.create()
    kafka_broker.put(topic, [100])
    known = facts_of(kafka_broker, topic, {0: 80})
    kafka_broker.delete(topic)
    kafka_broker.create(topic)
    kafka_broker.put(topic, [20])
    blind = ask(topic, {0: 80})
    assert (blind.verdict, part(blind, 0)["finding"]) == (Verdict.WILL_FAIL, "ahead of the log")
    assert "at 80, the log of 0 ends at 20" in blind.reasons[0]
    report = ask(topic, {0: 80}, known=known)
    assert (report.verdict, part(report, 0)["finding"]) == (Verdict.WILL_FAIL, "topic recreated")
    assert report.lost == 20


@pytest.mark.parametrize("by", ["id", "fingerprint"])
def test_recreated_longer(kafka_broker: KafkaBroker, ask: Ask, by: str) -> None:
    """What Spark itself cannot see: it would read on in the new log, silently."""
    topic = kafka_broker.create()
    kafka_broker.put(topic, [100], start_ms=_OLD)
    known = facts_of(kafka_broker, topic, {0: 80})
    if by == "fingerprint":  # as recorded from a broker that has no topic ids
        known["sources"]["0"]["topics"][topic]["topic_id"] = None
    assert ask(topic, {0: 90}, known=known).verdict is Verdict.SAFE
    kafka_broker.delete(topic)
    kafka_broker.create(topic)
    kafka_broker.put(topic, [500])
    assert ask(topic, {0: 80}).verdict is Verdict.SAFE, "without a backup nobody can know"
    for ignore in (False, True):
        report = ask(topic, {0: 80}, known=known, fail_on_data_loss=not ignore)
        assert (report.verdict, report.lost) == (Verdict.WILL_LOSE, 80)
        assert f"topic {topic} was deleted and recreated: " in report.reasons[0]
        assert ("its id is" if by == "id" else "the record at offset 79 of partition 0") in report.reasons[0]


def test_recreated_longer_is_seen_by_the_brokers_own_clock(kafka_broker: KafkaBroker, ask: Ask) -> None:
    """With LogAppendTime no backup is needed: a record cannot be younger than the batch that read it."""
    from datetime import UTC, datetime, timedelta

    from airflow_ckpt_provider.guards.kafka import KafkaGuard
    from airflow_ckpt_provider.guards.query import from_kafka_offsets
    from airflow_ckpt_provider.guards.registry import GuardedSource, GuardSettings

    topic = kafka_broker.create(message_timestamp_type="LogAppendTime")
    kafka_broker.put(topic, [100])
    start = from_kafka_offsets({topic: {"0": 80}}).sources[0].start
    guard = KafkaGuard(GuardSettings(options={"kafka": {"config": kafka_broker.config}}))
    now = datetime.now(UTC)
    assert guard.judge(GuardedSource(start, logged_at=now)).verdict is Verdict.SAFE
    report = guard.judge(GuardedSource(start, logged_at=now - timedelta(hours=1)))
    assert (report.verdict, report.lost) == (Verdict.WILL_LOSE, 80)


def test_partitions_added(kafka_broker: KafkaBroker, ask: Ask) -> None:
    topic = kafka_broker.create(partitions=1)
    kafka_broker.put(topic, [10])
    kafka_broker.add_partitions(topic, 3)
    kafka_broker.put(topic, {1: 50, 2: 50})
    report = ask(topic, {0: 10})
    assert (report.verdict, report.lost) == (Verdict.SAFE, 0)
    assert report.reasons == (f"topic {topic}: partition 1, 2 is new and will be read from offset 0",)
    kafka_broker.delete_before(topic, {1: 30})
    report = ask(topic, {0: 10})
    assert (report.verdict, report.lost) == (Verdict.WILL_FAIL, 30)
    assert "partition 1 is new, and its first 30 records are gone already" in report.reasons[0]


def test_partition_removed(kafka_broker: KafkaBroker, ask: Ask) -> None:
    topic = kafka_broker.create(partitions=1)
    kafka_broker.put(topic, [10])
    report = ask(topic, {0: 5, 1: 5})
    assert (report.verdict, report.lost) == (Verdict.WILL_FAIL, None)
    assert report.reasons[0].startswith(f"topic {topic} has no partition 1 any more; what was unread there is lost")


@pytest.mark.parametrize("ignore", [False, True])
def test_topic_deleted(kafka_broker: KafkaBroker, ask: Ask, ignore: bool) -> None:
    topic = kafka_broker.create()
    kafka_broker.put(topic, [10])
    kafka_broker.delete(topic)
    report = ask(topic, {0: 5}, fail_on_data_loss=not ignore)
    assert (report.verdict, report.lost) == (Verdict.WILL_FAIL, None)
    assert report.reasons == (f"topic {topic} does not exist any more: the query fails at its start",)
    assert topic not in kafka_broker.admin.list_topics(timeout=10).topics, "asking did not make it again"


def test_compacted(kafka_broker: KafkaBroker, ask: Ask) -> None:
    """Holes are no loss: the record at the offset may be gone, and nothing is missing."""
    topic = kafka_broker.create(
        cleanup_policy="compact", segment_bytes=1 << 20, min_cleanable_dirty_ratio="0.01", max_compaction_lag_ms=100
    )
    for _ in range(2):
        kafka_broker.put(topic, [30], value=lambda p, n: b"x" * 100_000, key=lambda p, n: f"k{n % 3}".encode(), batch=1)
    from airflow_ckpt_provider.guards.kafka_client import KafkaClient

    def first_kept() -> int:
        return KafkaClient(kafka_broker.config).read({(topic, 0): (0, 0)})[topic, 0][0].offset

    kafka_broker.await_that(lambda: first_kept() > 5, "compaction")
    report = ask(topic, {0: 2}, max_downtime=86400.0)
    assert (report.verdict, report.lost, report.seconds_left) == (Verdict.SAFE, 0, None)
    assert report.reasons == (f"topic {topic} is compacted: offsets without a record are no loss",)
    assert part(report, 0)["limited_by"] == "nothing"
    longer = ask(topic, {0: 2}, max_downtime=86401.0)
    assert longer.verdict is Verdict.UNKNOWN
    assert "keeps deletions (records without a value) for 1 d (delete.retention.ms), less than" in longer.reasons[0]
    assert ask(topic, {0: 2}, max_downtime=86300.0, buffer=101.0).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("offset", "hours", "verdict"), [(3, 25, Verdict.UNKNOWN), (3, 23, Verdict.SAFE), (5, 25, Verdict.SAFE)]
)
def test_deletions_that_were_not_read_in_time(
    kafka_broker: KafkaBroker, offset: int, hours: int, verdict: Verdict
) -> None:
    """A query that keeps rows by key has to read a deletion before it is deleted itself."""
    topic = kafka_broker.create(cleanup_policy="compact")
    kafka_broker.put(topic, [5], key=lambda p, n: f"k{n}".encode())
    query = from_kafka_offsets({topic: {"0": offset}})
    planned = datetime.now(UTC) - timedelta(hours=hours)
    query = replace(query, sources=(replace(query.sources[0], logged_at=planned),))
    settings = GuardSettings(options={"kafka": {"config": kafka_broker.config}})
    report = guard_query(query, settings, guards=[KafkaGuard(settings)]).sources[0]
    assert report.verdict is verdict
    assert ("deletions (records without a value) that it has not read may be gone" in report.reasons[0]) == (
        verdict is Verdict.UNKNOWN
    )


def test_transactions(kafka_broker: KafkaBroker, ask: Ask) -> None:
    """Markers and aborted records take up offsets; they are no loss, but cannot be determined from records once deleted."""
    topic = kafka_broker.create(partitions=2)
    kafka_broker.transact(topic, {0: 10, 1: 3}, commit=True)
    kafka_broker.transact(topic, {0: 5}, commit=False)
    kafka_broker.transact(topic, {0: 10}, commit=True)
    for level in ("read_committed", "read_uncommitted"):
        for offset in (0, 10, 11, 13, 17, 28):
            report = ask(topic, {0: offset, 1: 4}, isolation_level=level)
            assert (report.verdict, report.lost) == (Verdict.SAFE, 0), (level, offset)
            assert part(report, 0)["behind"] == 28 - offset
    kafka_broker.delete_before(topic, {0: 17})
    report = ask(topic, {0: 5, 1: 4})
    assert (report.verdict, report.lost, report.facts["lost_exact"]) == (Verdict.WILL_FAIL, 12, False)
    assert "up to 12 records are gone already" in report.reasons[0]


def test_open_transaction(kafka_broker: KafkaBroker, ask: Ask) -> None:
    from confluent_kafka import Producer

    topic = kafka_broker.create()
    kafka_broker.put(topic, [10])
    producer = Producer({**kafka_broker.config, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(30)
    try:
        report = ask(topic, {0: 10}, isolation_level="read_committed")
        assert (report.verdict, part(report, 0)["latest"]) == (Verdict.SAFE, 10)
        assert report.reasons == ("1 offsets wait for the end of a transaction",)
        assert part(ask(topic, {0: 10}), 0)["latest"] == 11
        # It was SAFE: a query that read uncommitted records before is set back by Spark, or stopped.
        assert ask(topic, {0: 11}).verdict is Verdict.SAFE
        report = ask(topic, {0: 11}, isolation_level="read_committed")
        assert report.verdict is Verdict.WILL_FAIL
        assert (
            "the checkpoint is beyond an open transaction in partition 0 (committed records of 0 end at 10)"
            in report.reasons[0]
        )
        ignoring = ask(topic, {0: 11}, isolation_level="read_committed", fail_on_data_loss=False)
        assert ignoring.verdict is Verdict.UNKNOWN
    finally:
        producer.abort_transaction(30)


def test_planned_downtime(kafka_broker: KafkaBroker, ask: Ask) -> None:
    topic = kafka_broker.create(retention_ms=6 * 3_600_000)
    kafka_broker.put(topic, [10], start_ms=_OLD)
    assert ask(topic, {0: 5}, max_downtime=4 * 3600.0, buffer=1800.0).verdict is Verdict.SAFE
    report = ask(topic, {0: 5}, max_downtime=24 * 3600.0, buffer=3600.0)
    assert report.verdict is Verdict.WILL_FAIL
    # An hour of age, a day, an hour in hand: 26 h and a few moments.
    assert report.facts["topics"][topic]["needed_retention_ms"] == 27 * 3_600_000
    assert "retention.ms=97200000 (1 d 3 h) would do" in report.reasons[0]
    kafka_broker.configure(topic, retention_ms=27 * 3_600_000)
    assert ask(topic, {0: 5}, max_downtime=24 * 3600.0, buffer=3600.0).verdict is Verdict.SAFE
    kafka_broker.configure(topic, retention_ms=-1)
    assert ask(topic, {0: 5}, max_downtime=1e9).verdict is Verdict.SAFE


def test_retention_by_size_is_no_promise(kafka_broker: KafkaBroker, ask: Ask) -> None:
    topic = kafka_broker.create(retention_ms=-1, retention_bytes=1 << 30)
    kafka_broker.put(topic, [1000], step_ms=10)
    report = ask(topic, {0: 5})
    assert (report.verdict, report.seconds_left, part(report, 0)["limited_by"]) == (
        Verdict.SAFE,
        None,
        "retention.bytes",
    )
    # 100 records of 18 bytes a second fill a GiB in a week: twice an hour is far below, twice a month is not.
    assert ask(topic, {0: 5}, max_downtime=3600.0).verdict is Verdict.SAFE
    report = ask(topic, {0: 5}, max_downtime=30 * 86400.0)
    assert report.verdict is Verdict.UNKNOWN
    assert "retention.bytes is 1,073,741,824" in report.reasons[0]


@pytest.mark.parametrize(("ignore", "verdict"), [(False, Verdict.WILL_FAIL), (True, Verdict.WILL_LOSE)])
@pytest.mark.parametrize("option", ["option.0.subscribePattern", "option.0.subscribe"])
def test_a_topic_that_the_query_names_and_the_checkpoint_does_not_know(
    kafka_broker: KafkaBroker, option: str, ignore: bool, verdict: Verdict
) -> None:
    """Spark says the same of both options: see Spark's ``KafkaMicroBatchStream.getOffsetRanges``."""
    known, new = kafka_broker.create(), kafka_broker.create()
    other = kafka_broker.create()
    for topic in (known, new, other):
        kafka_broker.put(topic, [9])
    value = f"{known}|{new}" if option.endswith("Pattern") else f"{known}, {new}"
    settings = GuardSettings(
        fail_on_data_loss=not ignore, options={"kafka": {"config": kafka_broker.config, option: value}}
    )
    query = from_kafka_offsets({known: {"0": 5}})
    guard = KafkaGuard(settings)
    assert guard_query(query, settings, guards=[guard]).verdict is Verdict.SAFE
    for topic in (new, other):
        kafka_broker.delete_before(topic, {0: 4})
    report = guard_query(query, settings, guards=[guard]).sources[0]
    assert (report.verdict, report.lost) == (verdict, 4)
    assert f"topic {new}: partition 0 is new, and its first 4 records are gone already" in report.reasons[0]


@pytest.mark.parametrize(("ignore", "verdict"), [(False, Verdict.WILL_FAIL), (True, Verdict.WILL_LOSE)])
@pytest.mark.parametrize("option", ["option.0.subscribePattern", "option.0.subscribe", "option.0.assign"])
def test_a_topic_that_the_checkpoint_knows_and_the_query_does_not_name(
    kafka_broker: KafkaBroker, option: str, ignore: bool, verdict: Verdict
) -> None:
    """It was SAFE, for the topic is there. Spark reports its partitions as gone."""
    kept, dropped = kafka_broker.create(), kafka_broker.create()
    for topic in (kept, dropped):
        kafka_broker.put(topic, [9])
    settings = GuardSettings(
        fail_on_data_loss=not ignore,
        options={"kafka": {"config": kafka_broker.config, option: f'{{"{kept}":[0]}}' if "assign" in option else kept}},
    )
    query = from_kafka_offsets({kept: {"0": 5}, dropped: {"0": 5}})
    report = guard_query(query, settings, guards=[KafkaGuard(settings)]).sources[0]
    assert (report.verdict, report.lost) == (verdict, None)
    assert (
        f"topic {dropped}: partition 0 is in the checkpoint, and the query does not name it any more"
        in report.reasons[0]
    )


def test_a_pattern_that_only_java_understands(kafka_broker: KafkaBroker) -> None:
    topic = kafka_broker.create()
    settings = GuardSettings(
        options={"kafka": {"config": kafka_broker.config, "option.0.subscribePattern": r"\p{Alpha}+"}}
    )
    report = guard_query(from_kafka_offsets({topic: {"0": 0}}), settings, guards=[KafkaGuard(settings)])
    assert report.verdict is Verdict.UNKNOWN
    assert "topics that it adds are not known" in report.reasons[0]


@pytest.mark.parametrize(
    ("begin", "verdict", "words"),
    [
        ('v1\n{"TOPIC": {"0": 3}}', Verdict.SAFE, None),
        ("\0v1\n" + '{"TOPIC": {"0": 3}}', Verdict.SAFE, None),
        (None, Verdict.UNKNOWN, "Spark evaluates the reader's startingOffsets again"),
        ("", Verdict.WILL_FAIL, "the file is empty"),
        ('\0v1\n{"TOP', Verdict.WILL_FAIL, "it does not hold Kafka's offsets"),
    ],
)
def test_where_a_first_batch_begins(
    tmp_path: Path, kafka_broker: KafkaBroker, begin: str | None, verdict: Verdict, words: str | None
) -> None:
    """A batch that was planned and not committed, and the file that says where it begins."""
    topic = kafka_broker.create()
    kafka_broker.put(topic, [10])
    planned = offsets_log(json.dumps({topic: {"0": 8}}), metadata=batch_metadata())
    files = {"metadata": metadata(), "offsets/0": planned}
    if begin is not None:
        files["sources/0/0"] = begin.replace("TOPIC", topic).encode()
    settings = GuardSettings(options={"kafka": {"config": kafka_broker.config}})
    query = from_checkpoint(plant(open_location(str(tmp_path)), files)).of_kind("kafka")
    report = guard_query(query, settings, guards=[KafkaGuard(settings)]).sources[0]
    assert report.verdict is verdict
    assert (words is None and not report.reasons) or (words is not None and words in report.reasons[0])
