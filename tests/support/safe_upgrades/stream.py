"""A stream that is upgraded: Kafka to Delta in the tests' one Spark, events that keep arriving, and its operator's commands."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.spark.stopping import clear_stop, request_stop
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.kafka_broker import KafkaBroker
from tests.support.rewinding import difference, rows_of
from tests.support.safe_upgrades.versions import BROKERS, FAULT_FROM, PER_BATCH, STARTING, TOPIC
from tests.support.streams.spark_host import Run, SparkHost

VERSIONS = "tests.support.safe_upgrades.versions:"
_OPENING = datetime(2026, 11, 21, tzinfo=UTC)
#: Events that a version with a fault can take before the fault shows.
_UNTIL_FAULT = 60
_PARTITIONS = 2


class Events(threading.Thread):
    """Events arriving in a topic, every fifth of them twice.

    :param broker: the broker.
    :param topic: the topic.
    """

    def __init__(self, broker: KafkaBroker, topic: str) -> None:
        super().__init__(name=f"events of {topic}", daemon=True)
        self._broker, self._topic = broker, topic
        self._over = threading.Event()
        self.made = 0

    def run(self) -> None:
        """Write 5 events every 0.1 s."""
        from confluent_kafka import Producer

        producer = Producer({**self._broker.config, "linger.ms": 5, "enable.idempotence": True})
        while not self._over.wait(0.1):
            for number in range(self.made, self.made + 5):
                at = (_OPENING + timedelta(milliseconds=number)).isoformat()
                event = json.dumps({"id": f"e{number}", "k": f"K{number % 12}", "v": number, "ts": at}).encode()
                for _ in range(2 if number % 5 == 0 else 1):
                    producer.produce(self._topic, event, partition=number % _PARTITIONS)
            producer.flush(30)
            self.made += 5

    def end(self) -> None:
        """Write no more; all that was written has arrived."""
        self._over.set()
        self.join(60)


@dataclass
class Stream:
    """The stream.

    :param host: runs it.
    :param broker: the broker.
    :param root: an empty directory for all of it.
    :param topic: its topic.
    :param conf: settings of all versions.
    :param every: from batch to batch.
    """

    host: SparkHost
    broker: KafkaBroker
    root: Path
    topic: str
    conf: dict[str, str] = field(default_factory=dict)
    every: str = "300 milliseconds"
    releases: list[str] = field(default_factory=lambda: ["old"])
    runs: list[tuple[str, Run]] = field(default_factory=list)
    #: Settings of one version.
    version_conf: dict[str, dict[str, str]] = field(default_factory=dict)
    #: Does not read the stop marker.
    deaf: bool = False

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        Repository.open_or_create(open_location(str(self.root / "backups")))
        self.events = Events(self.broker, self.topic)

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoints" / "orders"

    @property
    def table(self) -> Path:
        return self.root / "tables" / "orders"

    @property
    def stop_marker(self) -> str:
        return str(self.root / "orders.stop")

    @property
    def progress_log(self) -> str:
        return str(self.root / "orders.jsonl")

    @property
    def error_log(self) -> str:
        return str(self.root / "driver.log")

    @property
    def ckpt(self) -> Checkpoint:
        return Checkpoint.at(open_location(str(self.checkpoint)))

    @property
    def newest(self) -> int:
        """The newest committed batch; -1: none yet."""
        batches = (int(path.name) for path in (self.checkpoint / "commits").glob("*") if path.name.isdigit())
        return max(batches, default=-1)

    def committed_at(self, batch: int) -> float:
        return (self.checkpoint / "commits" / str(batch)).stat().st_mtime

    @property
    def version(self) -> str:
        """What is deployed."""
        return self.releases[-1]

    @property
    def running(self) -> list[str]:
        """Versions that run."""
        return [version for version, run in self.runs if not run.ended.is_set()]

    # ---- what its operator does -------------------------------------------------------------------

    def start(self) -> str:
        """Start what is deployed; returns as soon as the driver is told."""
        clear_stop(self.stop_marker)
        return self.launch(self.version)

    def launch(self, version: str, **settings: Any) -> str:
        """Start a version, whatever else runs."""
        arguments = {
            "conf": self._settings(version),
            "checkpoint": self.checkpoint,
            "out": self.table,
            "stop": "" if self.deaf else self.stop_marker,
            "progress": self.progress_log,
            "log": self.error_log,
            "every": self.every,
            **settings,
        }
        self.runs.append((version, self.host.application(VERSIONS + version, **arguments)))
        return version

    def stop(self, *, within: float = 8.0) -> str:
        """Ask it to end after its batch and wait until it has; kill what does not, as a cluster manager does."""
        request_stop(self.stop_marker, reason="upgrade")
        deadline = time.monotonic() + within
        for _, run in self.runs:
            while not run.ended.wait(0.1):
                if time.monotonic() > deadline:
                    run.stop()
                    run.wait(30)
                    return "killed"
        return "stopped"

    def deploy(self, version: str) -> str:
        if self.version != version:
            self.releases.append(version)
        return version

    def roll_back_code(self) -> str:
        if len(self.releases) > 1:
            self.releases.pop()
        return self.version

    # ---- what the tests do ------------------------------------------------------------------------

    def begin(self, batches: int = 4) -> None:
        """Let events arrive and the old version run for some batches."""
        self.events.start()
        self.wait_for(lambda: self.events.made, "the first events")
        self.start()
        self.wait_for(lambda: self.newest >= batches - 1, f"{batches} batches")

    def finish(self) -> tuple[int, int]:
        """Let it read the rest; return the rows that are lost, and those that are wrong or there too often."""
        if not self.running:
            self.start()
        [run] = [run for _, run in self.runs if not run.ended.is_set()]
        before = self.newest
        self.wait_for(lambda: self.newest > before or run.ended.is_set(), "another batch")
        self.events.end()
        assert run.error is None, run.error
        run.drain()
        run.wait(180)
        assert run.error is None, run.error
        return difference(self.reference(), rows_of(self.table))

    def reference(self) -> Counter[str]:
        """The table of a stream that ran the old version from the beginning and never failed."""
        out = self.root / "reference" / "table"
        first = self.releases[0]
        settings = {**self._settings(first), PER_BATCH: "1000000"}
        run = self.host.application(
            f"{VERSIONS}{first}", checkpoint=self.root / "reference" / "checkpoint", out=out, conf=settings
        )
        run.finished(180)
        return rows_of(out)

    def describe(self, version: str, to: Path) -> str:
        """Describe a version into a file; returns its path."""
        settings = {"scratch": str(self.root / "described"), "conf": self._settings(version), "to": str(to)}
        self.host.describe(VERSIONS + version, **settings).finished(180)
        return str(to)

    def shadow(self, version: str, to: Path) -> None:
        """Run a version beside the one that runs, until it has caught up with it; the report into a file."""
        run = self.host.rehearse(
            to,
            repository=str(self.root / "backups"),
            scratch=str(self.root / "scratch"),
            build=VERSIONS + version,
            conf=self._settings(version),
            checkpoint=str(self.checkpoint),
            sink=str(self.table),
            name="orders",
            follow=True,
            batches=2,
            timeout=180,
            idle=60,
        )
        run.finished(240)

    def end(self) -> None:
        """End whatever runs."""
        self.events.end()
        for _, run in self.runs:
            if not run.ended.is_set():
                run.stop()
                run.wait(30)

    def wait_for(self, condition: Callable[[], object], what: str, *, within: float = 180.0) -> None:
        """Wait until something is the case."""
        deadline = time.monotonic() + within
        while not condition():
            if time.monotonic() > deadline:
                errors = [run.error for _, run in self.runs if run.error]
                raise TimeoutError(f"{what}: not within {within:g} s; {errors}")
            time.sleep(0.05)

    def _settings(self, version: str) -> dict[str, str]:
        return {
            BROKERS: self.broker.address,
            TOPIC: self.topic,
            STARTING: "",
            # Some batches for what has arrived while the stream was down.
            PER_BATCH: "300",
            FAULT_FROM: str(self.events.made + _UNTIL_FAULT),
            "spark.sql.streaming.minBatchesToRetain": "100",
            **self.conf,
            **self.version_conf.get(version, {}),
        }
