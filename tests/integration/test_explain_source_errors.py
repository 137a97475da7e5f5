"""Real Kafka and real Delta without what a stream continues with, under the locked Spark: what it says is recognised."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.advisor.advice import recovery_advice
from tests.support.kafka_broker import KafkaBroker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


class Streams:
    """The tests' end of :mod:`tests.support.failing_sources`."""

    def __init__(self, log: Path) -> None:
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.failing_sources"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._answer() == {"ready": True}

    def ask(self, do: str, place: Path, **more: Any) -> str:
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"do": do, "place": str(place), **more}) + "\n")
        self._process.stdin.flush()
        return str(self._answer()["message"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the process is gone"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    found = Streams(tmp_path_factory.mktemp("sources") / "spark.log")
    yield found
    found.close()


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("made_again", "DELTA-OTHER-TABLE"),
        ("rows_updated", "DELTA-ROWS-CHANGED"),
        ("rows_deleted", "DELTA-ROWS-CHANGED"),
        ("log_expired", "DELTA-VERSIONS-GONE"),
        ("files_vacuumed", "SOURCE-FILE-GONE"),
    ],
)
def test_delta(how: str, code: str, streams: Streams, tmp_path: Path):
    assert streams.ask("prepare", tmp_path) == ""
    assert streams.ask("damage", tmp_path, how=how) == ""
    said = streams.ask("go_on", tmp_path)
    advice = recovery_advice(said)
    assert advice.condition, said
    assert advice.condition.code == code, said
    assert advice.facts.checkpoint == str(tmp_path / "ck")


def test_kafka_whose_retention_was_too_short(streams: Streams, tmp_path: Path, kafka_broker: KafkaBroker):
    topic = kafka_broker.create()
    stream = {"broker": kafka_broker.address, "topic": topic}
    kafka_broker.put(topic, [10])
    assert streams.ask("prepare", tmp_path, **stream) == ""
    kafka_broker.put(topic, [20])
    kafka_broker.delete_before(topic, {0: 25})
    said = streams.ask("go_on", tmp_path, **stream)
    advice = recovery_advice(said)
    assert advice.condition, said
    assert advice.condition.code == "KAFKA-OFFSETS-GONE", said
    assert advice.facts.topic == topic
    assert advice.facts.checkpoint == str(tmp_path / "ck")


def test_kafka_whose_topic_was_made_again(streams: Streams, tmp_path: Path, kafka_broker: KafkaBroker):
    topic = kafka_broker.create()
    stream = {"broker": kafka_broker.address, "topic": topic}
    kafka_broker.put(topic, [10])
    assert streams.ask("prepare", tmp_path, **stream) == ""
    kafka_broker.delete(topic)
    kafka_broker.create(topic)
    kafka_broker.put(topic, [3])
    said = streams.ask("go_on", tmp_path, **stream)
    advice = recovery_advice(said)
    assert advice.condition, said
    assert advice.condition.code == "KAFKA-TOPIC-REMADE", said
