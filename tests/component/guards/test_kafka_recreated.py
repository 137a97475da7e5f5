"""A topic that was recreated while its stream was down stays another one, whatever backups are taken of the stream."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.guards.kafka import KafkaGuard, observe_kafka
from airflow_ckpt_provider.guards.kafka_client import KafkaClient
from airflow_ckpt_provider.guards.query import guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.preflight import query_to_guard
from airflow_ckpt_provider.verdict import Verdict
from tests.support.checkpoints import batch_metadata, commit_log, metadata, offsets_log, plant
from tests.support.kafka_broker import KafkaBroker


@pytest.fixture
def place(tmp_path: Path) -> Location:
    return open_location(str(tmp_path))


class Stream:
    """A stream that reads one topic, as its checkpoint and its repository show it.

    :param place: where both are.
    :param broker: has the topic.
    """

    def __init__(self, place: Location, broker: KafkaBroker) -> None:
        self.checkpoint, self.broker, self.topic = place / "orders", broker, broker.create()
        self.repository = Repository.open_or_create(place / "backups")
        plant(self.checkpoint, {"metadata": metadata()})

    def commit(self, batch: int, end: int, *, minutes: float = 0) -> None:
        """Commit a batch that was planned so many minutes from now."""
        about = batch_metadata(batch) | {"batchTimestampMs": int((time.time() + 60 * minutes) * 1000)}
        offsets = offsets_log(json.dumps({self.topic: {"0": end}}), metadata=about)
        plant(self.checkpoint, {f"offsets/{batch}": offsets, f"commits/{batch}": commit_log()})

    def back_up(self, *, servers: str | None = None) -> None:
        """Back it up, and ask the brokers; empty: nobody is asked."""
        config = self.broker.config if servers is None else {"bootstrap.servers": servers}
        client = KafkaClient(config, timeout=10 if servers is None else 1)
        create_backup(
            Checkpoint.at(self.checkpoint), self.repository, observe=None if servers == "" else observe_kafka(client)
        )

    def recreate(self, records: int) -> None:
        self.broker.delete(self.topic)
        self.broker.create(self.topic)
        self.broker.put(self.topic, [records])

    @property
    def verdict(self) -> Verdict:
        settings = GuardSettings(options={"kafka": {"config": self.broker.config}})
        query = query_to_guard(checkpoint=self.checkpoint, repository=self.repository)
        return guard_query(query, settings, guards=[KafkaGuard(settings)]).verdict


def test_backups_of_a_stream_that_stands_still(place: Location, kafka_broker: KafkaBroker) -> None:
    stream = Stream(place, kafka_broker)
    kafka_broker.put(stream.topic, [10])
    stream.commit(0, 5)
    stream.back_up()
    stream.commit(1, 10)  # the last batch before the topic is recreated is in no backup yet
    stream.recreate(20)
    assert stream.verdict is Verdict.WILL_LOSE
    for servers in (None, "", "127.0.0.1:1", None):  # the brokers are asked, are not, do not answer, are asked again
        stream.back_up(servers=servers)
        assert stream.verdict is Verdict.WILL_LOSE, servers


def test_a_topic_that_is_away_for_one_backup(place: Location, kafka_broker: KafkaBroker) -> None:
    stream = Stream(place, kafka_broker)
    kafka_broker.put(stream.topic, [10])
    stream.commit(0, 5)
    stream.back_up()
    kafka_broker.delete(stream.topic)
    stream.back_up()
    kafka_broker.create(stream.topic)
    kafka_broker.put(stream.topic, [20])
    stream.back_up()
    assert stream.verdict is Verdict.WILL_LOSE


def test_the_new_topic_counts_once_the_stream_has_read_it(place: Location, kafka_broker: KafkaBroker) -> None:
    stream = Stream(place, kafka_broker)
    kafka_broker.put(stream.topic, [10])
    stream.commit(0, 5)
    stream.back_up()
    stream.recreate(20)
    stream.commit(1, 8)
    stream.back_up()
    assert stream.verdict is Verdict.WILL_LOSE, "batch 1 may have been planned before the topic was recreated"
    stream.commit(2, 12, minutes=6)
    stream.back_up()
    assert stream.verdict is Verdict.SAFE


def test_a_restore_to_a_batch_before(place: Location, kafka_broker: KafkaBroker) -> None:
    """The newest backup knows the new topic, and the checkpoint has offsets of the old one."""
    stream = Stream(place, kafka_broker)
    kafka_broker.put(stream.topic, [10])
    stream.commit(0, 5)
    stream.back_up()
    stream.recreate(20)
    stream.back_up()
    stream.commit(1, 12, minutes=6)
    stream.back_up()
    assert stream.verdict is Verdict.SAFE
    for log in ("offsets", "commits"):
        stream.checkpoint.delete(f"{log}/1")
    assert stream.verdict is Verdict.WILL_LOSE
    stream.back_up()
    assert stream.verdict is Verdict.WILL_LOSE
