"""One stream into an Iceberg table, on real Spark in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.stopped import STOPPED

_SCRIPT = Path(__file__).with_name("iceberg_stream.py")
_ROWS = 10


@dataclass
class IcebergStory:
    """One stream into one table.

    :param root: directory for all of it.
    :param catalog: ``hadoop``: named by its directory; ``sql``, ``rest``: named by its name.
    :param uri: of a REST catalog.
    """

    root: Path
    catalog: str
    uri: str = ""
    made: int = field(default=0)
    process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End Spark."""
        if self.process is not None:
            with self.process as process:
                process.kill()

    def __post_init__(self) -> None:
        for name in ("input", "warehouse"):
            (self.root / name).mkdir()

    @property
    def place(self) -> Location:
        return open_location(str(self.root / "checkpoint"))

    @property
    def sink(self) -> Sink:
        if self.catalog == "hadoop":
            return Sink(open_location(str(self.root / "warehouse" / "sales" / "orders")), "")
        warehouse = self.root / "warehouse"
        properties = {"type": "sql", "uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": f"file://{warehouse}"}
        if self.catalog == "rest":
            properties = {"type": "rest", "uri": self.uri}
        return Sink.named("iceberg:lake.sales.orders", open_location, storage_options=properties)

    @property
    def repository(self) -> Repository:
        return Repository.open_or_create(default_repository(self.place))

    def run(self, files: int, *, at_once: int = 1, faulty: bool = False) -> list[list[int]]:
        """Let it read some more files, so many in a batch; return the rows of the table."""
        for number in range(self.made, self.made + files):
            rows = range(number * _ROWS, (number + 1) * _ROWS)
            path = self.root / "input" / f"f{number:03d}.json"
            path.write_text("".join(json.dumps({"id": row, "value": row + 1}) + "\n" for row in rows))
            os.utime(path, (1_704_067_200 + number,) * 2)
        self.made += files
        return self.spark(
            input=str(self.root / "input"), checkpoint=str(self.root / "checkpoint"), files=at_once, faulty=faulty
        )

    def spark(self, **about: object) -> list[list[int]]:
        """Run the application; return the rows of the table."""
        about |= {
            "warehouse": str(self.root / "warehouse"),
            "catalog": self.catalog,
            "uri": self.uri,
            "rows": str(self.root / "rows.json"),
        }
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, str(_SCRIPT)],
                env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(self.root / "local")},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=(self.root / "spark.log").open("w"),
                text=True,
            )
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(about) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer == "done\n", answer + (self.root / "spark.log").read_text()[-4000:]
        rows: list[list[int]] = json.loads((self.root / "rows.json").read_text())
        return rows

    def plan(self, kind: str, value: object = "", *, policy: SinkPolicy = SinkPolicy.ROLLBACK) -> RewindPlan:
        return plan_rewind(
            Checkpoint.at(self.place),
            Specifier(kind, str(value)),
            sink=self.sink,
            sink_exit=policy,
            exact_replay=False,
        )

    def rewind(self, kind: str, value: object = "", *, policy: SinkPolicy = SinkPolicy.ROLLBACK) -> RewindPlan:
        plan = self.plan(kind, value, policy=policy)
        apply_rewind(plan, Checkpoint.at(self.place), self.repository, sink=self.sink, rest=STOPPED)
        return plan

    @property
    def query_id(self) -> str:
        return str(json.loads((self.root / "checkpoint" / "metadata").read_text())["id"])

    @property
    def right(self) -> list[list[int]]:
        return [[row, row + 1] for row in range(self.made * _ROWS)]
