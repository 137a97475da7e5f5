"""A client's configuration from a file, as JSON and as properties."""

from __future__ import annotations

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.kafka import KafkaGuard
from airflow_ckpt_provider.guards.kafka_client import KafkaClient
from airflow_ckpt_provider.guards.kafka_settings import read_config
from airflow_ckpt_provider.guards.registry import GuardSettings


@pytest.mark.parametrize(
    "text",
    [
        '{"bootstrap.servers": "b:9092", "sasl.password": "a=b"}',
        "# comment\n! too\n\nbootstrap.servers = b:9092\nsasl.password=a=b\n",
    ],
)
def test_both_forms(text: str) -> None:
    assert read_config(text, name="f") == {"bootstrap.servers": "b:9092", "sasl.password": "a=b"}


@pytest.mark.parametrize("text", ["{", "bootstrap.servers", "", '{"a": 1}', "sasl.password=x"])
def test_no_configuration(text: str) -> None:
    with pytest.raises(RefusedError) as e:
        read_config(text, name="kafka.properties")
    assert e.value.message.startswith("kafka.properties ")
    assert e.value.hint


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"bootstrap.server": "127.0.0.1:1"}, "No such configuration property"),
        ({"sasl.jaas.config": "org.apache"}, "JAAS configuration is not supported"),
        ({"ssl.truststore.location": "/x"}, "TrustStores are not supported"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/missing.pem"}, "ssl.ca.location failed"),
        ({"socket.timeout.ms": "1"}, "outside allowed range"),
    ],
)
def test_settings_that_the_client_does_not_take_are_refused(wrong: dict[str, str], why: str) -> None:
    """Nobody was asked, so a retry does not help. It was an unreachable broker."""
    client = KafkaClient({"bootstrap.servers": "127.0.0.1:1", **wrong}, timeout=1)
    with pytest.raises(RefusedError, match=why):
        client.topic_names()


def test_settings_that_are_none_are_refused() -> None:
    with pytest.raises(RefusedError, match=r"kafka.config is 'kafka.properties'"):
        KafkaGuard(GuardSettings(options={"kafka": {"config": "kafka.properties"}}))
