"""A real Kafka broker for tests: Apache Kafka 4.1.1 (KRaft), one JVM, ports from the OS, its data gone when it stops.

In tests, take the session fixture :func:`kafka_broker` (a ``conftest.py`` exports it) and a topic with a fresh name each.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import functools
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

_LISTING = Path(".cache/ivy/kafka-jars.jars")
_START_WITHIN = 60.0
#: Users of the SASL listener. The reader has what ACLs give it, which at first is nothing.
ADMIN, READER = ("admin", "admin-secret"), ("reader", "reader-secret")
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
username="admin" password="admin-secret" user_admin="admin-secret" user_reader="reader-secret";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:admin
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.retention.check.interval.ms=1000
log.segment.delete.delay.ms=100
log.initial.task.delay.ms=500
log.cleaner.backoff.ms=200
# a broker that was killed may come back at once
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
"""


class KafkaBroker:
    """A running broker.

    :param directory: an empty directory for its data and its log.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self.sasl_port, controller = _free_ports(3)
        data = directory / "data"
        self._properties = directory / "server.properties"
        self._properties.write_text(
            _PROPERTIES.format(plain=self.port, sasl=self.sasl_port, controller=controller, data=data)
        )
        # An id that begins with a dash would be taken for an option.
        cluster = "a" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        self._java(
            "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties), "--standalone"
        ).wait(60)

    @property
    def address(self) -> str:
        """``bootstrap.servers`` of the listener that asks for no password."""
        return f"127.0.0.1:{self.port}"

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of a client."""
        return {"bootstrap.servers": self.address}

    def sasl_config(self, user: tuple[str, str]) -> dict[str, Any]:
        """Configuration of a client that says who it is."""
        return {
            "bootstrap.servers": f"127.0.0.1:{self.sasl_port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user[0],
            "sasl.password": user[1],
        }

    def start(self) -> None:
        """Start it, and wait until it answers."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        self._process = self._java("-Xmx512m", "kafka.Kafka", str(self._properties))
        deadline = time.monotonic() + _START_WITHIN
        while True:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the broker did not start:\n{(self._directory / 'kafka.log').read_text()[-4000:]}")
            with contextlib.suppress(OSError, KafkaException):
                # A bare connection first: a client would wait a second before it tries a closed port again.
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                AdminClient(self.config).list_topics(timeout=2)
                return
            time.sleep(0.1)

    def stop(self) -> None:
        """End it at once; its data stays until the directory goes."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Have it answer nobody for a while, with its connections open: a broker that hangs."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        if not _LISTING.exists():
            raise RuntimeError("the broker's jars are missing: make jars")
        java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}")
        with (self._directory / "kafka.log").open("ab") as log:
            return subprocess.Popen(
                [java or "java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *_classpath(), *arguments],
                cwd=self._directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    # --- what tests do with it ---

    @functools.cached_property
    def admin(self) -> Any:
        """An admin client; kept, because one that is thrown away takes its answers along."""
        from confluent_kafka.admin import AdminClient

        return AdminClient(self.config)

    def create(self, topic: str | None = None, partitions: int = 1, **config: str | int) -> str:
        """Make a topic, of a fresh name unless told otherwise; settings as ``retention_ms=…``."""
        from confluent_kafka.admin import NewTopic

        name = topic or f"orders-{uuid.uuid4().hex[:10]}"
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        _done(self.admin.create_topics([NewTopic(name, partitions, 1, config=settings)]))
        self.await_that(lambda: name in self.admin.list_topics(timeout=10).topics, f"topic {name}")
        return name

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        _done(self.admin.delete_topics([topic]))
        self.await_that(lambda: topic not in self.admin.list_topics(timeout=10).topics, f"the end of topic {topic}")

    def add_partitions(self, topic: str, total: int) -> None:
        """Give a topic more partitions."""
        from confluent_kafka.admin import NewPartitions

        _done(self.admin.create_partitions([NewPartitions(topic, total)]))
        self.await_that(
            lambda: len(self.admin.list_topics(topic, timeout=10).topics[topic].partitions) == total,
            f"{total} partitions",
        )

    def put(
        self,
        topic: str,
        counts: Mapping[int, int] | Sequence[int],
        *,
        start_ms: int | None = None,
        step_ms: int = 1,
        value: Callable[[int, int], bytes] = lambda partition, number: f"{partition}-{number}".encode(),
        key: Callable[[int, int], bytes] | None = None,
        batch: int = 16384,
    ) -> None:
        """Write records: of each partition that many, numbered from 0.

        :param start_ms: timestamp of the first; by default now.
        :param step_ms: milliseconds between two.
        :param batch: bytes of a batch at most; 1 has each record in a batch of its own.
        """
        from confluent_kafka import Producer

        producer = Producer({**self.config, "batch.size": batch, "linger.ms": 5, "enable.idempotence": True})
        begin = int(time.time() * 1000) if start_ms is None else start_ms
        for partition, count in dict(enumerate(counts) if not isinstance(counts, Mapping) else counts).items():
            for number in range(count):
                producer.produce(
                    topic,
                    value(partition, number),
                    key(partition, number) if key else None,
                    partition=partition,
                    timestamp=begin + number * step_ms,
                )
                producer.poll(0)
        assert producer.flush(60) == 0

    def transact(self, topic: str, counts: Mapping[int, int], *, commit: bool) -> None:
        """Write records in one transaction, and commit or abort it."""
        from confluent_kafka import Producer

        producer = Producer({**self.config, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)
        producer.begin_transaction()
        for partition, count in counts.items():
            for number in range(count):
                producer.produce(topic, f"t{partition}-{number}".encode(), partition=partition)
        producer.flush(30)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)

    def delete_before(self, topic: str, offsets: Mapping[int, int]) -> None:
        """``DeleteRecords``: drop what lies before the given offsets."""
        from confluent_kafka import TopicPartition

        _done(self.admin.delete_records([TopicPartition(topic, p, offset) for p, offset in offsets.items()]))

    def configure(self, topic: str, **config: str | int) -> None:
        """Change settings of a topic, as ``retention_ms=…``."""
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

        entries = [
            ConfigEntry(key.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        _done(
            self.admin.incremental_alter_configs(
                [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)]
            )
        )

    def ends(self, topic: str) -> dict[int, tuple[int, int]]:
        """Earliest and latest offset of each partition, by a client of its own."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**self.config, "group.id": "tests"})
        try:
            partitions = self.admin.list_topics(topic, timeout=10).topics[topic].partitions
            return {
                p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10, cached=False)
                for p in partitions
            }
        finally:
            consumer.close()

    @staticmethod
    def await_that(condition: Callable[[], bool], what: str, *, within: float = 60.0) -> None:
        """Wait until something is the case."""
        deadline = time.monotonic() + within
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {within:g} s")
            time.sleep(0.05)


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Leave no broker behind when the tests are killed."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _classpath() -> tuple[str, str]:
    # Spark resolves all of it but Scala's own library, which it brings itself.
    [package] = importlib.util.find_spec("pyspark").submodule_search_locations  # type: ignore[union-attr, misc]
    scala = Path(package, "jars").glob("scala-library-2.13*.jar")
    return "-cp", ":".join([*_LISTING.read_text().split(), *map(str, scala)])


def _done(futures: Mapping[Any, Any]) -> None:
    for future in futures.values():
        future.result(30)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def running_kafka_broker(directory: Path) -> Iterator[KafkaBroker]:
    """Run a broker until the block ends.

    :param directory: an empty directory.
    """
    broker = KafkaBroker(directory)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One broker for the session."""
    with running_kafka_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker
