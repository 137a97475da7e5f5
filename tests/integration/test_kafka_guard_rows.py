"""The guard's numbers against what a real stream then misses, partition by partition."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.guards.kafka import KafkaGuard, observe_kafka
from airflow_ckpt_provider.guards.kafka_client import KafkaClient
from airflow_ckpt_provider.guards.query import guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.guards.report import GuardReport
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.preflight import query_to_guard
from airflow_ckpt_provider.verdict import Verdict
from tests.support.kafka_broker import KafkaBroker, running_kafka_broker
from tests.support.streams.sink import batches
from tests.support.streams.spark_host import Run, SparkHost

pytestmark = pytest.mark.spark

Rows = Counter[tuple[int, int]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with running_kafka_broker(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@dataclass
class Stream:
    """A real stream that writes down partition and offset of every record it reads."""

    host: SparkHost
    broker: KafkaBroker
    root: Path
    topic: str

    def run(self, *, fail_on_data_loss: bool) -> Run:
        """Read all there is, and stop; it may fail."""
        return self.begin(fail_on_data_loss=fail_on_data_loss, available_now=True).wait(120)

    def begin(self, *, fail_on_data_loss: bool, available_now: bool = False) -> Run:
        """Start it."""
        options = {
            "kafka.bootstrap.servers": self.broker.address,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "failOnDataLoss": str(fail_on_data_loss).lower(),
            "kafka.request.timeout.ms": "10000",
            "kafka.default.api.timeout.ms": "10000",
            "kafkaConsumer.pollTimeoutMs": "10000",
        }
        (self.root / "kafka.json").write_text(json.dumps(options))
        return self.host.start(
            "kafka",
            source=self.root,
            checkpoint=self.root / "checkpoint",
            out=self.root / "out",
            available_now=available_now,
        )

    def read(self) -> Rows:
        """All that was read so far."""
        rows = [json.loads(row) for batch in batches(self.root / "out").values() for row in batch]
        return Counter((partition, offset) for _, partition, offset in rows)

    def missing(self, before: Rows, written: dict[int, int]) -> dict[int, int]:
        """Rows of offsets below ``written`` that were never read, by partition.

        :param before: what was read of them before the restart; rows of an older topic of that name left out.
        """
        seen = before | self.read()
        return {p: n for p, end in written.items() if (n := sum((p, o) not in seen for o in range(end)))}

    def back_up(self) -> None:
        """Take a backup that knows the topics."""
        repository = Repository.open_or_create(open_location(str(self.root / "backups")))
        checkpoint = Checkpoint.at(open_location(str(self.root / "checkpoint")))
        observe = observe_kafka(KafkaClient(self.broker.config))
        result = create_backup(checkpoint, repository, observe=observe)
        assert self.topic in result.manifest.facts["sources"]["0"]["topics"]

    def guard(self, *, fail_on_data_loss: bool, known: bool = True) -> GuardReport:
        """Ask the guard, with or without the backup."""
        place = self.root / "backups"
        query = query_to_guard(
            checkpoint=open_location(str(self.root / "checkpoint")),
            repository=Repository.open(open_location(str(place))) if known and place.exists() else None,
        )
        settings = GuardSettings(fail_on_data_loss=fail_on_data_loss, options={"kafka": {"config": self.broker.config}})
        return guard_query(query, settings, guards=[KafkaGuard(settings)])


@pytest.fixture
def stream(spark_host: SparkHost, broker: KafkaBroker, tmp_path: Path) -> Stream:
    """A stream of a topic of 3 partitions, that has read 30, 20 and 10 records of 100 kB."""
    topic = broker.create(partitions=3, segment_bytes=1 << 20, retention_ms=-1)
    stream = Stream(spark_host, broker, tmp_path, topic)
    _put(stream, {0: 30, 1: 20, 2: 10}, age=7200)
    assert stream.run(fail_on_data_loss=True).error is None
    assert stream.read().total() == 60
    stream.back_up()
    return stream


def _put(stream: Stream, counts: dict[int, int], *, age: float = 0.0) -> None:
    start = int((time.time() - age) * 1000)
    stream.broker.put(stream.topic, counts, start_ms=start, value=lambda p, n: b"x" * 100_000, batch=1)


def _lost(report: GuardReport) -> dict[int, int]:
    return {part.facts["partition"]: part.facts["lost"] for part in report.sources[0].parts if part.facts["lost"]}


@pytest.mark.parametrize("how", [pytest.param("retention", marks=pytest.mark.slow), "DeleteRecords"])
def test_lost_counts_are_the_rows_missing(stream: Stream, how: str) -> None:
    _put(stream, {0: 40, 1: 5, 2: 35}, age=3600)
    _put(stream, {0: 8, 2: 3})
    written = {0: 78, 1: 25, 2: 48}
    assert stream.guard(fail_on_data_loss=True).verdict is Verdict.SAFE
    before = stream.read()
    if how == "retention":
        stream.broker.configure(stream.topic, retention_ms=1_800_000)
        ends = stream.broker.ends
        stream.broker.await_that(lambda: all(ends(stream.topic)[p][0] > at for p, at in ((0, 30), (2, 10))), "expiry")
        # Until nothing moves any more.
        stream.broker.await_that(lambda: _still(stream), "the end of expiry")
    else:
        stream.broker.delete_before(stream.topic, {0: 55, 1: 20, 2: 45})
    report = stream.guard(fail_on_data_loss=False)
    lost = _lost(report)
    assert report.verdict is Verdict.WILL_LOSE
    assert lost.keys() >= {0, 2}
    assert stream.guard(fail_on_data_loss=True).verdict is Verdict.WILL_FAIL
    if how == "DeleteRecords":
        assert "some data may" in stream.run(fail_on_data_loss=True).error_text.lower()
    assert stream.run(fail_on_data_loss=False).error is None
    assert stream.missing(before, written) == lost
    assert stream.guard(fail_on_data_loss=True).verdict is Verdict.SAFE


def _still(stream: Stream) -> bool:
    before = stream.broker.ends(stream.topic)
    deadline = time.monotonic() + 2.5  # the broker looks once a second
    while time.monotonic() < deadline:
        if stream.broker.ends(stream.topic) != before:
            return False
        time.sleep(0.2)
    return True


def test_recreated_longer_is_lost_without_a_word(stream: Stream) -> None:
    stream.broker.delete(stream.topic)
    stream.broker.create(stream.topic, partitions=3)
    _put(stream, {0: 50, 1: 50, 2: 50})
    assert stream.guard(fail_on_data_loss=True, known=False).verdict is Verdict.SAFE, "nobody else can see it"
    report = stream.guard(fail_on_data_loss=True)
    assert (report.verdict, _lost(report)) == (Verdict.WILL_LOSE, {0: 30, 1: 20, 2: 10})
    count = len(batches(stream.root / "out"))
    assert stream.run(fail_on_data_loss=True).error is None, "Spark cannot see it either"
    new = [json.loads(r) for b, rows in batches(stream.root / "out").items() if b >= count for r in rows]
    assert Counter(p for _, p, _ in new) == {0: 50 - 30, 1: 50 - 20, 2: 50 - 10}


@pytest.mark.slow
@pytest.mark.parametrize("ignore", [False, True])
def test_recreated_shorter(stream: Stream, ignore: bool) -> None:
    stream.broker.delete(stream.topic)
    stream.broker.create(stream.topic, partitions=3)
    _put(stream, {0: 5, 1: 5, 2: 5})
    report = stream.guard(fail_on_data_loss=not ignore)
    assert report.verdict is (Verdict.WILL_LOSE if ignore else Verdict.WILL_FAIL)
    assert _lost(report) == {0: 5, 1: 5, 2: 5}
    run = stream.run(fail_on_data_loss=not ignore)
    if not ignore:
        assert "offset was changed from" in run.error_text
        return
    assert run.error is None
    assert stream.read().total() == 60, "nothing of the new topic was read"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["shorter", "not named"])
def test_what_was_planned_while_data_was_gone_is_planned_again(stream: Stream, how: str) -> None:
    """Spark logs a batch before it sees that data is gone. Also when the topic is there again, it replays that."""
    topic = stream.topic
    if how == "shorter":
        stream.broker.delete(topic)
        stream.broker.create(topic, partitions=3)
        _put(stream, {0: 5, 1: 5, 2: 5})
    else:
        stream.topic = stream.broker.create(partitions=1)
        _put(stream, {0: 1})
        options = {"kafka": {"config": stream.broker.config, "option.0.subscribe": stream.topic}}
        query = query_to_guard(checkpoint=open_location(str(stream.root / "checkpoint")), repository=None)
        for ignore, verdict in ((False, Verdict.WILL_FAIL), (True, Verdict.WILL_LOSE)):
            settings = GuardSettings(fail_on_data_loss=not ignore, options=options)
            assert guard_query(query, settings, guards=[KafkaGuard(settings)]).verdict is verdict
    words = "offset was changed from" if how == "shorter" else "have been deleted"
    assert words in stream.begin(fail_on_data_loss=True).wait().error_text
    stream.topic = topic
    _put(stream, {0: 50, 1: 50, 2: 50})
    assert stream.guard(fail_on_data_loss=True, known=False).verdict is Verdict.WILL_FAIL
    assert words in stream.begin(fail_on_data_loss=True).wait().error_text
    if how == "shorter":
        assert stream.guard(fail_on_data_loss=False, known=False).verdict is Verdict.UNKNOWN
        return
    assert stream.guard(fail_on_data_loss=False, known=False).verdict is Verdict.WILL_DUPLICATE
    run = stream.begin(fail_on_data_loss=False)
    stream.broker.await_that(lambda: stream.read()[1, 69] > 0, "the end of the topic")
    run.stop()
    run.finished()
    assert stream.read()[1, 0] == 2, "it was read from its beginning again"


@pytest.mark.slow
@pytest.mark.parametrize("ignore", [False, True])
def test_deleted(stream: Stream, ignore: bool) -> None:
    stream.broker.delete(stream.topic)
    report = stream.guard(fail_on_data_loss=not ignore)
    assert report.verdict is Verdict.WILL_FAIL
    assert stream.run(fail_on_data_loss=not ignore).error_text


@pytest.mark.slow
def test_partitions_added(stream: Stream) -> None:
    stream.broker.add_partitions(stream.topic, 5)
    _put(stream, {3: 20, 4: 20})
    stream.broker.delete_before(stream.topic, {4: 15})
    before = stream.read()
    report = stream.guard(fail_on_data_loss=False)
    assert (report.verdict, _lost(report)) == (Verdict.WILL_LOSE, {4: 15})
    assert stream.run(fail_on_data_loss=True).error_text
    assert stream.run(fail_on_data_loss=False).error is None
    assert stream.missing(before, {0: 30, 1: 20, 2: 10, 3: 20, 4: 20}) == {4: 15}


@pytest.mark.slow
def test_transactions_lose_at_most_what_is_said(stream: Stream) -> None:
    stream.broker.transact(stream.topic, {0: 10}, commit=True)
    stream.broker.transact(stream.topic, {0: 5}, commit=False)
    stream.broker.transact(stream.topic, {0: 10}, commit=True)
    assert stream.guard(fail_on_data_loss=True).verdict is Verdict.SAFE
    stream.broker.delete_before(stream.topic, {0: 45})
    report = stream.guard(fail_on_data_loss=False)
    assert (_lost(report), report.sources[0].facts["lost_exact"]) == ({0: 15}, False)
    assert stream.run(fail_on_data_loss=False).error is None
