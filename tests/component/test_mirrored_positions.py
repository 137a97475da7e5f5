"""``airflow-ckpt positions --mirrored-from``: real brokers, and in the slow tests a real MirrorMaker 2 between two."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.storage.opening import open_location
from tests.support.checkpoints import batch_metadata, commit_log, compact, metadata, offsets_log, plant
from tests.support.command_line import run
from tests.support.kafka_broker import KafkaBroker, running_kafka_broker
from tests.support.mirror_maker import running_mirror_maker
from tests.support.recorded_syncs import RECORDED

Offsets = Mapping[int, int]
#: On the old cluster, named after the new one.
SYNCS = "mm2-offset-syncs.new.internal"


def checkpoint_at(place: Path, topic: str, offsets: Offsets) -> Path:
    """A checkpoint whose newest batch ended there."""
    ends = compact({topic: {str(p): n for p, n in offsets.items()}})
    files = {
        "metadata": metadata(),
        "offsets/0": offsets_log(ends, metadata=batch_metadata(0)),
        "commits/0": commit_log(),
    }
    place.mkdir(parents=True)
    plant(open_location(str(place)), files)
    return place


class Asking:
    """Positions of a checkpoint of the topic ``orders``, by the command line; of a backup of it where the old cluster answers."""

    def __init__(self, place: Path, old: KafkaBroker, new: KafkaBroker) -> None:
        self.place, self._count = place, 0
        self.old_config, self.new_config = place / "old.json", place / "new.json"
        self.old_config.write_text(json.dumps(old.config))
        self.new_config.write_text(json.dumps(new.config))

    def __call__(
        self, offsets: Offsets, *options: object, old: bool = True, backup: bool = True, alias: bool = True
    ) -> dict[str, Any]:
        self._count += 1
        checkpoint = checkpoint_at(self.place / f"c{self._count}", "orders", offsets)
        argv: list[object] = ["positions", "--mirrored-from", "old", "--kafka-config", self.new_config, "--json"]
        argv += ["--mirrored-to", "new"] if alias else []
        argv += ["--old-kafka-config", self.old_config] if old else []
        if old and backup:
            repository = self.place / f"r{self._count}"
            assert run("init", repository).code == 0
            saved = run("backup", checkpoint, repository, "--kafka-config", self.old_config)
            assert saved.code == 0, saved.err
            argv += ["--repository", repository]
        else:
            argv.append(checkpoint)
        finished = run(*argv, *options)
        assert finished.code == (0 if finished.document["verdict"] == "SAFE" else 1), finished.err
        return dict(finished.document["sources"][0])


def starts(source: Mapping[str, Any], topic: str = "old.orders") -> dict[int, int]:
    return {int(p): n for p, n in json.loads(source["options"]["startingOffsets"])[topic].items()}


@pytest.fixture
def recorded(kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[Asking]:
    """What a real mirror left before it was killed, both ends on one broker."""
    from confluent_kafka import Producer

    # Partition -> how many records, from how many seconds on. Copies have the time of their records: 50 → 0, and 46 → 45.
    runs = {
        "orders": {0: [(325, 0)], 1: [(52, 0)]},
        "old.orders": {0: [(275, 50)], 1: [(45, 0), (5, 46)]},
    }
    for topic, partitions in runs.items():
        kafka_broker.create(topic, partitions=2, retention_ms=-1)
        for partition, written in partitions.items():
            for count, late in written:
                start = 1_700_000_000_000 + 1000 * late
                kafka_broker.put(topic, {partition: count}, start_ms=start, step_ms=1000)
    kafka_broker.delete_before("orders", {0: 50})
    kafka_broker.create(SYNCS, cleanup_policy="compact")
    producer = Producer(kafka_broker.config)
    for key, value in RECORDED[:5]:
        producer.produce(SYNCS, bytes.fromhex(value), bytes.fromhex(key), partition=0)
    assert producer.flush(30) == 0
    yield Asking(tmp_path, kafka_broker, kafka_broker)
    for topic in ("orders", "old.orders", SYNCS):
        kafka_broker.delete(topic)


def test_positions_by_the_syncs_of_a_real_mirror(recorded: Asking) -> None:
    source = recorded({0: 160, 1: 52})
    assert starts(source) == {0: 102, 1: 46}
    # Of partition 1 the offset 47 to 51 are read: at most 5; the old log has two markers more than the new one has records.
    assert (source["verdict"], source["repeats"]) == ("WILL_DUPLICATE", {"records": 8 + 5})
    assert source["reasons"][0] == "the query has to subscribe to the topics of the new cluster: old.orders"
    assert source["reasons"][1] == (
        "old.orders-0: from offset 102, WILL_DUPLICATE: by the sync 151 → 101: at most 8 records are read again"
    )
    exact = recorded({0: 252, 1: 0})
    assert starts(exact) == {0: 202, 1: -2}
    # Partition 1 has holes on the old cluster: whether something was written twice cannot be seen there.
    assert exact["verdict"] == "UNKNOWN"
    assert "old.orders-0: from offset 202, SAFE: by the sync 252 → 202, which is exact" in exact["reasons"][1]
    assert exact["reasons"][-1] == f"the syncs are of topic {SYNCS} of the old cluster"


def test_what_is_not_known_of_the_old_topic_or_of_the_syncs_is_said(recorded: Asking) -> None:
    for given, words in (
        ({"backup": False}, "no backup shows that the old topic is the one that was read"),
        ({"alias": False}, "the syncs may be those of another mirror out of the old cluster"),
    ):
        source = recorded({0: 160, 1: 52}, **given)
        assert (starts(source), source["verdict"]) == ({0: 102, 1: 46}, "UNKNOWN")
        assert "old.orders-0: from offset 102, UNKNOWN: by the sync 151 → 101" in source["reasons"][1]
        assert words in source["reasons"][1]


def test_below_all_syncs_the_time_tells_with_its_margin(recorded: Asking) -> None:
    source = recorded({0: 40, 1: 52}, "--timestamp-margin", "20s")
    # The old log begins at 50, which is the first record that can be read: its copy is the first of the new log.
    assert starts(source)[0] == 0
    assert source["verdict"] == "WILL_LOSE"
    assert "no sync is at or below offset 40: by time, 20 s before" in source["reasons"][1]
    assert "offsets 40 to 49 are deleted on the old cluster, and 10 of them were not copied" in source["reasons"][1]


def test_refused(recorded: Asking) -> None:
    place = checkpoint_at(recorded.place / "c", "orders", {0: 60, 1: 2})
    given = ["--mirrored-from", "old", "--kafka-config", recorded.new_config, "--old-kafka-config", recorded.old_config]
    for argv, words in (
        (["--mirrored-to", "nowhere"], "the old cluster has no topic mm2-offset-syncs.nowhere.internal"),
        (["--replication-separator", "-"], "the new cluster has no topic old-orders"),
        (["--offset-syncs-location", "target"], "the new cluster has no topic mm2-offset-syncs.old.internal"),
        (["--partitions", "orders=2"], "is asked of the new cluster"),
    ):
        finished = run("positions", place, *given, *argv)
        assert (finished.code, words in finished.err) == (1, True), finished.err


# A real MirrorMaker


def read_from(broker: KafkaBroker, topic: str, offsets: Offsets) -> Counter[bytes]:
    """What a reader that starts there gets."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {**broker.config, "group.id": "rows", "enable.partition.eof": True, "auto.offset.reset": "error"}
    )
    earliest = broker.ends(topic)
    where = {p: earliest[p][0] if n == -2 else n for p, n in offsets.items()}
    consumer.assign([TopicPartition(topic, p, n) for p, n in where.items()])
    found: Counter[bytes] = Counter()
    open_ends = set(offsets)
    while open_ends:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            assert message.error().name() == "_PARTITION_EOF"
            open_ends.discard(message.partition())
        else:
            found[message.value()] += 1
    consumer.close()
    return found


