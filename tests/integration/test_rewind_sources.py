"""A rewind of a stateful stream that reads Kafka or Delta: the guards are asked, the replay is row-exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.registry import GuardSettings, installed_guards
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.kafka_broker import KafkaBroker
from tests.support.replayed_sources import append, delta, kafka, new_topic, produce
from tests.support.stopped import STOPPED, wait_until_quiet
from tests.support.streams.described import Stream
from tests.support.streams.spark_host import SparkHost

pytestmark = pytest.mark.spark


def plan_of(stream: Stream, batch: int, options: dict[str, Any]) -> RewindPlan:
    place = open_location(str(stream.checkpoint))
    wait_until_quiet(place, quiet_for=1.0, at_most=60)
    guards = installed_guards(GuardSettings(options=options))
    sink = Sink(place=open_location(str(stream.place / "out")))
    specifier = Specifier("to_batch", str(batch))
    return plan_rewind(Checkpoint.at(place), specifier, sink=sink, sink_exit=SinkPolicy.ROLLBACK, guards=guards)


def carried_out(stream: Stream, plan: RewindPlan) -> None:
    place = open_location(str(stream.checkpoint))
    sink = Sink(place=open_location(str(stream.place / "out")))
    held = Repository.open_or_create(default_repository(place))
    apply_rewind(plan, Checkpoint.at(place), held, sink=sink, rest=STOPPED)


def newest(stream: Stream) -> int:
    found = Checkpoint.at(open_location(str(stream.checkpoint))).progress().latest_committed
    assert found is not None
    return found


def faulty(stream: Stream) -> Stream:
    (source,) = stream.sources
    wrong = "id + 1000 AS id" if source.select == ("id",) else "1000 + cast(cast(value AS string) AS long) AS id"
    return replace(stream, sources=(replace(source, select=(wrong,)),))


def ids_in(stream: Stream) -> list[int]:
    return sorted(DeltaTable(str(stream.place / "out")).to_pyarrow_table()["id"].to_pylist())


@pytest.mark.slow
def test_kafka(spark_host: SparkHost, kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    topic = new_topic(kafka_broker, "rewind")
    stream = Stream(spark_host, tmp_path / "s", (kafka(kafka_broker, topic),), combine="distinct", sink="delta")
    produce(kafka_broker, topic, range(0, 6))
    stream.run()
    right = newest(stream)
    for ids in (range(6, 9), range(9, 12)):
        produce(kafka_broker, topic, ids)
        faulty(stream).run()
    assert ids_in(stream) != list(range(12))
    plan = plan_of(stream, right, {"kafka": {"config": kafka_broker.config}})
    assert plan.source_verdict is Verdict.SAFE, plan.reasons
    assert plan.replay["records"] == {"0": 6}
    carried_out(stream, plan)
    stream.run()
    assert ids_in(stream) == list(range(12))


@pytest.mark.slow
def test_kafka_that_has_lost_what_would_be_read_again(
    spark_host: SparkHost, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = new_topic(kafka_broker, "gone")
    stream = Stream(spark_host, tmp_path / "s", (kafka(kafka_broker, topic),), combine="distinct", sink="delta")
    for ids in (range(0, 6), range(6, 12)):
        produce(kafka_broker, topic, ids)
        stream.run()
    rows = ids_in(stream)
    kafka_broker.delete_before(topic, dict.fromkeys(range(len(kafka_broker.ends(topic))), 5))
    plan = plan_of(stream, 0, {"kafka": {"config": kafka_broker.config}})
    assert plan.source_verdict in (Verdict.WILL_FAIL, Verdict.WILL_LOSE)
    with pytest.raises(RefusedError, match="needs somebody to accept: source_"):
        carried_out(stream, plan)
    assert ids_in(stream) == rows
    assert Checkpoint.at(open_location(str(stream.checkpoint))).progress().seal is None


@pytest.mark.slow
def test_delta(spark_host: SparkHost, tmp_path: Path) -> None:
    place = tmp_path / "in"
    stream = Stream(spark_host, tmp_path / "s", (delta(place),), combine="distinct", sink="delta")
    append(spark_host, place, range(0, 6))
    stream.run()
    right = newest(stream)
    for ids in (range(6, 9), range(9, 12)):
        append(spark_host, place, ids)
        faulty(stream).run()
    assert ids_in(stream) != list(range(12))
    plan = plan_of(stream, right, {"delta": {"tables": {"0": str(place)}}})
    carried_out(stream, plan)
    stream.run()
    assert ids_in(stream) == list(range(12))
