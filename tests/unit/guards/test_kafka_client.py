"""A client of Kafka goes in the thread that drops it.

librdkafka ends the process where a client is destroyed in its own thread. Python's collector of cycles runs in any thread,
that of a callback too, so a client must not wait for it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from airflow_ckpt_provider.errors import SourceError
from airflow_ckpt_provider.guards.kafka_client import KafkaClient


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_it_goes_without_the_collector_of_cycles() -> None:
    client = KafkaClient({"bootstrap.servers": "127.0.0.1:1"})
    admin = weakref.ref(client._admin)
    del client
    assert admin() is None


def test_it_goes_without_the_collector_after_a_broker_did_not_answer() -> None:
    client = KafkaClient({"bootstrap.servers": "127.0.0.1:1"}, timeout=1)
    with pytest.raises(SourceError, match="cannot list topics"):
        client.topic_names()
    with pytest.raises(SourceError, match="cannot list offsets"):
        client.again().ends([("orders", 0)])
    admin = weakref.ref(client._admin)
    del client
    assert admin() is None