def end_of(broker: KafkaBroker, topic: str) -> dict[int, int]:
    return {p: latest for p, (_, latest) in broker.ends(topic).items()} if topic in _topics(broker) else {}


def _topics(broker: KafkaBroker) -> Any:
    return broker.admin.list_topics(timeout=10).topics


@pytest.mark.slow
@pytest.mark.parametrize(
    ("location", "policy"), [("source", "default"), ("target", "identity")], ids=["by default", "target and identity"]
)
def test_a_real_mirror_row_by_row(tmp_path: Path, location: str, policy: str) -> None:
    """Every offset: nothing unread is missing, no more comes twice than was said. The old numbers lose or repeat."""
    with running_kafka_broker(_made(tmp_path / "a")) as old, running_kafka_broker(_made(tmp_path / "b")) as new:
        old.create("orders", partitions=2, segment_bytes=1 << 20)
        old.put("orders", {0: 90, 1: 40}, value=numbered())
        old.delete_before("orders", {0: 25})
        topic = "orders" if policy == "identity" else "old.orders"
        more = ["offset.lag.max=10"]
        if policy == "identity":
            more.append("replication.policy.class=org.apache.kafka.connect.mirror.IdentityReplicationPolicy")
        options = ["--offset-syncs-location", location, "--replication-policy", policy]
        ask = Asking(tmp_path, old, new)
        settings: dict[str, Any] = {"topics": "orders", "location": location, "more": tuple(more)}
        with running_mirror_maker(tmp_path / "mm", old, new, **settings) as mirror:
            new.await_that(lambda: end_of(new, topic) == {0: 65, 1: 40}, "the copy", within=120)
            old.put("orders", {0: 30, 1: 13}, value=numbered(first=1000))
            new.await_that(lambda: end_of(new, topic) == {0: 95, 1: 53}, "the copy")
            everything = {0: 120, 1: 53}
            # The sync of the newest record comes with MirrorMaker's next commit.
            new.await_that(lambda: ask(everything, *options)["verdict"] == "SAFE", "the last sync")
            assert starts(ask(everything, *options), topic) == {0: 95, 1: 53}
            exact = 0
            for offset in [*range(25, 120, 7), 120]:
                at = {0: offset, 1: min(offset, 53)}
                source = ask(at, *options)
                unread = read_from(old, "orders", at)
                got = read_from(new, topic, starts(source, topic))
                again = got - unread
                assert not unread - got, source
                assert source["verdict"] in ("SAFE", "WILL_DUPLICATE"), source
                assert again.total() <= source["repeats"].get("records", 0) <= 2 * 11
                exact += source["verdict"] == "SAFE"
                naive = read_from(new, topic, {p: min(n, end_of(new, topic)[p]) for p, n in at.items()})
                assert naive != unread or offset == 120, "the old numbers are right by chance"
            assert exact >= 1
            mirror.kill()
        without = ask({0: 60, 1: 53}, *options, old=False) if location == "target" else None
        assert without is None or without["verdict"] == "UNKNOWN"


