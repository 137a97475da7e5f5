"""Time to loss, foretold and then measured: the broker really deletes, and somebody reads the clock."""

from __future__ import annotations

import statistics
import threading
import time

import pytest

from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_guards import Ask, part

_RETENTION = 20.0
#: 20 records of 50 kB fill a segment of 1 MiB: two seconds at this pace.
_PER_SECOND = 10
_SPAN = 2.1


@pytest.mark.slow
@pytest.mark.parametrize("stops", [False, True], ids=["goes-on", "producer-stops"])
def test_forecasts_against_deletions(kafka_broker: KafkaBroker, ask: Ask, stops: bool) -> None:
    topic = kafka_broker.create(segment_bytes=1 << 20, retention_ms=int(_RETENTION * 1000))
    done = threading.Event()
    producer = threading.Thread(target=_produce, args=(kafka_broker, topic, done))
    producer.start()
    forecasts: list[tuple[int, float, float, float]] = []
    begin = time.monotonic()
    try:
        while time.monotonic() - begin < 18:
            time.sleep(1.5)
            latest = kafka_broker.ends(topic)[0][1]
            for offset in {latest // 3, latest // 2, latest - 1}:
                report = ask(topic, {0: offset})
                seen, at = part(report, 0), time.monotonic()
                forecasts.append((offset, at, seen["seconds_left"], seen["seconds_left_estimate"]))
            if stops and time.monotonic() - begin > 10:
                done.set()
                producer.join()
        gone = _deletions(kafka_broker, topic, {offset for offset, *_ in forecasts})
    finally:
        done.set()
        producer.join()
    errors = []
    for offset, at, at_least, estimate in forecasts:
        really = gone[offset] - at
        assert really > at_least - 0.5, f"offset {offset} was to be there for {at_least} s and was for {really:.1f}"
        errors.append(really - estimate)
        if abs(errors[-1]) > _SPAN + 2:
            print(f"offset {offset}, really {really:.1f} s, at least {at_least} s, estimate {estimate} s")
    late = [gone[offset] - at - at_least for offset, at, at_least, _ in forecasts]
    print(
        f"\n{len(forecasts)} forecasts, retention.ms {_RETENTION:g} s, segments of 2 s, timer 1 s: "
        f"deleted {min(late):.1f} to {max(late):.1f} s after the lower bound; "
        f"error of the estimate {min(errors):+.1f} to {max(errors):+.1f} s, median {statistics.median(errors):+.1f} s"
    )
    assert max(map(abs, errors)) < _SPAN + 1 + 1


def _produce(broker: KafkaBroker, topic: str, done: threading.Event) -> None:
    from confluent_kafka import Producer

    producer = Producer({**broker.config, "linger.ms": 0})
    begin = time.monotonic()
    for number in range(10_000):
        if done.wait(max(0.0, begin + number / _PER_SECOND - time.monotonic())):
            break
        producer.produce(topic, b"x" * 50_000, partition=0)
        producer.poll(0)
    producer.flush(30)


def _deletions(broker: KafkaBroker, topic: str, offsets: set[int]) -> dict[int, float]:
    """When each offset was gone."""
    gone: dict[int, float] = {}
    deadline = time.monotonic() + 90
    while offsets - gone.keys():
        assert time.monotonic() < deadline, "the broker does not delete"
        earliest = broker.ends(topic)[0][0]
        now = time.monotonic()
        gone |= {offset: now for offset in offsets - gone.keys() if offset < earliest}
        time.sleep(0.1)
    return gone
