"""Orders for the example stream, into a topic of Kafka: `python -m demo.kafka_orders --brokers kafka:9092 --topic orders`.

As from a producer in the field some orders come twice, here every tenth; the stream drops the second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from demo.orders import orders_of

_PARTITIONS = 2
_SENT_TWICE = 10
_WITHIN = 30.0


def orders_from_now() -> Iterator[dict[str, object]]:
    """Make orders without end, with ids that no other run of this program gives."""
    run = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
    for order in itertools.chain.from_iterable(map(orders_of, itertools.count())):
        yield {**order, "order_id": f"{run}-{order['order_id']}", "at": datetime.now(UTC).isoformat()}


def make_topic(brokers: str, topic: str) -> None:
    """Make the topic unless it is there."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": brokers})  # kept: with the client its answers go
    [made] = admin.create_topics([NewTopic(topic, _PARTITIONS, 1)]).values()
    try:
        made.result(_WITHIN)
    except KafkaException as e:
        if e.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def send(brokers: str, topic: str, *, rate: float, count: int | None, alive: Path | None) -> int:
    """Send orders until there are enough.

    :param rate: orders a second; 0: as fast as it goes.
    :param count: how many; ``None``: without end.
    :param alive: a file that is touched after every second in which all that was sent has arrived.
    :return: how many did not arrive.
    """
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 20})
    pause = threading.Event()
    for number, order in enumerate(itertools.islice(orders_from_now(), count)):
        for _ in range(2 if number % _SENT_TWICE == 0 else 1):
            producer.produce(topic, json.dumps(order).encode(), str(order["customer"]).encode())
        producer.poll(0)
        if rate and number % max(1, int(rate)) == 0:
            if alive and producer.flush(_WITHIN) == 0:
                alive.touch()
            pause.wait(max(1.0, 1 / rate))
    return int(producer.flush(_WITHIN))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m demo.kafka_orders", description=__doc__)
    made.add_argument("--brokers", required=True, metavar="HOST:PORT")
    made.add_argument("--topic", required=True)
    made.add_argument("--rate", type=float, default=20, help="orders a second (default: %(default)s; 0: no pause)")
    made.add_argument("--count", type=int, help="how many orders (default: without end)")
    made.add_argument("--alive", type=Path, metavar="FILE", help="is touched while orders arrive, for a health check")
    return made


def main(argv: Sequence[str]) -> int:
    """Make the topic and send, as the command line says; return the exit code."""
    chosen = parser().parse_args(argv)
    make_topic(chosen.brokers, chosen.topic)
    lost = send(chosen.brokers, chosen.topic, rate=chosen.rate, count=chosen.count, alive=chosen.alive)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
