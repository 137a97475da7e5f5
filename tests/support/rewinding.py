"""Histories of a stream that is rewound: right code, then a deployment with a bug, then back and the right code again.

Whatever happens on the way, in the end the sink has to be that of a stream that ran the right code from the beginning.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.rewind.apply import RewindOutcome, apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.stopped import STOPPED, wait_until_quiet
from tests.support.streams.data import put_files
from tests.support.streams.kinds import KINDS
from tests.support.streams.spark_host import SparkHost


@dataclass
class Story:
    """One stream and its sink.

    :param host: runs it.
    :param root: directory for all of it.
    :param kind: its kind.
    """

    host: SparkHost
    root: Path
    kind: str
    files: int = 0
    made: int = field(default=0)

    @property
    def source(self) -> Path:
        return self.root / "input"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoints" / "orders"

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def place(self) -> Location:
        return open_location(str(self.checkpoint))

    @property
    def ckpt(self) -> Checkpoint:
        return Checkpoint.at(self.place)

    @property
    def sink(self) -> Sink:
        return Sink(place=open_location(str(self.out)), app_id="totals" if KINDS[self.kind].sink == "merge" else None)

    @property
    def newest(self) -> int:
        newest = self.ckpt.progress().latest_committed
        assert newest is not None
        return newest

    def run(self, files: int, *, faulty: bool = False) -> None:
        """Let it read some more files, one in each batch, and stop."""
        put_files(self.source, files, start=self.made)
        self.made += files
        self.go_on(faulty=faulty)

    def go_on(self, *, faulty: bool = False) -> None:
        """Let it read what there is, and stop."""
        started = self.host.start(
            self.kind, source=self.source, checkpoint=self.checkpoint, out=self.out, available_now=True, faulty=faulty
        )
        started.finished()

    def plan(self, kind: str, value: object = "", *, sink_exit: str | None = "rollback", **settings: Any) -> RewindPlan:
        chosen = SinkPolicy(sink_exit) if sink_exit else None
        return plan_rewind(self.ckpt, Specifier(kind, str(value)), sink=self.sink, sink_exit=chosen, **settings)

    def rewind(
        self, kind: str, value: object = "", *, sink_exit: str | None = "rollback", **settings: Any
    ) -> RewindOutcome:
        # The JVM lives on: its maintenance may still be at work on the state of the query that has ended.
        wait_until_quiet(self.place, quiet_for=1.0, at_most=60)
        plan = self.plan(kind, value, sink_exit=sink_exit, **settings)
        return apply_rewind(plan, self.ckpt, self.repository, sink=self.sink, rest=STOPPED)

    @property
    def repository(self) -> Repository:
        return Repository.open_or_create(default_repository(self.place))

    def rows(self) -> Counter[str]:
        """What a reader of the sink sees."""
        return rows_of(self.out)

    def reference(self) -> Counter[str]:
        """What the sink of a stream holds that never had the bug."""
        out = self.root / "reference" / "out"
        run = self.host.start(
            self.kind, source=self.source, checkpoint=self.root / "reference" / "ck", out=out, available_now=True
        )
        run.finished()
        return rows_of(out)


def rows_of(sink: Path) -> Counter[str]:
    """Rows of a Delta table, or of all data files in a directory."""
    if (sink / "_delta_log").exists():
        # Not by to_pyarrow_table, which refuses tables with deletion vectors.
        found = QueryBuilder().register("sink", DeltaTable(str(sink))).execute("SELECT * FROM sink")
        rows = pa.table(found.read_all()).to_pylist()
        return Counter(json.dumps(row, sort_keys=True, default=str) for row in rows)
    lines = (line for file in sink.glob("part-*.json") for line in file.read_text().splitlines())
    return Counter(json.dumps(json.loads(line), sort_keys=True) for line in lines)


def difference(wanted: Counter[str], found: Counter[str]) -> tuple[int, int]:
    """Rows that are lost, and rows that are wrong or there too often."""
    assert wanted, "the reference has no row: nothing is shown"
    return (wanted - found).total(), (found - wanted).total()