@pytest.mark.slow
def test_a_mirror_that_copied_twice_and_one_whose_syncs_are_gone(tmp_path: Path) -> None:
    with running_kafka_broker(_made(tmp_path / "a")) as old, running_kafka_broker(_made(tmp_path / "b")) as new:
        old.create("orders", partitions=1, message_timestamp_type="LogAppendTime")
        old.put("orders", {0: 50}, value=numbered())
        ask = Asking(tmp_path, old, new)
        settings: dict[str, Any] = {"topics": "orders", "more": ("new.offset.flush.interval.ms=600000",)}
        with running_mirror_maker(tmp_path / "mm", old, new, **settings):
            new.await_that(lambda: end_of(new, "old.orders") == {0: 50}, "the copy", within=120)
        # Killed before it has committed: the next one copies all again.
        with running_mirror_maker(tmp_path / "again", old, new, **settings):
            new.await_that(lambda: end_of(new, "old.orders") == {0: 100}, "the second copy", within=120)
            # Of the first life there may be none: it was killed.
            new.await_that(lambda: end_of(old, SYNCS).get(0, 0) > 0, "a sync")
        source = ask({0: 30})
        unread = read_from(old, "orders", {0: 30})
        got = read_from(new, "old.orders", starts(source))
        assert not unread - got
        # Records that came twice look like a topic that was recreated, as soon as a sync of the second life is there.
        assert source["verdict"] in ("UNKNOWN", "WILL_DUPLICATE")
        assert (got - unread).total() <= source["repeats"]["records"]
        # Where the syncs are gone, time shows: the old broker's timestamps rise, and are copied.
        old.configure(SYNCS, cleanup_policy="delete")
        old.delete_before(SYNCS, end_of(old, SYNCS))
        by_time = ask({0: 30}, "--timestamp-margin", "3s")
        assert "by time, 3 s before the last record" in by_time["reasons"][1]
        assert by_time["verdict"] == "WILL_DUPLICATE"
        got = read_from(new, "old.orders", starts(by_time))
        assert not unread - got
        assert (got - unread).total() <= by_time["repeats"]["records"]


def _made(place: Path) -> Path:
    place.mkdir()
    return place


def numbered(first: int = 0) -> Callable[[int, int], bytes]:
    return lambda partition, number: f"{partition}-{first + number}".encode()
