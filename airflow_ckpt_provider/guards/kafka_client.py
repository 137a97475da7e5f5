"""The one place that talks to Kafka: batched calls with a time limit, through ``confluent-kafka``.

It reads logs by ``assign`` under a group name of its own, so it never joins a consumer group, and it never commits.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.errors import (
    CkptError,
    MissingExtraError,
    RefusedError,
    SourceError,
    SourceForbiddenError,
    SourceProtocolError,
    SourceUnreachableError,
    package_with,
)
from airflow_ckpt_provider.guards.kafka_answers import record_of, topic_config, topic_id
from airflow_ckpt_provider.guards.kafka_log import LogEnds, Partition, Record, Topic, TopicConfig

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

#: Seconds that all calls of one poll may take together.
TIMEOUT = 10.0
_GROUP = "airflow-ckpt-guard"
#: Of the settings of a connection, those that would make a reader do more than read, or that only a producer has.
_NOT_OURS = frozenset({"group.id", "group.instance.id", "enable.auto.commit", "auto.offset.reset", "on_commit"})
#: What a broker says while the leader of a partition changes, and how often and after how many seconds it is asked again.
_MOVING = frozenset(
    {
        "NOT_LEADER_FOR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
        "OFFSET_NOT_AVAILABLE",
    }
)
_TRIES, _PAUSE = 4, 0.25
#: How often, and after how many seconds, a setting is looked for that was made.
_LOOKS, _LOOK_EVERY = 50, 0.1
#: What it says of a partition that does not exist.
_GONE = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC"})
#: librdkafka's words for an answer in another protocol.
_OTHER_PROTOCOL = ("ssl handshake failed", "security.protocol", "wrong version number", "mechanism handshake failed")
#: A listener that wants a login hangs up, several times and silently, on whoever begins with anything else.
_SEVERAL = 3
_HUNG_UP = re.compile(r"connection closed by peer.*\(after \d{1,3}ms in state (?:up|apiversion_query)\)")


class KafkaClient:
    """A Kafka cluster, asked by ``confluent-kafka``. Nothing is connected to before the first question.

    :param config: settings of librdkafka, ``bootstrap.servers`` among them.
    :param timeout: seconds for all questions together, from the first one on; :meth:`again` gives new time.
    """

    def __init__(self, config: Mapping[str, Any], *, timeout: float = TIMEOUT) -> None:
        self._config = dict(config)
        self._timeout = timeout
        self._deadline: float | None = None
        self._client: AdminClient | None = None
        self._said: list[str] = []

    @property
    def servers(self) -> str:
        """``bootstrap.servers``, to name the cluster in messages."""
        return str(self._config.get("bootstrap.servers", "?"))

    def again(self) -> KafkaClient:
        """Give the next questions their own time."""
        self._deadline = None
        return self

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        """Describe topics; those that do not exist are left out."""
        from confluent_kafka import TopicCollection

        if not names:
            return {}
        with self._asking("describe topics"):
            futures = self._admin.describe_topics(TopicCollection(sorted(names)), request_timeout=self._left())
            found = self._results(futures, missing=("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID"))
        return {
            name: Topic(name, topic_id(described), tuple(sorted(p.id for p in described.partitions)))
            for name, described in found.items()
        }

    def ends(self, partitions: Collection[Partition], *, committed: bool = False) -> dict[Partition, LogEnds]:
        """Both ends of logs; partitions that cannot be asked (no leader) are left out."""
        from confluent_kafka import IsolationLevel
        from confluent_kafka.admin import OffsetSpec

        if not partitions:
            return {}
        with self._asking("list offsets"):
            earliest = self._offsets(partitions, OffsetSpec.earliest())
            latest = self._offsets(partitions, OffsetSpec.latest())
            level = IsolationLevel.READ_COMMITTED
            stable = self._offsets(partitions, OffsetSpec.latest(), isolation_level=level) if committed else latest
        return {
            p: LogEnds(earliest[p].offset, latest[p].offset, min(stable[p].offset, latest[p].offset))
            for p in partitions
            if p in earliest and p in latest and p in stable
        }

    def offsets_at(self, partitions: Collection[Partition], milliseconds: int) -> dict[Partition, int]:
        """The first offset in each partition whose timestamp is at or after a time, or the end of its log.

        :param milliseconds: since the epoch.
        """
        from confluent_kafka.admin import OffsetSpec

        if not partitions:
            return {}
        with self._asking("list offsets"):
            found = self._offsets(partitions, OffsetSpec.for_timestamp(milliseconds))
            later = {p for p, info in found.items() if info.offset < 0}
            ends = self._offsets(later, OffsetSpec.latest()) if later else {}
        return {p: ends[p].offset if p in ends else info.offset for p, info in found.items()}

    def newest_timestamps(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The newest timestamp in each partition, milliseconds since the epoch; empty partitions are left out."""
        from confluent_kafka.admin import OffsetSpec

        if not partitions:
            return {}
        with self._asking("list offsets"):
            found = self._offsets(partitions, OffsetSpec.max_timestamp())
        return {p: info.timestamp for p, info in found.items() if info.timestamp >= 0}

    def configs(self, topics: Collection[str]) -> dict[str, TopicConfig]:
        """Settings of topics."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        if not topics:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(topics)]
        with self._asking("describe the configuration of topics (ACL: DescribeConfigs on the topic)"):
            futures = self._admin.describe_configs(resources, request_timeout=self._left())
            found = self._results(futures, missing=("UNKNOWN_TOPIC_OR_PART",))
        interval = self._check_interval() if found else None
        return {resource.name: topic_config(entries, interval) for resource, entries in found.items()}

    def read(self, ranges: Mapping[Partition, tuple[int, int]]) -> dict[Partition, tuple[Record, ...] | None]:
        """Read from an offset on, until a record at or after a second offset or the end of the log.

        :return: the records of each partition. ``None``: the log does not have the first offset, or the partition does not
            exist. A partition that could not be read in time is left out.
        """
        if not ranges:
            return {}
        with self._asking("read records (ACL: Read on the topic)"):
            return self._read(ranges)

    def topic_names(self) -> frozenset[str]:
        """Names of all topics that the user may describe."""
        with self._asking("list topics"):
            return frozenset(self._admin.list_topics(timeout=self._left()).topics)

    def first_at(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """The first offset of each partition whose timestamp is at or after one; ``None`` if there is no such record.

        :param times: milliseconds since the epoch.
        """
        from confluent_kafka.admin import OffsetSpec

        if not times:
            return {}
        with self._asking("list offsets by timestamp"):
            found = self._offsets(times, {p: OffsetSpec.for_timestamp(ms) for p, ms in times.items()})
        return {p: info.offset if info.offset >= 0 else None for p, info in found.items()}

    def contents(self, partition: Partition) -> tuple[tuple[bytes, bytes], ...]:
        """Key and value of every record of a partition, in order, those without either left out.

        :raises SourceError: not all of it could be read.
        """
        name = f"{partition[0]}-{partition[1]}"
        ends = self.ends([partition]).get(partition)
        if ends is None:
            raise SourceUnreachableError(
                f"Kafka at {self.servers}: {name} did not answer", hint="see that the partition exists and has a leader"
            )
        if ends.latest == ends.earliest:
            return ()
        found: list[tuple[bytes, bytes]] = []

        def keep(message: Any) -> None:
            if message.key() is not None and message.value() is not None:
                found.append((message.key(), message.value()))

        with self._asking("read records (ACL: Read on the topic)"):
            done = self._read({partition: (ends.earliest, ends.latest - 1)}, keep)
            if partition not in done:
                raise self._explained(None, f"read all of {name}")
            if done[partition] is None:
                raise SourceUnreachableError(
                    f"Kafka at {self.servers}: cannot read all of {name}: its first records were deleted while they were read",
                    hint="run it again",
                )
        return tuple(found)

    def set_retention(self, topic: str, retention_ms: int | None, *, inherit: bool = False) -> None:
        """Set ``retention.ms`` of a topic (``None``: -1, for ever); with ``inherit``, remove the topic's own setting.

        Returns when the cluster shows it, for a broker learns of it a moment later. Who asks before would take what was there
        before for what is there. Where somebody else sets it at the same moment, that takes a few seconds.
        """
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

        operation = AlterConfigOpType.DELETE if inherit else AlterConfigOpType.SET
        value = None if inherit else str(-1 if retention_ms is None else retention_ms)
        entry = ConfigEntry("retention.ms", value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        with self._asking(f"set retention.ms of topic {topic} (ACL: AlterConfigs on the topic)"):
            self._results(self._admin.incremental_alter_configs([resource], request_timeout=self._left()))
        for _ in range(_LOOKS):
            now = self.configs([topic]).get(topic)
            if now is None or (now.retention_is_inherited is inherit and (inherit or now.retention_ms == retention_ms)):
                return
            time.sleep(_LOOK_EVERY)
        log.warning("%s does not show the retention.ms that was set", topic)

    # --- how ---

    @property
    def _admin(self) -> AdminClient:
        if self._client is None:
            from confluent_kafka import KafkaException
            from confluent_kafka.admin import AdminClient

            try:
                self._client = AdminClient(self._settings())
            except KafkaException as e:  # nobody was asked yet
                raise RefusedError(
                    f"the settings of Kafka are refused: {str(e.args[0].str()).strip()}",
                    hint="correct this setting; its names are those of librdkafka, not of Java's client",
                ) from e
        return self._client

    def _settings(self, **more: Any) -> dict[str, Any]:
        """Settings of a client that reports its errors and has our timeouts."""
        ms = max(1000, int(self._timeout * 1000))
        given = {key: value for key, value in self._config.items() if key not in _NOT_OURS}
        return {
            "client.id": _GROUP,
            "socket.timeout.ms": ms,
            "socket.connection.setup.timeout.ms": ms,
            "reconnect.backoff.max.ms": 1000,
            **given,
            # Neither holds this object: a client that waited for the collector of cycles could be destroyed in a thread of
            # librdkafka, which ends the process.
            "error_cb": _on_error(self._said),
            "logger": _logger(self._said),
            **more,
        }

    def _left(self) -> float:
        """Seconds that are left for this look."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._timeout
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._explained(None, "get an answer")
        return left

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Turn what librdkafka raises into an error that says which of the three it is."""
        try:
            from confluent_kafka import KafkaException
        except ImportError as e:
            raise MissingExtraError(
                "Kafka is asked through confluent-kafka, which is not installed",
                hint=f"pip install '{package_with('kafka')}'",
            ) from e
        try:
            yield
        except CkptError:
            raise
        except KafkaException as e:
            raise self._explained(e.args[0], what) from e
        except TimeoutError as e:  # of a future, after the limit
            raise self._explained(None, what) from e

    def _explained(self, error: Any, what: str) -> SourceError:
        if self._client is not None:
            self._client.poll(0)  # have what was said delivered
        said = " | ".join(list(dict.fromkeys(self._said))[-3:])
        name = error.name() if error is not None else "_TIMED_OUT"
        text = error.str() if error is not None else f"no answer within {self._timeout:g} s"
        whole = f"Kafka at {self.servers}: cannot {what}: {text}" + (f" ({said})" if said else "")
        everything = " ".join([name, text, *self._said]).lower()
        hung_up = sum(bool(_HUNG_UP.search(words.lower())) for words in self._said)
        if any(words in everything for words in _OTHER_PROTOCOL) or hung_up >= _SEVERAL:
            return SourceProtocolError(whole, hint="check security.protocol and the listener's port")
        if "AUTHORIZATION" in name or "_authentication" in everything:
            return SourceForbiddenError(whole, hint="check user and password, and the ACL that is named")
        return SourceUnreachableError(whole, hint="check bootstrap.servers, the network, and that the broker is up")

    def _answer(self, future: Future[Any]) -> Any:
        """Wait for an answer. Its error is raised as another one: the future would hold the frames that hold the future."""
        error = future.exception(self._left())
        if error is not None:
            raise type(error)(*error.args)
        return future.result()

    def _results(self, futures: Mapping[Any, Future[Any]], *, missing: tuple[str, ...] = ()) -> dict[Any, Any]:
        """Wait for the answers; those that say one of ``missing`` are left out."""
        from confluent_kafka import KafkaException

        found = {}
        for key, future in futures.items():
            try:
                found[key] = self._answer(future)
            except KafkaException as e:
                if e.args[0].name() not in missing:
                    raise
        return found

    def _offsets(self, partitions: Collection[Partition], spec: Any, **more: Any) -> dict[Partition, Any]:
        """Ask for one offset of each partition; those whose leader moves just now are asked again, a few times.

        :param spec: which offset, one for all or a mapping.
        """
        from confluent_kafka import KafkaException, TopicPartition

        found: dict[Partition, Any] = {}
        waiting = set(partitions)
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(min(_PAUSE, self._left()))
            each = spec if isinstance(spec, Mapping) else dict.fromkeys(waiting, spec)
            wanted = {TopicPartition(*partition): each[partition] for partition in waiting}
            futures = self._admin.list_offsets(wanted, request_timeout=self._left(), **more)
            for tp, future in futures.items():
                partition = (tp.topic, tp.partition)
                try:
                    found[partition] = self._answer(future)
                    waiting.discard(partition)
                except KafkaException as e:
                    name = e.args[0].name()
                    if name not in _MOVING:
                        if name not in _GONE:
                            raise
                        waiting.discard(partition)
            if not waiting:
                break
        return found

    def _check_interval(self) -> int | None:
        """``log.retention.check.interval.ms`` of a broker; ``None`` where we may not ask."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource, ResourceType

        with self._asking("describe the configuration of a broker"):
            try:
                broker = next(iter(self._admin.list_topics(topic="__consumer_offsets", timeout=self._left()).brokers))
                resource = ConfigResource(ResourceType.BROKER, str(broker))
                futures = self._admin.describe_configs([resource], request_timeout=self._left())
                entries = next(iter(self._results(futures).values()))
                return int(entries["log.retention.check.interval.ms"].value)
            except (KafkaException, KeyError, StopIteration, ValueError) as e:
                log.debug("the interval of the broker's retention timer is not known: %s", e)
                return None

    def _read(
        self, ranges: Mapping[Partition, tuple[int, int]], keep: Callable[[Any], None] = lambda message: None
    ) -> dict[Partition, tuple[Record, ...] | None]:
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        self._left()
        settings = self._settings(
            **{
                "group.id": _GROUP,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": "read_uncommitted",
                "allow.auto.create.topics": False,
                # Of each partition a record or two: little is to be fetched, and nothing ahead.
                "fetch.message.max.bytes": 65536,
                "fetch.wait.max.ms": 50,
                "queued.min.messages": 1,
                "fetch.queue.backoff.ms": 10,
            }
        )
        consumer = Consumer(settings)
        waiting = dict(ranges)
        seen: dict[Partition, list[Record]] = {partition: [] for partition in ranges}
        done: dict[Partition, tuple[Record, ...] | None] = {}

        def finish(partition: Partition, *, is_gone: bool = False) -> TopicPartition:
            del waiting[partition]
            done[partition] = None if is_gone else tuple(seen[partition])
            return TopicPartition(*partition)

        try:
            consumer.assign([TopicPartition(topic, n, start) for (topic, n), (start, _) in ranges.items()])
            while waiting:
                finished = []
                # `consume` would wait until it has as many as it may return: wait for one, and take what came with it.
                first = consumer.poll(min(0.5, self._left()))
                for message in [first, *consumer.consume(num_messages=2000, timeout=0)] if first else []:
                    partition = (message.topic(), message.partition())
                    error = message.error()
                    if partition not in waiting:
                        if error is not None and message.topic() is None and "AUTHORIZATION" in error.name():
                            raise KafkaException(error)
                        continue
                    if error is not None:
                        if error.name() == "_PARTITION_EOF":
                            finished.append(finish(partition))
                        elif error.name() in ("_AUTO_OFFSET_RESET", "UNKNOWN_TOPIC_OR_PART"):
                            finished.append(finish(partition, is_gone=True))
                        elif not error.retriable():
                            raise KafkaException(error)
                        continue
                    keep(message)
                    seen[partition].append(record_of(message))
                    if seen[partition][-1].offset >= ranges[partition][1]:
                        finished.append(finish(partition))
                if finished and waiting:
                    consumer.incremental_unassign(finished)
        except SourceUnreachableError:
            if not done:
                raise
            log.warning("%d of %d partitions could not be read in %g s", len(waiting), len(ranges), self._timeout)
        finally:
            consumer.close()
        return done


class _Listening(logging.Handler):
    """Keeps what librdkafka says by itself; what matters of it becomes part of our errors, and nothing to anybody's log."""

    def __init__(self, said: list[str]) -> None:
        super().__init__(logging.INFO)
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append(record.getMessage())


def _on_error(said: list[str]) -> Callable[[Any], None]:
    return lambda error: said.append(f"{error.name()}: {error.str()}")


def _logger(said: list[str]) -> logging.Logger:
    logger = logging.Logger(f"{__name__}.librdkafka")
    logger.addHandler(_Listening(said))
    return logger
