"""Sources whose data is read again from positions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from tests.support.kafka_broker import KafkaBroker
from tests.support.streams.described import Source
from tests.support.streams.spark_host import SparkHost


def put(directory: Path, ids: Iterable[int], *, seconds: float) -> None:
    """One file for each id, all of the same modification time."""
    directory.mkdir(exist_ok=True)
    for i in ids:
        temporary = directory / f"_{i}"
        temporary.write_text(json.dumps({"id": i}) + "\n")
        os.utime(temporary, (1704067200 + seconds,) * 2)
        temporary.rename(directory / f"file {i}.json")  # a space: the log has it percent-encoded


def files(directory: Path, per_batch: int = 2) -> Source:
    options = {"maxFilesPerTrigger": str(per_batch)}
    return Source("json", path=str(directory), schema="id long", options=options)


def append(host: SparkHost, table: Path, *groups: range, parts: int = 3) -> None:
    """One commit for each group, in several files."""
    for group in groups:
        hint = f"/*+ REPARTITION({parts}) */"
        select = f"SELECT {hint} id FROM range({group.start}, {group.stop})"
        if (table / "_delta_log").exists():
            host.sql(f"INSERT INTO delta.`{table}` {select}")
        else:
            host.sql(f"CREATE TABLE delta.`{table}` USING delta AS {select}")


def delta(table: Path, **options: str) -> Source:
    return Source("delta", path=str(table), options=options)


def produce(broker: KafkaBroker, topic: str, ids: Iterable[int]) -> None:
    from confluent_kafka import Producer

    producer = Producer(broker.config)
    for i in ids:
        producer.produce(topic, value=str(i).encode(), partition=i % 2)
    assert producer.flush(30) == 0


def kafka(broker: KafkaBroker, topic: str) -> Source:
    options = {"kafka.bootstrap.servers": broker.address, "subscribe": topic, "startingOffsets": "earliest"}
    return Source("kafka", ("cast(cast(value AS string) AS long) AS id",), options=options)


def new_topic(broker: KafkaBroker, name: str, partitions: int = 2) -> str:
    from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

    admin = AdminClient(broker.config)
    if name in admin.list_topics(timeout=10).topics:
        admin.create_partitions([NewPartitions(name, partitions)])[name].result(30)
    else:
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    return name
