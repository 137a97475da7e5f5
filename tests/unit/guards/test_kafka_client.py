"""A client of Kafka goes in the thread that drops it.

librdkafka ends the process where a client is destroyed in its own thread. Python's collector of cycles runs in any thread,
that of a callback too, so a client must not wait for it.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_ckpt_provider.errors import SourceError
from airflow_ckpt_provider.guards.kafka_client import KafkaClient

PARTITION = ("orders", 0)


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.freeze()  # what the tests before have left need not be walked over
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def test_it_goes_without_the_collector_of_cycles() -> None:
    client = KafkaClient({"bootstrap.servers": "127.0.0.1:1"})
    admin = weakref.ref(client._admin)
    del client
    assert admin() is None


each_question = pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.topic_names(),
        lambda client: client.topics(["orders"]),
        lambda client: client.configs(["orders"]),
        lambda client: client.ends([PARTITION]),
        lambda client: client.newest_timestamps([PARTITION]),
        lambda client: client.read({PARTITION: (0, 1)}),
        lambda client: client.set_retention("orders", 1),
    ],
    ids=["names", "topics", "configs", "ends", "timestamps", "records", "retention"],
)


@each_question
def test_it_goes_without_the_collector_after_a_broker_did_not_answer(ask: Callable[[KafkaClient], object]) -> None:
    """The error of an answer is held by the answer: with the frames in which it was raised, which hold the answer."""
    client = KafkaClient({"bootstrap.servers": "127.0.0.1:1"}, timeout=1)
    with pytest.raises(SourceError):
        ask(client)
    admin = weakref.ref(client._admin)
    del client
    assert admin() is None


@each_question
def test_all_questions_share_one_limit(ask: Callable[[KafkaClient], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is asked once the time is up."""
    client = KafkaClient({"bootstrap.servers": "127.0.0.1:1"}, timeout=1)
    with pytest.raises(SourceError):
        client.topic_names()
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 10)
    monkeypatch.setattr("airflow_ckpt_provider.guards.kafka_client.time", later)
    with pytest.raises(SourceError, match="cannot get an answer: no answer within 1 s"):
        ask(client)


def test_a_broker_that_hangs_after_it_has_described_the_topics() -> None:
    from confluent_kafka.admin import ConfigResource, ResourceType

    topic: Future[dict[str, object]] = Future()
    topic.set_result({})

    def describe(resources: list[ConfigResource], **_: object) -> dict[ConfigResource, Future[dict[str, object]]]:
        return {each: topic if each.restype is ResourceType.TOPIC else Future() for each in resources}

    client = KafkaClient({"bootstrap.servers": "127.0.0.1:1"}, timeout=0.2)
    brokers = SimpleNamespace(brokers={1: "broker"})
    client._client = cast(
        "Any", SimpleNamespace(describe_configs=describe, list_topics=lambda **_: brokers, poll=lambda _: 0)
    )
    with pytest.raises(SourceError, match=r"cannot describe the configuration of a broker: no answer within 0\.2 s"):
        client.configs(["orders"])
