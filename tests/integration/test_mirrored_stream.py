"""A stream that moves with its topic to another Kafka cluster: two brokers, MirrorMaker 2, and Spark."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.guards.kafka import observe_kafka
from airflow_ckpt_provider.guards.kafka_client import KafkaClient
from airflow_ckpt_provider.guards.mirror_syncs import MirrorNames
from airflow_ckpt_provider.recovery.positions.asking import Question, ask
from airflow_ckpt_provider.recovery.positions.logs import logs_of_backup
from airflow_ckpt_provider.recovery.positions.mirror import Mirror
from airflow_ckpt_provider.recovery.positions.positions import StartingPositions
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.kafka_broker import KafkaBroker, running_kafka_broker
from tests.support.mirror_maker import running_mirror_maker
from tests.support.streams.described import Source, Stream
from tests.support.streams.spark_host import SparkHost

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def kafka(broker: KafkaBroker, topic: str, starting: str = "earliest") -> Source:
    options = {"kafka.bootstrap.servers": broker.address, "subscribe": topic, "startingOffsets": starting}
    return Source("kafka", ("cast(cast(value AS string) AS long) AS id",), options=options)


def put(broker: KafkaBroker, topic: str, ids: range) -> None:
    """Every second one into each of two partitions."""
    half = len(ids) // 2
    broker.put(topic, {0: half, 1: half}, value=lambda partition, number: str(ids[2 * number + partition]).encode())


def ends(broker: KafkaBroker, topic: str) -> dict[int, tuple[int, int]]:
    return broker.ends(topic) if topic in broker.admin.list_topics(timeout=10).topics else {}


def test_the_moved_stream_reads_every_row_and_repeats_no_more_than_was_said(
    spark_host: SparkHost, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with running_kafka_broker(tmp_path / "a") as old, running_kafka_broker(tmp_path / "b") as new:
        old.create("orders", partitions=2)
        put(old, "orders", range(100))
        old.delete_before("orders", {0: 5, 1: 10})  # so the numbers of the copies are others
        stream = Stream(spark_host, tmp_path / "before", (kafka(old, "orders"),))
        for ids in (range(100, 160), range(160, 200)):
            stream.run()
            put(old, "orders", ids)
        with running_mirror_maker(tmp_path / "mm", old, new, topics="orders", more=("offset.lag.max=10",)):
            new.await_that(lambda: ends(new, "old.orders") == {0: (0, 95), 1: (0, 90)}, "the copy", within=120)

            def positions(question: Question) -> StartingPositions:
                mirror = Mirror(MirrorNames("old", "new"), new=KafkaClient(new.config), old=KafkaClient(old.config))
                return ask(logs_of_backup(repository, repository.manifest("latest")), question, mirror=mirror)

            def back_up() -> None:
                checkpoint = Checkpoint.at(open_location(str(stream.checkpoint)))
                create_backup(checkpoint, repository, observe=observe_kafka(KafkaClient(old.config)))

            def moved(starting: str, name: str) -> Counter[int]:
                source = kafka(new, "old.orders", starting)
                after = replace(stream, place=tmp_path / name, sources=(source,))
                return Counter(after.run().ids)

            # After batch 1 the rows 160 to 199 are unread.
            repository = Repository.open_or_create(open_location(str(tmp_path / "repository")))
            back_up()
            new.await_that(lambda: positions(Question(batch=1)).verdict is Verdict.WILL_DUPLICATE, "syncs")
            found = positions(Question(batch=1))
            got = moved(found.options["0"]["startingOffsets"], "moved")
            again = got - Counter(range(160, 200))
            assert not Counter(range(160, 200)) - got
            assert found.sources[0].repeats is not None
            assert 0 < again.total() <= found.sources[0].repeats["records"]
            # The same numbers on the new cluster lose rows silently.
            offsets = json.loads((stream.checkpoint / "offsets" / "1").read_text().splitlines()[2])
            naive = moved(json.dumps({"old.orders": offsets["orders"]}), "naive")
            assert (Counter(range(160, 200)) - naive).total() > 0

            # Its end, once the producers stand still: exact. What comes to the new cluster afterwards is read once.
            stream.run()
            back_up()
            new.await_that(lambda: positions(Question()).verdict is Verdict.SAFE, "the sync of the newest record")
            exact = positions(Question())
        put(new, "old.orders", range(300, 320))
        assert moved(exact.options["0"]["startingOffsets"], "exact") == Counter(range(300, 320))
