"""The example stream of docker-compose.yml, as it is deployed: spark-submit, a real Kafka, Delta, and with `make s3a` on s3a://."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.kafka_broker import KafkaBroker
from tests.support.s3_server import S3Server, _end_with_parent
from tests.support.streams.spark_host import coordinates

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
DEFAULTS = ROOT / "docker" / "spark-defaults.conf"


@dataclass
class Deployment:
    """The stream, its producer, and where everything lies.

    :param place: URI of the directory.
    :param logs: directory for the output of the programs.
    :param conf: settings that are other ones here than in `docker/spark-defaults.conf`.
    :param store: environment of whoever works on `place`.
    :param options: the same for fsspec.
    """

    place: str
    topic: str
    broker: KafkaBroker
    logs: Path
    conf: dict[str, str]
    store: dict[str, str]
    options: dict[str, Any]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def stream(self) -> Path:
        """Start the stream; return the file with its output."""
        settings = {**self.conf, "spark.orders.brokers": self.broker.address, "spark.orders.topic": self.topic}
        return self._start(
            str(Path(sys.executable).with_name("spark-submit")),
            *("--master", "local[2]", "--properties-file", str(DEFAULTS)),
            *(argument for key, value in settings.items() for argument in ("--conf", f"{key}={value}")),
            str(ROOT / "demo" / "kafka_stream.py"),
            *("--checkpoint", f"{self.place}/checkpoint", "--table", f"{self.place}/table"),
            *("--stop", f"{self.place}/orders.stop", "--progress", f"{self.place}/orders.jsonl"),
            *("--every", "0 seconds"),
        )

    def produce(self, *arguments: object) -> None:
        """Start a producer."""
        where = ("--brokers", self.broker.address, "--topic", self.topic)
        self._start(sys.executable, "-m", "demo.kafka_orders", *where, *map(str, arguments))

    def _start(self, *command: str) -> Path:
        out = self.logs / f"{len(self.started)}.out"
        with out.open("wb") as written, out.with_suffix(".err").open("wb") as errors:
            self.started.append(
                subprocess.Popen(
                    command,
                    stdout=written,
                    stderr=errors,
                    env={**os.environ, **self.store, "PYTHONPATH": str(ROOT)},
                    cwd=self.logs.parent,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
            )
        return out

    def end(self) -> None:
        """End what still runs."""
        for process in self.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def at(self, path: str) -> Location:
        """A place below ours."""
        return open_location(f"{self.place}/{path}" if path else self.place, storage_options=self.options)

    def events(self) -> list[dict[str, Any]]:
        """What the stream has said of itself since its start."""
        try:
            return [json.loads(line) for line in self.at("").read("orders.jsonl").splitlines()]
        except FileNotFoundError:
            return []

    def rows(self) -> list[tuple[str, str, int]]:
        """The table."""
        from deltalake import DeltaTable

        options = {"AWS_ALLOW_HTTP": "true", **self.store} if self.store else None
        found = DeltaTable(f"{self.place}/table".replace("s3a:", "s3:"), storage_options=options).to_pyarrow_table()
        return sorted((row["order_id"], row["customer"], row["cents"]) for row in found.to_pylist())

    def sent(self) -> list[tuple[str, str, int]]:
        """What is in the topic, twice where it was sent twice."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**self.broker.config, "group.id": "reader", "enable.auto.commit": False})
        found = []
        try:
            for partition, (first, end) in self.broker.ends(self.topic).items():
                consumer.assign([TopicPartition(self.topic, partition, first)])
                for _ in range(end - first):
                    order = json.loads(consumer.poll(30).value())
                    found.append((order["order_id"], order["customer"], order["cents"]))
        finally:
            consumer.close()
        return sorted(found)

    def wait_for(self, condition: Callable[[], object], what: str, *, within: float = 180.0) -> None:
        """Wait until something is the case, and the newest process has not failed meanwhile."""
        deadline = time.monotonic() + within
        while not condition():
            failed = self.started[-1].poll()
            said = "".join(p.read_text()[-3000:] for p in sorted(self.logs.iterdir())[-2:])
            assert not failed, f"ended with {failed}:\n{said}"
            assert time.monotonic() < deadline, f"not within {within:g} s: {what}\n{said}"
            threading.Event().wait(0.1)


