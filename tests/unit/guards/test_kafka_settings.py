"""A client's configuration from a file, as JSON and as properties."""

from __future__ import annotations

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.kafka_settings import read_config


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