@pytest.fixture
def deployment(
    request: pytest.FixtureRequest, kafka_broker: KafkaBroker, s3_server: S3Server, tmp_path: Path
) -> Iterator[Deployment]:
    listings = ["spark-jars.txt"]
    place, conf, store, options = str(tmp_path / "lake"), {}, {}, {}
    if request.param == "s3a":
        listings.append("s3a-jars.txt")
        place = f"s3a://{s3_server.make_bucket()}"
        conf["spark.hadoop.fs.s3a.endpoint"] = s3_server.endpoint
        store, options = s3_server.environment(), s3_server.options()
    conf |= {
        "spark.jars.packages": ",".join(package for listing in listings for package in coordinates(listing)),
        "spark.jars.ivy": str(ROOT / ".cache" / "ivy"),
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        # Few rows: compiling the queries takes longer than running them.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": str(tmp_path / "spark-local"),
        "spark.ui.enabled": "false",
    }
    (tmp_path / "lake").mkdir()
    (tmp_path / "logs").mkdir()
    topic = f"orders-{re.sub(r'[^a-z0-9]', '', tmp_path.name.lower())}"
    found = Deployment(place, topic, kafka_broker, tmp_path / "logs", conf, store, options)
    yield found
    found.end()


@pytest.mark.parametrize(
    "deployment",
    [pytest.param("local", marks=pytest.mark.slow), pytest.param("s3a", marks=pytest.mark.s3a)],
    indirect=True,
)
def test_rows_arrive_once_and_the_marker_ends_it_after_its_batch(deployment: Deployment) -> None:
    deployment.produce("--count", 300, "--rate", 0)
    deployment.wait_for(lambda: deployment.started[-1].poll() == 0, "the end of the first producer")
    output = deployment.stream()
    stream = deployment.started[-1]

    def batches() -> list[int]:
        return [e["batch_id"] for e in deployment.events() if e["event"] == "progress" and e["input_rows"]]

    deployment.wait_for(lambda: batches(), "the first batch")
    deployment.produce("--rate", 100)  # without end
    producer = deployment.started[-1]
    deployment.wait_for(lambda: len(batches()) >= 3, "more batches")
    marker = {"reason": "maintenance", "made_by": "test"}
    deployment.at("").replace("orders.stop", json.dumps(marker).encode())
    assert stream.wait(120) == 0
    assert output.read_text().splitlines()[-1] == "stopped: maintenance"
    assert producer.poll() is None  # there would have been more to read
    progress = Checkpoint.at(deployment.at("checkpoint")).progress()
    assert (progress.gap, progress.uncommitted) == (0, ())
    assert [e["error"] for e in deployment.events() if e["event"] == "terminated"] == [None]
    before = deployment.rows()
    assert len(before) == len(set(before)) > 300

    # Started again by whatever starts it again: it waits for the marker to go, and then reads the rest.
    producer.kill()
    producer.wait()
    seen = deployment.at("").read("orders.jsonl")
    output = deployment.stream()
    deployment.wait_for(lambda: output.read_text().startswith("waiting for the end of "), "that it waits")
    assert deployment.at("").read("orders.jsonl") == seen
    deployment.at("").delete("orders.stop")
    sent = deployment.sent()
    assert len(sent) > len(set(sent))  # some were sent twice
    deployment.wait_for(lambda: deployment.rows() == sorted(set(sent)), "the rest")
    deployment.at("").replace("orders.stop", b"")
    assert deployment.started[-1].wait(120) == 0
